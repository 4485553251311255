"""Results that contenders are held against: single samples in float64, and one another on whole batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir import Module, interpret
from tilewright.running.checking import relative_error
from tilewright.tools.bench.networks import with_batch


def reference_of(module: Module, batch: int | None) -> Reference | WholeReference:
    """What results are held against: of a batch single samples, of shapes left as they are everything."""
    return WholeReference(module) if batch is None else Reference(module)


class WholeReference:
    """All results of a network whose inputs need not share a batch, interpreted in float64."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[bytes, list[np.ndarray]] = {}

    def error(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
        """The largest relative error of the outputs."""
        key = b"".join(x.tobytes() for x in inputs)
        if key not in self._known:
            self._known[key] = interpret(self._module, *inputs, precision="fp64")
        return difference(outputs, self._known[key])


class Reference:
    """The first and last sample of a batch, interpreted in float64 from the network as it was imported.

    A network treats the samples of a batch alike, so sample i of a batch equals the network at batch 1 on
    it. Results are kept by sample: batches that begin alike share them.
    """

    def __init__(self, module: Module) -> None:
        self._module = with_batch(module, 1)
        self._known: dict[bytes, list[np.ndarray]] = {}

    def error(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
        """The largest relative error of the outputs for the first and the last sample."""
        batch = inputs[0].shape[0]
        errors = []
        for sample in sorted({0, batch - 1}):
            wanted = self._wanted([x[sample : sample + 1] for x in inputs])
            for got, exact in zip(outputs, wanted, strict=True):
                per_sample = exact.shape[0]  # rows of a result may be more than one per sample
                rows = got[sample * per_sample : (sample + 1) * per_sample]
                errors.append(relative_error(rows, exact))
        return max(errors)

    def _wanted(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        key = b"".join(x.tobytes() for x in inputs)
        if key not in self._known:
            self._known[key] = interpret(self._module, *inputs, precision="fp64")
        return self._known[key]


def difference(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> float:
    """The largest relative error between two lists of results."""
    return max(relative_error(x, y) for x, y in zip(a, b, strict=True))
