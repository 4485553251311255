"""Reads operands over a box of an iteration domain: strided views where affine, else gathered elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.expr import Expr, evaluate
from tilewright.ir.simplify import Ranges, coefficients

#: half-open range of every iteration dimension
Box = Mapping[str, tuple[int, int]]
Fill = float | int | bool | None
#: elements a temporary array may hold before the domain is cut into boxes
CHUNK = 1 << 21


@dataclass(frozen=True)
class OperandAccess:
    """The reads of one operand: an index expression per dimension, its affine form, and the value outside."""

    exprs: tuple[Expr, ...]
    forms: tuple[tuple[dict[str, int], int] | None, ...]
    fill: Fill

    @classmethod
    def of(cls, exprs: Sequence[Expr], ranges: Ranges, fill: Fill = None) -> OperandAccess:
        """Analyse `exprs` over the dimensions of `ranges`."""
        return cls(tuple(exprs), tuple(_affine(e, ranges) for e in exprs), fill)


def _affine(e: Expr, ranges: Ranges) -> tuple[dict[str, int], int] | None:
    form = coefficients(e, ranges, ranges)
    return (form[0], form[1]) if form is not None and isinstance(form[1], int) else None


def whole(extents: Mapping[str, int]) -> Box:
    """The box that covers the domain."""
    return {k: (0, n) for k, n in extents.items()}


def boxes(extents: Mapping[str, int], tile: Mapping[str, int]) -> Iterator[Box]:
    """The domain cut into boxes of at most `tile` points per dimension, first dimension outermost."""
    ranges = [
        [(s, min(s + tile.get(k, n), n)) for s in range(0, n, max(tile.get(k, n), 1))]
        for k, n in extents.items()
    ]
    for corner in product(*ranges):
        yield dict(zip(extents, corner, strict=True))


def row_tile(extents: Mapping[str, int], limit: int) -> dict[str, int]:
    """Tile sizes of at most `limit` points that keep the innermost dimensions whole."""
    out: dict[str, int] = {}
    left = max(limit, 1)
    for k, n in reversed(list(extents.items())):
        out[k] = max(1, min(n, left))
        left = max(1, left // max(n, 1))
    return out


def axes(box: Box, order: Sequence[str]) -> dict[str, int | np.ndarray]:
    """Index values per dimension: `order[k]` varies along axis k; one-point dimensions are integers."""
    out: dict[str, int | np.ndarray] = {}
    for k, name in enumerate(order):
        start, stop = box[name]
        shape = [1] * len(order)
        shape[k] = stop - start
        out[name] = start if stop - start == 1 else np.arange(start, stop).reshape(shape)
    return out


def extent(box: Box, name: str) -> int:
    """Points of one dimension of a box."""
    return box[name][1] - box[name][0]


def fetch(array: np.ndarray, access: OperandAccess, box: Box, order: Sequence[str]) -> np.ndarray:
    """Elements of `array` read over `box`, axes in `order`, of size 1 where a dimension is unused."""
    view = _strided(array, access, box, order)
    return view if view is not None else _gathered(array, access, box, order)


def _strided(array: np.ndarray, access: OperandAccess, box: Box, order: Sequence[str]) -> np.ndarray | None:
    index: list[int | slice] = []
    dims: list[str] = []
    inner: list[tuple[int, int]] = []
    for size, form in zip(array.shape, access.forms, strict=True):
        if form is None:
            return None
        base = form[1] + sum(c * box[n][0] for n, c in form[0].items())
        live = [n for n in form[0] if extent(box, n) > 1]
        if len(live) > 1 or (live and live[0] in dims):
            return None
        step, n = (form[0][live[0]], extent(box, live[0])) if live else (1, 1)
        low, high = _inside(base, step, n, size)
        if low >= high:
            return np.full((1,) * len(order), _filling(access), dtype=array.dtype)
        if live:
            first, last = base + step * low, base + step * (high - 1)
            end = last + (1 if step > 0 else -1)
            index.append(slice(first, end if end >= 0 else None, step))
            dims.append(live[0])
            inner.append((low, high))
        else:
            index.append(base)
    view = array[tuple(index)]
    if any(span != (0, extent(box, n)) for span, n in zip(inner, dims, strict=True)):
        padded = np.full([extent(box, n) for n in dims], _filling(access), dtype=array.dtype)
        padded[tuple(slice(*span) for span in inner)] = view
        view = padded
    view = np.transpose(view, sorted(range(len(dims)), key=lambda i: order.index(dims[i])))
    return view[tuple(slice(None) if n in dims else None for n in order)]


def _inside(base: int, step: int, n: int, size: int) -> tuple[int, int]:
    """The steps t of 0..n-1, half open, for which 0 <= base + step * t < size."""
    if step < 0:
        base, step = size - 1 - base, -step
    return max(0, -(base // step)), min(n, (size - 1 - base) // step + 1)


def _gathered(array: np.ndarray, access: OperandAccess, box: Box, order: Sequence[str]) -> np.ndarray:
    env = axes(box, order)
    at = [np.asarray(evaluate(e, env), dtype=np.int64) for e in access.exprs]
    inside = bounds_mask(at, array.shape)
    values = take(array, at, len(order))
    if inside is None:
        return values
    return np.where(inside, values, np.asarray(_filling(access)).astype(array.dtype))


def bounds_mask(at: Sequence[np.ndarray], shape: Sequence[int]) -> np.ndarray | None:
    """True where every coordinate lies inside `shape`; None when all do."""
    mask: np.ndarray | None = None
    for i, size in zip(at, shape, strict=True):
        if i.size and (i.min() < 0 or i.max() >= size):
            ok = (i >= 0) & (i < size)
            mask = ok if mask is None else mask & ok
    return mask


def take(array: np.ndarray, at: Sequence[np.ndarray], rank: int) -> np.ndarray:
    """`array[at]` with coordinates clipped into bounds, as an array of `rank` broadcastable axes."""
    if array.size == 0:
        return np.zeros((1,) * rank, dtype=array.dtype)
    flat: int | np.ndarray = 0
    for i, size, stride in zip(at, array.shape, _strides(array.shape), strict=True):
        flat = flat + np.clip(i, 0, size - 1) * stride
    values = np.take(array.reshape(-1), flat)
    return values if values.ndim == rank else np.reshape(values, (1,) * rank)


def _strides(shape: Sequence[int]) -> list[int]:
    return [prod(shape[d + 1 :]) for d in range(len(shape))]


def _filling(access: OperandAccess) -> float | int | bool:
    if access.fill is None:
        raise InputError("an operand without a fill value is read outside its bounds")
    return access.fill
