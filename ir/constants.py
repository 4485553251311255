"""Named constants of a module: an immutable mapping from names to read-only arrays, stored as safetensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tilewright.ir.bounded_file import require_regular
from tilewright.ir.errors import InputError


class Constants(Mapping[str, np.ndarray]):
    """Read-only mapping name -> array. Arrays are made read-only views; nothing is copied."""

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Mapping[str, np.ndarray] | None = None) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        for name, array in (arrays or {}).items():
            view = np.ascontiguousarray(array).reshape(np.shape(array)).view()
            view.flags.writeable = False
            self._arrays[name] = view

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def updated(self, arrays: Mapping[str, np.ndarray]) -> Constants:
        """A new mapping with `arrays` added or replaced; self when there is nothing to add."""
        return Constants({**self._arrays, **arrays}) if arrays else self

    def form(self, name: str) -> tuple[tuple[int, ...], np.dtype] | None:
        """Shape and dtype of a constant, whose values need not be there for it; None where there is none."""
        array = self._arrays.get(name)
        return None if array is None else (array.shape, array.dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arrays, which are read-only again where they are loaded."""
        return type(self), (self._arrays,)

    def only(self, names: frozenset[str]) -> Constants:
        """The constants named; self when none is dropped."""
        chosen = {k: v for k, v in self._arrays.items() if k in names}
        return self if len(chosen) == len(self._arrays) else Constants(chosen)


def save_constants(constants: Mapping[str, np.ndarray], path: str | Path) -> None:
    """Write constants as a safetensors file."""
    save_file({k: np.asarray(v, order="C") for k, v in constants.items()}, str(path))


def load_constants(path: str | Path) -> Constants:
    """Read a safetensors file; raises InputError on anything damaged."""
    require_regular(path, "constants")
    try:
        return Constants(load_file(str(path)))
    except (SafetensorError, OSError, ValueError, KeyError) as e:
        raise InputError(f"expected a safetensors file with constants, got: {e}", where=str(path)) from e
