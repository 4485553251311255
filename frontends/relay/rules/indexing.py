"""Relay operators that pick elements by integer indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.operands import axis_of


def _take(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, indices = emit.tensors(args, 2)
    axis, batch = attrs.integer("axis", None), attrs.integer("batch_dims", 0)
    if axis is not None:
        axis = axis_of(axis, x.tensor.rank, "axis")
    if batch < 0:
        batch += indices.tensor.rank
    return emit.value("take", x, indices, axis=axis, mode=attrs.text("mode", "clip"), batch_dims=batch)


def _gather(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, indices = emit.tensors(args, 2)
    return emit.value("gather", x, indices, axis=axis_of(attrs.integer("axis"), x.tensor.rank, "axis"))


def _gather_nd(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    batch, rank = attrs.integer("batch_dims", 0), attrs.integer("index_rank", None)
    return emit.value("gather_nd", *emit.tensors(args, 2), batch_dims=batch, index_rank=rank)


def _adv_index(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    if len(args) != 1:
        raise InputError(f"expected one tuple of data and indices, got {len(args)} arguments")
    return emit.value("adv_index", *emit.fields(args))


def _one_hot(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Axis -1 appends the new dimension."""
    indices, on, off = emit.tensors(args, 3)
    axis = axis_of(attrs.integer("axis", -1), indices.tensor.rank + 1, "axis")
    dtype = attrs.dtype("dtype") or on.tensor.dtype
    return emit.value("one_hot", indices, on, off, depth=attrs.integer("depth", 1), axis=axis, dtype=dtype)


RULES: Mapping[str, Rule] = {
    "take": _take,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "adv_index": _adv_index,
    "one_hot": _one_hot,
}
