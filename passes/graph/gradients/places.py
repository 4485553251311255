"""Indices as the ops that read them understand them: wrapped around, clipped, or dropped out of bounds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.graph_code import GraphWriter, Tensor

_WIDE = ("i64", "u64", "u32")


def signed(index: Tensor) -> Tensor:
    """`index` in a signed dtype that holds every extent: i64 where it may be needed, else i32."""
    return index.cast("i64" if index.dtype in _WIDE else "i32")


def wrapped(index: Tensor, extent: int) -> Tensor:
    """Places in [0, extent); negative indices count from the end."""
    return index.writer.op("floor_mod", signed(index), _number(index, extent))


def clipped(index: Tensor, extent: int) -> Tensor:
    """Places in [0, extent); indices out of bounds name the nearest end."""
    return index.writer.op("clip", signed(index), a_min=0, a_max=max(0, extent - 1))


def wrapped_rows(rows: Tensor, extents: Sequence[int]) -> Tensor:
    """Coordinates along dimension 0 of `rows`, each wrapped around its own extent."""
    return rows.writer.op("floor_mod", signed(rows), _column(rows, [max(1, n) for n in extents]))


def inside_rows(rows: Tensor, extents: Sequence[int]) -> Tensor:
    """Whether rows of coordinates along dimension 0 are in bounds, negative ones counted from the end."""
    i, extent = signed(rows), _column(rows, extents)
    return rows.writer.op("all", (i < extent) & (i >= -extent), axis=(0,), keepdims=False)


def inside(index: Tensor, extent: int) -> Tensor:
    """Whether each index is in bounds, negative ones counted from the end."""
    i = signed(index)
    return (i < extent) & (i >= -extent)


def counted(w: GraphWriter, extent: int, dim: int, shape: Sequence[int], dtype: str) -> Tensor:
    """0, 1, ... along dimension `dim` of a tensor of `shape`."""
    places = w.op("arange", stop=extent, dtype=dtype)
    return places.along(dim, len(shape)).broadcast_to(*shape)


def numbered(w: GraphWriter, shape: Sequence[int]) -> Tensor:
    """The row-major place of every element of a tensor of `shape`, as i32."""
    return w.op("arange", stop=int(np.prod(shape)), dtype="i32").reshape(*shape)


def _number(index: Tensor, extent: int) -> Tensor:
    return index.writer.number(max(1, extent), signed_dtype(index))


def _column(rows: Tensor, extents: Sequence[int]) -> Tensor:
    dtype = np.int64 if signed_dtype(rows) == "i64" else np.int32
    column = np.asarray(extents, dtype).reshape(-1, *[1] * (rows.rank - 1))
    return rows.writer.constant(column, "extents")


def signed_dtype(index: Tensor) -> str:
    """The dtype of `signed`."""
    return "i64" if index.dtype in _WIDE else "i32"
