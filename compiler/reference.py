"""The `reference` target: the graph interpreted in NumPy behind the interface of an executable."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from tilewright.ir import ArrayType, Module, UnsupportedError, interpret
from tilewright.ir.types import array_type


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

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        """Outputs by reference semantics."""
        return interpret(self.module, *inputs)

    def profile(self, *inputs: object, repeats: int = 10, compare_serial: bool = False) -> NoReturn:
        """There are no kernels to time: raises UnsupportedError."""
        raise UnsupportedError("the reference target has no kernels to profile; name another target")

    def report(self) -> dict[str, Any]:
        """Plain data about the compilation."""
        return {"target": "reference", "launches": 0}
