"""The `reference` target: the graph interpreted in NumPy behind the interface of an executable."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tilewright.ir import ArrayType, Module, UnsupportedError
from tilewright.ir.types import array_type
from tilewright.running.interpreting import interpret
from tilewright.running.named_inputs import in_order


class ReferenceExecutable:
    """Interprets a module at each call; same calling interface as `Executable`, no plan, cannot be saved."""

    target = "reference"
    device = "NumPy"

    def __init__(self, module: Module) -> None:
        self.module = module

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in calling order."""
        return self.module.input_names

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each input."""
        return self.module.input_types

    @property
    def output_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each output."""
        return tuple(array_type(v.tensor) for v in self.module.main.body.ops[-1].operands)

    def __enter__(self) -> ReferenceExecutable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held."""

    def __call__(self, /, *inputs: Any, **named: Any) -> list[np.ndarray]:
        """Outputs by reference semantics, for inputs by position or by name."""
        return interpret(self.module, *in_order(self.input_names, inputs, named))

    def map(self, batches: Iterable[object]) -> Iterator[list[np.ndarray]]:
        """Outputs of every batch, one after the other."""
        return (self(*batch) if isinstance(batch, list | tuple) else self(batch) for batch in batches)

    @property
    def plan(self) -> NoReturn:
        """There is none: raises UnsupportedError, as all of the following do."""
        raise _without("plan")

    def load(self) -> NoReturn:
        """There is nothing to load."""
        raise _without("plan to load")

    def save(self, path: str | Path) -> NoReturn:
        """There is nothing compiled."""
        raise _without("compiled file to save; `tilewright.show` gives the network as text")

    def time(self, *inputs: object, repeats: int = 20) -> NoReturn:
        """There are no kernels."""
        raise _without("kernels to time")

    def time_kernels(self, *inputs: object, repeats: int = 5) -> NoReturn:
        """There are no kernels."""
        raise _without("kernels to time")

    def profile(self, *inputs: object, repeats: int = 10, compare_serial: bool = False) -> NoReturn:
        """There are no kernels."""
        raise _without("kernels to profile")

    def report(self) -> dict[str, Any]:
        """Plain data about the compilation."""
        return {"target": "reference", "launches": 0}


def _without(what: str) -> UnsupportedError:
    return UnsupportedError(f"the reference target interprets: it has no {what} (name another target)")
