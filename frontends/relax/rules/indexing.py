"""Relax operators that pick and place elements by indices. Coordinates come last in Relax, first here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relax.static import axis_in, cast, filled, number, reshaped, transposed
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import axis_of, broadcast_shapes
from tilewright.ir.nodes import Value
from tilewright.ir.types import dtype_name

_TAKE_MODES = ("fast", "wrap", "clip")


def _take(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Mode nan is refused: it is a matter of indices out of bounds, which no network means to have."""
    x, indices = emit.tensors(args, 2)
    axis, mode = attrs.integer("axis", None), attrs.text("mode", "fast")
    if mode not in _TAKE_MODES:
        raise UnsupportedError(f"expected mode among {', '.join(_TAKE_MODES)}, got '{mode}'")
    return emit.value("take", x, indices, axis=None if axis is None else axis_in(x, axis), mode=mode)


def _gather_elements(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, indices = emit.tensors(args, 2)
    return emit.value("gather", x, indices, axis=axis_in(x, attrs.integer("axis", 0)))


def _first(emit: Emitter, indices: Value) -> Value:
    """Indices with their coordinates as dimension 0 instead of the last."""
    rank = indices.tensor.rank
    if rank < 1:
        raise InputError(f"expected indices of rank 1 or more, got {indices.type}")
    return transposed(emit, indices, (rank - 1, *range(rank - 1)))


def _gather_nd(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, indices = emit.tensors(args, 2)
    return emit.value("gather_nd", x, _first(emit, indices), batch_dims=attrs.integer("batch_dims", 0))


def _index_tensor(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """One index tensor per leading dimension, broadcast against each other."""
    return emit.value("adv_index", emit.tensor(args, 0), *emit.fields(args, 1))


def _index_put(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, values = emit.tensor(args, 0), emit.tensor(args, 2)
    parts = emit.fields(args, 1)
    mode = "add" if attrs.flag("accumulate", False) else "update"
    shape = broadcast_shapes([p.tensor.shape for p in parts], "indices")
    wrapped = [
        emit.value("broadcast_to", _wrapped(emit, p, x.tensor.shape[d]), shape=shape)
        for d, p in enumerate(parts)
    ]
    places = emit.value("stack", *wrapped, axis=0)
    updates = (*shape, *x.tensor.shape[len(parts) :])
    if values.tensor.shape != updates:
        values = emit.value("broadcast_to", values, shape=updates)
    return emit.value("scatter_nd", x, places, cast(emit, values, x.tensor.dtype), mode=mode)


def _wrapped(emit: Emitter, index: Value, extent: int) -> Value:
    """Indices as int64, negative ones counted from the end."""
    index = cast(emit, index, "i64")
    zero, size = filled(emit, (), "i64", 0), filled(emit, (), "i64", extent)
    return emit.value("where", emit.value("less", index, zero), emit.value("add", index, size), index)


def _scatter_elements(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, indices, updates = emit.tensors(args, 3)
    axis, reduction = axis_in(x, attrs.integer("axis", 0)), attrs.text("reduction", "update")
    return emit.value("scatter_elements", x, indices, updates, axis=axis, reduction=reduction)


def _scatter_nd(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, indices, updates = emit.tensors(args, 3)
    return emit.value("scatter_nd", x, _first(emit, indices), updates, mode=attrs.text("reduction", "update"))


def _slice_scatter(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """x[start:end:step] = source along an axis, as a choice among the rows of both."""
    x, source = emit.tensor(args, 0), emit.tensor(args, 1)
    axis = axis_in(x, attrs.integer("axis", 0))
    start, end, step = (int(number(emit, args, i, "the slice")) for i in (2, 3, 4))
    extent = x.tensor.shape[axis]
    index = np.arange(extent)
    replaced = index[start:end:step]
    if len(replaced) != source.tensor.shape[axis]:
        raise InputError(f"expected {len(replaced)} rows along axis {axis} to put in, got {source.type}")
    index[replaced] = extent + np.arange(len(replaced))
    both = emit.value("concatenate", x, source, axis=axis)
    return emit.value("take", both, emit.constant(index), axis=axis, mode="clip")


def _one_hot(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The result has the dtype of the number that stands for a hit."""
    indices, on, off = emit.tensors(args, 3)
    axis = axis_of(attrs.integer("axis", -1), indices.tensor.rank + 1, "axis")
    dtype = on.tensor.dtype
    return emit.value(
        "one_hot", indices, on, cast(emit, off, dtype), depth=attrs.integer("depth"), axis=axis, dtype=dtype
    )


def _bucketize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Where each value belongs among rising boundaries; `right` is the side of boundaries that are equal."""
    x, boundaries = emit.tensors(args, 2)
    dtype = dtype_name("int32" if attrs.flag("out_int32", False) else "int64")
    return emit.value(
        "searchsorted", boundaries, cast(emit, x, boundaries.tensor.dtype), right=attrs.flag("right", False),
        dtype=dtype,
    )  # fmt: skip


def _reverse_sequence(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The first `length` elements of each sequence in reverse: element i comes from length - 1 - i."""
    x, lengths = emit.tensors(args, 2)
    along, batch = axis_in(x, attrs.integer("seq_axis", 1)), axis_in(x, attrs.integer("batch_axis", 0))
    shape = x.tensor.shape
    ramp = np.arange(shape[along], dtype=np.int64)
    place = emit.constant(ramp.reshape([-1 if d == along else 1 for d in range(len(shape))]))
    count = reshaped(emit, cast(emit, lengths, "i64"), [n if d == batch else 1 for d, n in enumerate(shape)])
    mirrored = emit.value("subtract", emit.value("subtract", count, filled(emit, (), "i64", 1)), place)
    index = emit.value("where", emit.value("less", place, count), mirrored, place)
    return emit.value("gather", x, emit.value("broadcast_to", index, shape=shape), axis=along)


RULES: Mapping[str, Rule] = {
    "take": _take,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "index_tensor": _index_tensor,
    "index_put": _index_put,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "slice_scatter": _slice_scatter,
    "one_hot": _one_hot,
    "bucketize": _bucketize,
    "reverse_sequence": _reverse_sequence,
}
