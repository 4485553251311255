"""Buffers as boxes of the arrays they lie in, so that neighbours in memory are distinguished exactly."""

from __future__ import annotations

import math

from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.plan.execution_plan import Buffer

#: first index and the one after the last, per dimension
Box = tuple[tuple[int, int], ...]


def box_of(base: Buffer, buffer: Buffer) -> Box | None:
    """The box of `base` that a buffer in it is; None where it is none (or leaves it, or has no `strides`)."""
    if buffer is base:
        return tuple((0, n) for n in base.shape)
    if not buffer.strides or len(buffer.shape) != len(base.shape):
        return None
    left = buffer.offset // DTYPES[buffer.dtype].itemsize + buffer.start
    box = []
    for extent, whole, step in zip(buffer.shape, base.shape, dense_strides(base.shape), strict=True):
        first, left = divmod(left, max(1, step))
        if first + extent > whole:
            return None
        box.append((first, first + extent))
    return tuple(box)


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index to the next along each dimension of a row-major array."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def volume(box: Box) -> int:
    """Elements of a box."""
    return math.prod(max(0, end - first) for first, end in box)


def common(a: Box, b: Box) -> Box:
    """The box that two boxes of one array share; one without elements where they share none."""
    return tuple((max(i, k), min(j, m)) for (i, j), (k, m) in zip(a, b, strict=True))
