"""Seeded weights that are made when they are read: a network larger than memory never exists as a whole."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping

import numpy as np

from tilewright.frontends.weights.random_weights import random_weight
from tilewright.ir.constants import Constants


class SeededConstants(Constants):
    """Float32 constants by name: values follow from name, shape and seed, as `random_weight` draws them.

    An array lives as long as somebody holds it; when it is read again, it is drawn again.
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

    def shape_of(self, name: str) -> tuple[int, ...]:
        """The shape of a constant, which is not made for it."""
        return self._shapes[name] if name in self._shapes else self._arrays[name].shape

    def updated(self, arrays: Mapping[str, np.ndarray]) -> Constants:
        """A new mapping with `arrays` added or replaced; self when there is nothing to add."""
        if not arrays:
            return self
        left = {k: s for k, s in self._shapes.items() if k not in arrays}
        return SeededConstants(left, self._seed, {**self._arrays, **arrays})

    def only(self, names: frozenset[str]) -> Constants:
        """The constants named; self when none is dropped."""
        shapes = {k: s for k, s in self._shapes.items() if k in names}
        arrays = {k: a for k, a in self._arrays.items() if k in names}
        if len(shapes) + len(arrays) == len(self):
            return self
        return SeededConstants(shapes, self._seed, arrays)
