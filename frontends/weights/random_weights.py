"""Seeded parameters that keep a network's activations in range, drawn from a name, a type and a seed.

Seed 0 gives the values behind the reference outputs stored with the test networks.
"""

from __future__ import annotations

import math
import weakref
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tilewright.ir.constants import Constants
from tilewright.ir.errors import InputError, WorkError

#: One-dimensional parameters with these endings multiply; they are drawn around one.
_FACTORS = ("var", "gamma", "weight", "scale")
MAX_BYTES = 1 << 36


def random_weight(name: str, shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """An array of `shape` and `dtype` (a NumPy name) for parameter `name`; InputError beyond 64 GiB.

    Integers are 0 or 1, matrices and kernels uniform with variance 1 / fan-in, vectors near one where they
    multiply and near zero elsewhere. Raises WorkError where memory does not suffice.
    """
    try:
        return _drawn(name, shape, dtype, seed)
    except MemoryError as e:
        raise WorkError(f"parameter %{name}: out of memory: {e}") from e


def _drawn(name: str, shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    rng = _generator(name, shape, seed)
    if _is_integer(dtype) or dtype == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    if len(shape) > 1:
        fan_in = max(1, math.prod(shape[1:]))
        return (rng.uniform(-1, 1, shape) * np.sqrt(3.0 / fan_in)).astype(dtype)
    low, high = (0.8, 1.2) if name.endswith(_FACTORS) else (-0.1, 0.1)
    return rng.uniform(low, high, shape).astype(dtype)


def random_input(name: str, shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """An array to feed to input `name`: standard normal, or integers in [0, 1000)."""
    rng = _generator(name, shape, seed)
    if _is_integer(dtype):
        return rng.integers(0, 1000, shape).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def _is_integer(dtype: str) -> bool:
    return "int" in dtype


def _generator(name: str, shape: tuple[int, ...], seed: int) -> np.random.Generator:
    if math.prod(shape) * 8 > MAX_BYTES:
        raise InputError(f"expected at most {MAX_BYTES} bytes, got shape {shape}", where=f"parameter %{name}")
    if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise InputError(f"expected a seed of 0 to 2**63 - 1, got {seed!r}")
    key = zlib.crc32(name.encode())
    return np.random.default_rng([key, seed] if seed else key)


class SeededConstants(Constants):
    """Float32 constants by name: values follow from name, shape and seed, as `random_weight` draws them.

    An array lives as long as somebody holds it; when it is read again, it is drawn again. What is made of
    these constants shares the arrays that are alive.
    """

    __slots__ = ("_alive", "_seed", "_shapes")

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        seed: int = 0,
        arrays: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """shapes: of the weights that are drawn; arrays: further constants that are held."""
        super().__init__(arrays)
        self._shapes = dict(shapes)
        self._seed = seed
        self._alive: weakref.WeakValueDictionary[str, np.ndarray] = weakref.WeakValueDictionary()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._shapes:
            return super().__getitem__(name)
        array = self._alive.get(name)
        if array is None:
            array = random_weight(name, self._shapes[name], "float32", self._seed)
            array.flags.writeable = False
            self._alive[name] = array
        return array

    def __contains__(self, name: object) -> bool:
        return name in self._shapes or name in self._arrays

    def __iter__(self) -> Iterator[str]:
        yield from self._shapes
        yield from self._arrays

    def __len__(self) -> int:
        return len(self._shapes) + len(self._arrays)

    def form(self, name: str) -> tuple[tuple[int, ...], np.dtype] | None:
        """See `Constants.form`."""
        return (self._shapes[name], np.dtype(np.float32)) if name in self._shapes else super().form(name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what the drawn arrays follow from, and those that are held."""
        return SeededConstants, (self._shapes, self._seed, self._arrays)

    def updated(self, arrays: Mapping[str, np.ndarray]) -> Constants:
        """A new mapping with `arrays` added or replaced; self when there is nothing to add."""
        if not arrays:
            return self
        left = {k: s for k, s in self._shapes.items() if k not in arrays}
        return self._sharing(left, {**self._arrays, **arrays})

    def only(self, names: frozenset[str]) -> Constants:
        """The constants named; self when none is dropped."""
        shapes = {k: s for k, s in self._shapes.items() if k in names}
        arrays = {k: a for k, a in self._arrays.items() if k in names}
        if len(shapes) + len(arrays) == len(self):
            return self
        return self._sharing(shapes, arrays)

    def _sharing(
        self, shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, np.ndarray]
    ) -> SeededConstants:
        """Constants drawn as some of these are, with their living arrays."""
        derived = SeededConstants(shapes, self._seed, arrays)
        derived._alive = self._alive
        return derived
