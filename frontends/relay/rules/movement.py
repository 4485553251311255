"""Relay operators that rearrange, repeat or select elements by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.static_operands import static_integers
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.movement import resolve_slice
from tilewright.ir.graph_ops.operands import axes_of, axis_of
from tilewright.ir.nodes import Value
from tilewright.ir.types import TensorType


def _transpose(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Without axes the order of the dimensions is reversed."""
    (data,) = emit.tensors(args, 1)
    rank = data.tensor.rank
    axes = axes_of(attrs.integers("axes", None) or range(rank)[::-1], rank, "axes")
    return emit.value("transpose", data, axes=axes)


def _broadcast_to(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    attrs.drop("dtype")
    return emit.value("broadcast_to", *emit.tensors(args, 1), shape=attrs.integers("shape"))


def _broadcast_to_like(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, like = emit.tensors(args, 2)
    return emit.value("broadcast_to", data, shape=like.tensor.shape)


def _strided_slice(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    begin, size, strides = resolve_slice(
        data.tensor.shape,
        attrs.integers("begin"),
        attrs.integers("end"),
        attrs.integers("strides", ()),
        attrs.integers("axes", None),
        attrs.text("slice_mode", "end"),
    )
    return emit.value("strided_slice", data, begin=begin, size=size, strides=strides)


def _strided_set(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, v, *bounds = emit.tensors(args, 5)
    begin, end, strides = (
        static_integers(emit, value, what)
        for value, what in zip(bounds, ("begin", "end", "strides"), strict=True)
    )
    begin, size, strides = resolve_slice(data.tensor.shape, begin, end, strides)
    if v.tensor.shape != size:
        v = emit.value("broadcast_to", v, shape=size)
    return emit.value("strided_set", data, v, begin=begin, strides=strides)


def _slice_like(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The leading elements, as many as the other operand has on these axes (none given: on all)."""
    data, like = emit.tensors(args, 2)
    x, y = data.tensor, like.tensor
    given = attrs.integers("axes", None)
    axes = axes_of(given, x.rank, "axes") if given else tuple(range(min(x.rank, y.rank)))
    if max(axes, default=-1) >= y.rank:
        raise InputError(f"expected axes of {y}, got {given}")
    size = tuple(y.shape[d] if d in axes else n for d, n in enumerate(x.shape))
    return emit.value("strided_slice", data, begin=(0,) * x.rank, size=size, strides=(1,) * x.rank)


def _reverse(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    return emit.value("reverse", data, axis=axis_of(attrs.integer("axis"), data.tensor.rank, "axis"))


def _tile(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Fewer repetitions than dimensions stand for the last ones."""
    (data,) = emit.tensors(args, 1)
    reps = attrs.integers("reps")
    return emit.value("tile", data, reps=(*(1,) * (data.tensor.rank - len(reps)), *reps))


def _repeat(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    axis = axis_of(attrs.integer("axis", 0), data.tensor.rank, "axis")
    return emit.value("repeat", data, repeats=attrs.integer("repeats"), axis=axis)


def _sliding_window(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    axis = axis_of(attrs.integer("axis"), data.tensor.rank, "axis")
    taps, strides = attrs.integers("window_shape"), attrs.integers("strides")
    return emit.value("sliding_window", data, axis=axis, window_shape=taps, strides=strides)


def _fifo_buffer(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The newest part moves in at the end of the axis; as much of the oldest moves out."""
    data, buffer = emit.tensors(args, 2)
    x, kept = data.tensor, buffer.tensor
    axis = axis_of(attrs.integer("axis", 0), kept.rank, "axis")
    joined = emit.value("concatenate", buffer, data, axis=axis)
    begin = tuple(x.shape[d] if d == axis else 0 for d in range(kept.rank))
    return emit.value("strided_slice", joined, begin=begin, size=kept.shape, strides=(1,) * kept.rank)


def _meshgrid(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """One grid per operand, in which it runs along its own dimension; `xy` swaps the first two."""
    if len(args) != 1:
        raise InputError(f"expected one tuple of tensors, got {len(args)} arguments")
    parts = emit.fields(args)
    indexing = attrs.text("indexing", "ij")
    if indexing not in ("ij", "xy"):
        raise InputError(f"expected indexing ij or xy, got '{indexing}'")
    if any(v.tensor.rank > 1 for v in parts):
        raise InputError(f"expected operands of rank 0 or 1, got {', '.join(str(v.type) for v in parts)}")
    order = list(range(len(parts)))
    if indexing == "xy" and len(parts) > 1:
        order[:2] = [1, 0]
    shape = tuple(parts[k].tensor.size for k in order)
    out = []
    for k, v in enumerate(parts):
        line = tuple(v.tensor.size if part == k else 1 for part in order)
        out.append(emit.value("broadcast_to", emit.value("reshape", v, newshape=line), shape=shape))
    return tuple(out)


def _invert_permutation(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Sorting a permutation visits its entries where its inverse says."""
    (data,) = emit.tensors(args, 1)
    if data.tensor.rank != 1:
        raise InputError(f"expected an operand of rank 1, got {data.type}")
    return emit.value("argsort", data, axis=0, is_ascend=True, dtype=data.tensor.dtype)


def collapsed(emit: Emitter, data: Value, shape: Sequence[int]) -> Value:
    """The sum of `data` over the dimensions that broadcasting `shape` to it repeats."""
    x = data.tensor
    lead = x.rank - len(shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, x.shape[lead:], strict=True)):
        raise InputError(f"expected a shape that broadcasts to {x}, got {tuple(shape)}")
    repeated = [lead + d for d, n in enumerate(shape) if n != x.shape[lead + d]]
    axes = (*range(lead), *repeated)
    if not axes:
        return data
    total = emit.value("sum", data, axis=axes, keepdims=True)
    return emit.value("reshape", total, newshape=tuple(shape)) if lead else total


def _collapse_sum_like(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, like = emit.tensors(args, 2)
    return collapsed(emit, data, like.tensor.shape)


def _collapse_sum_to(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The shape is an operand; an attribute may repeat it."""
    attrs.drop("shape", "dtype")
    data, shape = emit.tensors(args, 2)
    return collapsed(emit, data, static_integers(emit, shape, "shape"))


def _reshape_like(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Dimensions lhs_begin..lhs_end of the first operand become rhs_begin..rhs_end of the second."""
    data, like = emit.tensors(args, 2)
    left = _span(attrs, "lhs", data.tensor)
    right = _span(attrs, "rhs", like.tensor)
    shape = data.tensor.shape
    newshape = (*shape[: left.start], *like.tensor.shape[right], *shape[left.stop :])
    return emit.value("reshape", data, newshape=newshape)


def _span(attrs: Attributes, side: str, t: TensorType) -> slice:
    begin, end = attrs.integer(f"{side}_begin", 0), attrs.integer(f"{side}_end", None)
    first = begin + t.rank if begin < 0 else begin
    last = t.rank if end is None else end + t.rank if end < 0 else end
    if not 0 <= first <= last <= t.rank:
        raise InputError(f"expected {side}_begin and {side}_end within {t}, got {begin} and {end}")
    return slice(first, last)


RULES: Mapping[str, Rule] = {
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "broadcast_to_like": _broadcast_to_like,
    "strided_slice": _strided_slice,
    "strided_set": _strided_set,
    "slice_like": _slice_like,
    "reverse": _reverse,
    "tile": _tile,
    "repeat": _repeat,
    "sliding_window": _sliding_window,
    "nn.fifo_buffer": _fifo_buffer,
    "meshgrid": _meshgrid,
    "invert_permutation": _invert_permutation,
    "collapse_sum_like": _collapse_sum_like,
    "collapse_sum_to": _collapse_sum_to,
    "reshape_like": _reshape_like,
}
