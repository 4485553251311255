"""Relay operators that pick and place elements by indices, and sparse matrices, which become dense ones."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.rules import axis, direct, integer, text
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import axis_of
from tilewright.ir.nodes import Value
from tilewright.ir.types import TensorType, storage_dtype


def _take(emit: Emitter, call: Call) -> Result:
    x, indices = call.tensors(2)
    along, batch = call.integer("axis", None), call.integer("batch_dims", 0)
    if along is not None:
        along = axis_of(along, x.tensor.rank, "axis")
    if batch < 0:
        batch += indices.tensor.rank
    return emit.value("take", x, indices, axis=along, mode=call.text("mode", "clip"), batch_dims=batch)


def _adv_index(emit: Emitter, call: Call) -> Result:
    if call.count != 1:
        raise InputError(f"expected one tuple of data and indices, got {call.count} arguments")
    return emit.value("adv_index", *call.fields())


def _one_hot(emit: Emitter, call: Call) -> Result:
    """Axis -1 appends the new dimension."""
    indices, on, off = call.tensors(3)
    along = axis_of(call.integer("axis", -1), indices.tensor.rank + 1, "axis")
    dtype = call.dtype("dtype") or on.tensor.dtype
    return emit.value("one_hot", indices, on, off, depth=call.integer("depth", 1), axis=along, dtype=dtype)


def _sparse_to_dense(emit: Emitter, call: Call) -> Result:
    """The default may have another dtype than the values."""
    indices, values, default = call.tensors(3)
    default = emit.cast(default, values.tensor.dtype)
    shape = call.integers("output_shape")
    return emit.value("sparse_to_dense", indices, values, default, output_shape=shape)


def _unravel_index(emit: Emitter, call: Call) -> Result:
    """Both operands in the dtype of the indices."""
    indices, shape = call.tensors(2)
    return emit.value("unravel_index", indices, emit.cast(shape, indices.tensor.dtype))


def _rows(emit: Emitter, indices: Value, starts: Value) -> Value:
    """The row of every stored element of compressed rows, in the dtype of its column indices."""
    if indices.tensor.rank != 1 or starts.tensor.rank != 1 or starts.tensor.size < 1:
        raise InputError(f"expected column indices and row starts, got {indices.type} and {starts.type}")
    dtype = indices.tensor.dtype
    places = emit.constant(np.arange(indices.tensor.size, dtype=storage_dtype(starts.tensor.dtype)))
    behind = emit.value("searchsorted", starts, places, right=True, dtype=dtype)
    return emit.op("subtract", behind, 1)


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


def _with_dense(emit: Emitter, call: Call) -> tuple[Value, Value]:
    """The dense operand, which comes first, and the sparse one as a dense matrix of as many columns."""
    dense, data, indices, starts = call.tensors(4)
    if dense.tensor.rank != 2:
        raise InputError(f"expected a dense matrix, got {dense.type}")
    return dense, _dense_matrix(emit, data, indices, starts, dense.tensor.shape[1])


def _sparse_dense(emit: Emitter, call: Call) -> Result:
    """x * w^T where w, or x if `sparse_lhs`, is sparse."""
    dense, other = _with_dense(emit, call)
    return emit.value("dense", *((other, dense) if call.flag("sparse_lhs", False) else (dense, other)))


def _sparse_add(emit: Emitter, call: Call) -> Result:
    return emit.value("add", *_with_dense(emit, call))


def _sparse_transpose(emit: Emitter, call: Call) -> Result:
    """Elements in the order of their columns; Relay knows square matrices only."""
    data, indices, starts = call.tensors(3)
    order = emit.value("argsort", indices, axis=0, is_ascend=True, dtype="i32")
    columns, rows = (emit.value("take", v, order, axis=0) for v in (indices, _rows(emit, indices, starts)))
    every = emit.constant(np.arange(starts.tensor.size, dtype=storage_dtype(indices.tensor.dtype)))
    begins = emit.value("searchsorted", columns, every, right=False, dtype=starts.tensor.dtype)
    return emit.value("take", data, order, axis=0), rows, begins


def _sparse_fill_empty_rows(emit: Emitter, call: Call) -> Result:
    """Indices, values, and which rows were empty; which those are must be known, as sizes depend on it."""
    indices, values, shape, default = call.tensors(4)
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
    "take": _take,
    "gather": direct("gather", 2, axis=axis()),
    "gather_nd": direct("gather_nd", 2, batch_dims=integer(0), index_rank=integer(None)),
    "adv_index": _adv_index,
    "one_hot": _one_hot,
    "scatter_nd": direct("scatter_nd", 3, mode=text("update")),
    "sparse_to_dense": _sparse_to_dense,
    "unravel_index": _unravel_index,
    "sparse_reshape": direct("sparse_reshape", 3),
    "nn.sparse_dense": _sparse_dense,
    "nn.sparse_add": _sparse_add,
    "nn.sparse_transpose": _sparse_transpose,
    "sparse_fill_empty_rows": _sparse_fill_empty_rows,
}
