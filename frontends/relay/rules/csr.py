"""Relay operators on sparse matrices: compressed rows become coordinates, and matrices dense ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import TensorType, storage_dtype


def _rows(emit: Emitter, indices: Value, starts: Value) -> Value:
    """The row of every stored element, in the dtype of its column indices."""
    if indices.tensor.rank != 1 or starts.tensor.rank != 1 or starts.tensor.size < 1:
        raise InputError(f"expected column indices and row starts, got {indices.type} and {starts.type}")
    dtype = indices.tensor.dtype
    places = emit.constant(np.arange(indices.tensor.size, dtype=storage_dtype(starts.tensor.dtype)))
    behind = emit.value("searchsorted", starts, places, right=True, dtype=dtype)
    return emit.value("subtract", behind, emit.constant(np.ones((), storage_dtype(dtype))))


def _dense_matrix(emit: Emitter, data: Value, indices: Value, starts: Value, columns: int) -> Value:
    """The dense matrix of compressed rows, of elements or of blocks [elements, rows, columns]."""
    coordinates = emit.value("stack", _rows(emit, indices, starts), indices, axis=0)
    blocks = data.tensor.shape[1:] or (1, 1)
    if data.tensor.rank not in (1, 3) or columns % max(1, blocks[1]):
        raise InputError(f"expected elements, or blocks that divide {columns} columns, got {data.type}")
    grid = TensorType(
        data.tensor.dtype, (starts.tensor.size - 1, columns // blocks[1], *data.tensor.shape[1:])
    )
    zeros = emit.constant(np.zeros(grid.shape, storage_dtype(grid.dtype)))
    dense = emit.value("scatter_nd", zeros, coordinates, data, mode="add")
    if data.tensor.rank == 1:
        return dense
    lines = emit.value("transpose", dense, axes=(0, 2, 1, 3))
    return emit.value("reshape", lines, newshape=(grid.shape[0] * blocks[0], columns))


def _sparse_dense(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """x * w^T where w, or x if `sparse_lhs`, is sparse; the dense one comes first."""
    dense, data, indices, starts = emit.tensors(args, 4)
    if dense.tensor.rank != 2:
        raise InputError(f"expected a dense matrix, got {dense.type}")
    other = _dense_matrix(emit, data, indices, starts, dense.tensor.shape[1])
    x, w = (other, dense) if attrs.flag("sparse_lhs", False) else (dense, other)
    return emit.value("dense", x, w)


def _sparse_add(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    dense, data, indices, starts = emit.tensors(args, 4)
    if dense.tensor.rank != 2:
        raise InputError(f"expected a dense matrix, got {dense.type}")
    return emit.value("add", dense, _dense_matrix(emit, data, indices, starts, dense.tensor.shape[1]))


def _sparse_transpose(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Elements in the order of their columns; Relay knows square matrices only."""
    data, indices, starts = emit.tensors(args, 3)
    order = emit.value("argsort", indices, axis=0, is_ascend=True, dtype="i32")
    columns, rows = (emit.value("take", v, order, axis=0) for v in (indices, _rows(emit, indices, starts)))
    every = emit.constant(np.arange(starts.tensor.size, dtype=storage_dtype(indices.tensor.dtype)))
    begins = emit.value("searchsorted", columns, every, right=False, dtype=starts.tensor.dtype)
    return emit.value("take", data, order, axis=0), rows, begins


def _sparse_fill_empty_rows(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Indices, values, and which rows were empty; which those are must be known, as sizes depend on it."""
    indices, values, shape, default = emit.tensors(args, 4)
    known, extents = emit.known(indices), emit.known(shape)
    if known is None or extents is None:
        raise UnsupportedError(
            "expected constant indices and a constant shape of sparse_fill_empty_rows: the number of rows "
            "of its result depends on them"
        )
    count = int(extents[0])
    empty = np.setdiff1d(np.arange(count), known[:, 0])
    added = np.zeros((len(empty), known.shape[1]), known.dtype)
    added[:, 0] = empty
    both = np.concatenate([known, added])
    order = np.argsort(both[:, 0], kind="stable")
    first = emit.value("reshape", default, newshape=(1,))
    pool = emit.value("concatenate", values, first, axis=0)
    places = emit.constant(np.minimum(order, len(known)).astype(np.int32))
    is_empty = np.isin(np.arange(count), empty)
    filled = emit.value("take", pool, places, axis=0)
    return emit.constant(both[order]), filled, emit.constant(is_empty)


RULES: Mapping[str, Rule] = {
    "nn.sparse_dense": _sparse_dense,
    "nn.sparse_add": _sparse_add,
    "nn.sparse_transpose": _sparse_transpose,
    "sparse_fill_empty_rows": _sparse_fill_empty_rows,
}
