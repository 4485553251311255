"""Relay operators that make tensors, and that rearrange, repeat or select elements by position."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.rules import axis, direct, flag, integer, integers, real
from tilewright.frontends.tvm.rules.movement import MAX_CONSTANT_BYTES, collapsed, filled, tile
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.joining import split_points
from tilewright.ir.graph_ops.movement import resolve_slice
from tilewright.ir.graph_ops.operands import axes_of, axis_of
from tilewright.ir.graph_ops.sequences import range_count, range_values
from tilewright.ir.graph_ops.shaping import resolve_reshape
from tilewright.ir.nodes import Attr
from tilewright.ir.types import TensorType, itemsize, storage_dtype


def _reshape(order: int) -> Rule:
    """The codes of the new shape are read from the left (order 1) or from the right (-1)."""

    def rule(emit: Emitter, call: Call) -> Result:
        data = call.single()
        codes, allowzero = call.integers("newshape")[::order], call.flag("allowzero", False)
        shape = resolve_reshape(data.tensor.shape[::order], codes, allowzero=allowzero)
        return emit.value("reshape", data, newshape=shape[::order])

    return rule


def _joined(name: str) -> Rule:
    return lambda emit, call: emit.value(name, *call.only_fields(), axis=call.integer("axis", 0))


def _split(emit: Emitter, call: Call) -> Result:
    data = call.single()
    along, rank = call.integer("axis", 0), data.tensor.rank
    if not -rank <= along < rank:
        raise InputError(f"expected an axis of {data.type}, got {along}")
    parts = call.take("indices_or_sections")
    if type(parts) is not int and not (isinstance(parts, tuple) and all(type(p) is int for p in parts)):
        raise InputError(f"expected indices_or_sections to be integers, got {parts!r}")
    indices = split_points(data.tensor.shape[along], parts)
    return emit.values("split", (data,), indices=indices, axis=along % rank)


def _filled(value: int) -> Rule:
    def rule(emit: Emitter, call: Call) -> Result:
        call.tensors(0)
        return filled(emit, value, call.integers("shape"), call.dtype("dtype") or "f32")

    return rule


def _full(emit: Emitter, call: Call) -> Result:
    value = call.single()
    return filled(emit, value, call.integers("shape"), call.dtype("dtype") or value.tensor.dtype)


def _arange(emit: Emitter, call: Call) -> Result:
    """The bounds come as attributes, and as operands in some versions; both are constants."""
    start, stop, step = (call.scalar(name) for name in ("start", "stop", "step"))
    dtype = call.dtype("dtype") or "f32"
    attrs: dict[str, Attr] = {"start": start, "stop": stop, "step": step, "dtype": dtype}
    if range_count(start, stop, step) * itemsize(dtype) > MAX_CONSTANT_BYTES:
        return emit.value("arange", **attrs)
    return emit.constant(range_values(start, stop, step, dtype))


def _extents(of: str) -> Rule:
    """The shape of a tensor or its size; InputError where the dtype cannot hold them."""

    def rule(emit: Emitter, call: Call) -> Result:
        data = call.single()
        dtype = call.dtype("dtype") or "i32"
        exact = np.asarray(getattr(data.tensor, of), np.int64)
        array = exact.astype(storage_dtype(dtype))
        if not np.array_equal(array.astype(np.int64), exact):
            raise InputError(f"expected a type that holds {exact.max()}, got {dtype}")
        return emit.constant(array)

    return rule


def _transpose(emit: Emitter, call: Call) -> Result:
    """Without axes the order of the dimensions is reversed."""
    data = call.single()
    rank = data.tensor.rank
    axes = axes_of(call.integers("axes", None) or range(rank)[::-1], rank, "axes")
    return emit.value("transpose", data, axes=axes)


def _broadcast_to(emit: Emitter, call: Call) -> Result:
    call.drop("dtype")
    return direct("broadcast_to", shape=integers())(emit, call)


def _broadcast_to_like(emit: Emitter, call: Call) -> Result:
    data, like = call.tensors(2)
    return emit.value("broadcast_to", data, shape=like.tensor.shape)


def _strided_slice(emit: Emitter, call: Call) -> Result:
    data = call.single()
    begin, size, strides = resolve_slice(
        data.tensor.shape,
        call.integers("begin"),
        call.integers("end"),
        call.integers("strides", ()),
        call.integers("axes", None),
        call.text("slice_mode", "end"),
    )
    return emit.value("strided_slice", data, begin=begin, size=size, strides=strides)


def _strided_set(emit: Emitter, call: Call) -> Result:
    data, v, *bounds = call.tensors(5)
    begin, end, strides = (
        emit.integers(value, what) for value, what in zip(bounds, ("begin", "end", "strides"), strict=True)
    )
    begin, size, strides = resolve_slice(data.tensor.shape, begin, end, strides)
    return emit.value("strided_set", data, emit.broadcast(v, size), begin=begin, strides=strides)


def _slice_like(emit: Emitter, call: Call) -> Result:
    """The leading elements, as many as the other operand has on these axes (none given: on all)."""
    data, like = call.tensors(2)
    x, y = data.tensor, like.tensor
    listed = call.integers("axes", None)
    axes = axes_of(listed, x.rank, "axes") if listed else tuple(range(min(x.rank, y.rank)))
    if max(axes, default=-1) >= y.rank:
        raise InputError(f"expected axes of {y}, got {listed}")
    size = tuple(y.shape[d] if d in axes else n for d, n in enumerate(x.shape))
    return emit.value("strided_slice", data, begin=(0,) * x.rank, size=size, strides=(1,) * x.rank)


def _fifo_buffer(emit: Emitter, call: Call) -> Result:
    """The newest part moves in at the end of the axis; as much of the oldest moves out."""
    data, buffer = call.tensors(2)
    x, kept = data.tensor, buffer.tensor
    along = axis_of(call.integer("axis", 0), kept.rank, "axis")
    joined = emit.value("concatenate", buffer, data, axis=along)
    begin = tuple(x.shape[d] if d == along else 0 for d in range(kept.rank))
    return emit.value("strided_slice", joined, begin=begin, size=kept.shape, strides=(1,) * kept.rank)


def _invert_permutation(emit: Emitter, call: Call) -> Result:
    """Sorting a permutation visits its entries where its inverse says."""
    data = call.single()
    if data.tensor.rank != 1:
        raise InputError(f"expected an operand of rank 1, got {data.type}")
    return emit.value("argsort", data, axis=0, is_ascend=True, dtype=data.tensor.dtype)


def _collapse_sum_to(emit: Emitter, call: Call) -> Result:
    """The shape is an operand; an attribute may repeat it."""
    call.drop("shape", "dtype")
    data, shape = call.tensors(2)
    return collapsed(emit, data, emit.integers(shape, "shape"))


def _reshape_like(emit: Emitter, call: Call) -> Result:
    """Dimensions lhs_begin..lhs_end of the first operand become rhs_begin..rhs_end of the second."""
    data, like = call.tensors(2)
    left, right = _span(call, "lhs", data.tensor), _span(call, "rhs", like.tensor)
    shape = data.tensor.shape
    newshape = (*shape[: left.start], *like.tensor.shape[right], *shape[left.stop :])
    return emit.value("reshape", data, newshape=newshape)


def _span(call: Call, side: str, t: TensorType) -> slice:
    begin, end = call.integer(f"{side}_begin", 0), call.integer(f"{side}_end", None)
    first = begin + t.rank if begin < 0 else begin
    last = t.rank if end is None else end + t.rank if end < 0 else end
    if not 0 <= first <= last <= t.rank:
        raise InputError(f"expected {side}_begin and {side}_end within {t}, got {begin} and {end}")
    return slice(first, last)


def _trilu(emit: Emitter, call: Call) -> Result:
    data, k = call.tensors(2)
    upper, known = call.flag("upper", True), emit.known(k)
    if known is None:
        return emit.value("trilu", data, k, upper=upper)
    if known.size != 1:
        raise InputError(f"expected one diagonal, got {k.type}")
    return emit.value("trilu", data, k=int(known.reshape(())), upper=upper)


def _yolo_reorg(emit: Emitter, call: Call) -> Result:
    """Blocks of stride * stride elements become channels, ordered before the channels of the data.

    The data of an image count as [C / stride^2, H * stride, W * stride], as in Darknet.
    """
    data = call.single()
    s, t = call.integer("stride", 1), data.tensor
    if t.rank != 4 or s < 1 or t.shape[1] % (s * s) or t.shape[2] % s or t.shape[3] % s:
        raise InputError(f"expected data [N, C, H, W], divisible by {s * s}, {s} and {s}, got {t}")
    n, c, h, w = t.shape
    wide = emit.value("reshape", data, newshape=(n, c // (s * s), h, s, w, s))
    moved = emit.value("transpose", wide, axes=(0, 3, 5, 1, 2, 4))
    return emit.value("reshape", moved, newshape=(n, c * s * s, h // s, w // s))


RULES: Mapping[str, Rule] = {
    "reshape": _reshape(1),
    "contrib_reverse_reshape": _reshape(-1),
    "expand_dims": direct("expand_dims", axis=integer(), num_newaxis=integer(1)),
    "concatenate": _joined("concatenate"),
    "stack": _joined("stack"),
    "split": _split,
    "zeros": _filled(0),
    "ones": _filled(1),
    "full": _full,
    "arange": _arange,
    "shape_of": _extents("shape"),
    "ndarray_size": _extents("size"),
    "transpose": _transpose,
    "broadcast_to": _broadcast_to,
    "broadcast_to_like": _broadcast_to_like,
    "strided_slice": _strided_slice,
    "strided_set": _strided_set,
    "slice_like": _slice_like,
    "reverse": direct("reverse", axis=axis()),
    "tile": tile("reps"),
    "repeat": direct("repeat", repeats=integer(), axis=axis(0)),
    "sliding_window": direct("sliding_window", axis=axis(), window_shape=integers(), strides=integers()),
    "nn.fifo_buffer": _fifo_buffer,
    "invert_permutation": _invert_permutation,
    "collapse_sum_to": _collapse_sum_to,
    "reshape_like": _reshape_like,
    "reverse_sequence": direct("reverse_sequence", 2, seq_axis=axis(1), batch_axis=axis(0)),
    "sequence_mask": direct("sequence_mask", 2, mask_value=real(0.0), axis=integer(0)),
    "trilu": _trilu,
    "matrix_set_diag": direct(
        "matrix_set_diag", 2, k1=integer(0), k2=integer(0), super_diag_right_align=flag(True),
        sub_diag_right_align=flag(False),
    ),
    "vision.yolo_reorg": _yolo_reorg,
}  # fmt: skip
