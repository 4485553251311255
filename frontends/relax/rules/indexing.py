"""Relax operators that pick and place elements by indices. Coordinates come last in Relax, first here."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.movement import coordinates_first
from tilewright.frontends.importing.rules import axis, direct
from tilewright.frontends.relax.operands import axis_in, number
from tilewright.frontends.tvm.rules.movement import RULES as SHARED
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import axis_of, broadcast_shapes
from tilewright.ir.nodes import Value

_TAKE_MODES = ("fast", "wrap", "clip")


def _take(emit: Emitter, call: Call) -> Result:
    """Mode nan is refused: it is a matter of indices out of bounds, which no network means to have."""
    x, indices = call.tensors(2)
    along, mode = call.integer("axis", None), call.text("mode", "fast")
    if mode not in _TAKE_MODES:
        raise UnsupportedError(f"expected mode among {', '.join(_TAKE_MODES)}, got '{mode}'")
    return emit.value("take", x, indices, axis=None if along is None else axis_in(x, along), mode=mode)


def _gather_nd(emit: Emitter, call: Call) -> Result:
    x, indices = call.tensors(2)
    places = coordinates_first(emit, indices)
    return emit.value("gather_nd", x, places, batch_dims=call.integer("batch_dims", 0))


def _index_tensor(emit: Emitter, call: Call) -> Result:
    """One index tensor per leading dimension, broadcast against each other."""
    return emit.value("adv_index", call.tensor(0), *call.fields(1))


def _index_put(emit: Emitter, call: Call) -> Result:
    x, values = call.tensor(0), call.tensor(2)
    parts = call.fields(1)
    mode = "add" if call.flag("accumulate", False) else "update"
    shape = broadcast_shapes([p.tensor.shape for p in parts], "indices")
    wrapped = [
        emit.value("broadcast_to", _wrapped(emit, p, x.tensor.shape[d]), shape=shape)
        for d, p in enumerate(parts)
    ]
    places = emit.value("stack", *wrapped, axis=0)
    values = emit.broadcast(values, (*shape, *x.tensor.shape[len(parts) :]))
    return emit.value("scatter_nd", x, places, emit.cast(values, x.tensor.dtype), mode=mode)


def _wrapped(emit: Emitter, index: Value, extent: int) -> Value:
    """Indices as int64, negative ones counted from the end."""
    index = emit.cast(index, "i64")
    return emit.value("where", emit.op("less", index, 0), emit.op("add", index, extent), index)


def _scatter_nd(emit: Emitter, call: Call) -> Result:
    x, indices, updates = call.tensors(3)
    mode = call.text("reduction", "update")
    return emit.value("scatter_nd", x, coordinates_first(emit, indices), updates, mode=mode)


def _slice_scatter(emit: Emitter, call: Call) -> Result:
    """x[start:end:step] = source along an axis, as a choice among the rows of both."""
    x, source = call.tensor(0), call.tensor(1)
    along = axis_in(x, call.integer("axis", 0))
    start, end, step = (int(number(emit, call, i, "the slice")) for i in (2, 3, 4))
    extent = x.tensor.shape[along]
    index = np.arange(extent)
    replaced = index[start:end:step]
    if len(replaced) != source.tensor.shape[along]:
        raise InputError(f"expected {len(replaced)} rows along axis {along} to put in, got {source.type}")
    index[replaced] = extent + np.arange(len(replaced))
    both = emit.value("concatenate", x, source, axis=along)
    return emit.value("take", both, emit.constant(index), axis=along, mode="clip")


def _one_hot(emit: Emitter, call: Call) -> Result:
    """The result has the dtype of the number that stands for a hit."""
    indices, on, off = call.tensors(3)
    along = axis_of(call.integer("axis", -1), indices.tensor.rank + 1, "axis")
    depth, off = call.integer("depth"), emit.cast(off, on.tensor.dtype)
    return emit.value("one_hot", indices, on, off, depth=depth, axis=along, dtype=on.tensor.dtype)


def _bucketize(emit: Emitter, call: Call) -> Result:
    """The place of each value among rising boundaries; `right` is the side of boundaries that are equal."""
    x, boundaries = call.tensors(2)
    dtype = "i32" if call.flag("out_int32", False) else "i64"
    values, right = emit.cast(x, boundaries.tensor.dtype), call.flag("right", False)
    return emit.value("searchsorted", boundaries, values, right=right, dtype=dtype)


RULES: Mapping[str, Rule] = {
    "scatter_elements": SHARED["scatter_elements"],
    "take": _take,
    "gather_elements": direct("gather", 2, axis=axis(0)),
    "gather_nd": _gather_nd,
    "index_tensor": _index_tensor,
    "index_put": _index_put,
    "scatter_nd": _scatter_nd,
    "slice_scatter": _slice_scatter,
    "one_hot": _one_hot,
    "bucketize": _bucketize,
    "reverse_sequence": direct("reverse_sequence", 2, seq_axis=axis(1), batch_axis=axis(0)),
}
