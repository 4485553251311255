"""Arrays of which only shape and type are needed until somebody reads their values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Deferred:
    """An array that `make` gives when its values are first read; it is made once."""

    shape: tuple[int, ...]
    dtype: np.dtype
    make: Callable[[], np.ndarray]

    @cached_property
    def array(self) -> np.ndarray:
        """The values."""
        return self.make()


def made(array: np.ndarray | Deferred) -> np.ndarray:
    """The values of an array, whether it was deferred or not."""
    return array.array if isinstance(array, Deferred) else array
