"""Relax operators that make, move, join and cut tensors. Shapes and bounds are operands, known at import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Absent, Emitter, Result
from tilewright.frontends.importing.movement import padded
from tilewright.frontends.importing.rules import axis, direct
from tilewright.frontends.relax.operands import array_of, axis_in, integers, number
from tilewright.frontends.tvm.rules.movement import RULES as SHARED
from tilewright.frontends.tvm.rules.movement import collapsed, filled, tile
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.movement import resolve_slice
from tilewright.ir.graph_ops.operands import axes_of, axis_of
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype

#: Tensors that are made from nothing become constants up to this size.
MAX_CONSTANT_BYTES = 1 << 30
_AS_RELAY = ("collapse_sum_like", "full_like", "meshgrid", "ones_like", "squeeze", "zeros_like")
_PAD_MODES = {
    "constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge", "circular": "wrap",
}  # fmt: skip


def _of_shape(value: int) -> Rule:
    return lambda emit, call: filled(
        emit, value, integers(emit, call, 0, "the shape"), call.dtype("dtype") or "f32"
    )


def _full(emit: Emitter, call: Call) -> Result:
    value, shape = call.tensor(1), integers(emit, call, 0, "the shape")
    return filled(emit, value, shape, call.dtype("dtype") or value.tensor.dtype)


def _eye(emit: Emitter, call: Call) -> Result:
    rows, columns, diagonal = (int(number(emit, call, i, "the size")) for i in range(3))
    return _identity(emit, rows, columns, diagonal, call.dtype("dtype") or "f32")


def _eye_like(emit: Emitter, call: Call) -> Result:
    like, diagonal = call.tensor(0).tensor, int(number(emit, call, 1, "the diagonal"))
    if like.rank != 2:
        raise InputError(f"expected a matrix, got {like}")
    rows, columns = like.shape
    return _identity(emit, rows, columns, diagonal, call.dtype("dtype") or like.dtype)


def _identity(emit: Emitter, rows: int, columns: int, diagonal: int, dtype: str) -> Value:
    if rows * columns > MAX_CONSTANT_BYTES:
        raise InputError(f"expected a matrix of at most {MAX_CONSTANT_BYTES} bytes, got {rows} x {columns}")
    return emit.constant(np.eye(rows, columns, diagonal).astype(storage_dtype(dtype)))


def _arange(emit: Emitter, call: Call) -> Result:
    start, stop, step = (number(emit, call, i, "the bounds of the range") for i in range(3))
    count = (stop - start) / step if step else float("inf")
    if not count * 8 <= MAX_CONSTANT_BYTES:
        raise InputError(
            f"expected a range of at most {MAX_CONSTANT_BYTES} bytes, got {start}, {stop}, {step}"
        )
    return emit.constant(np.arange(start, stop, step).astype(storage_dtype(call.dtype("dtype") or "f32")))


def _hamming_window(emit: Emitter, call: Call) -> Result:
    """alpha - beta cos(2 pi i / n), where n is the size, less one unless periodic."""
    size, periodic = int(number(emit, call, 0, "the size")), bool(number(emit, call, 1, "periodic"))
    alpha, beta = number(emit, call, 2, "alpha"), number(emit, call, 3, "beta")
    period = max(size if periodic else size - 1, 1)
    window = alpha - beta * np.cos(2 * np.pi * np.arange(size) / period) if size > 1 else np.ones(size)
    return emit.constant(np.asarray(window).astype(storage_dtype(call.dtype("dtype") or "f32")))


def _triangle(lower: bool) -> Rule:
    def rule(emit: Emitter, call: Call) -> Result:
        """Elements outside the triangle of each matrix become zero."""
        x = call.tensor(0)
        k = int(number(emit, call, 1, "the diagonal")) if call.count > 1 else call.integer("k", 0)
        if x.tensor.rank < 2:
            raise InputError(f"expected matrices, got {x.type}")
        ones = np.ones(x.tensor.shape[-2:], np.bool_)
        inside = emit.constant(np.tril(ones, k) if lower else np.triu(ones, k))
        return emit.where(inside, x, 0)

    return rule


def _reshape(emit: Emitter, call: Call) -> Result:
    x = call.tensor(0)
    shape = list(integers(emit, call, 1, "the shape"))
    if shape.count(-1) == 1:
        rest = -prod(shape)
        shape[shape.index(-1)] = x.tensor.size // rest if rest else 0
    return emit.value("reshape", x, newshape=tuple(shape))


def _flatten(emit: Emitter, call: Call) -> Result:
    x = call.single()
    return emit.value("reshape", x, newshape=(x.tensor.size,))


def _broadcast_to(emit: Emitter, call: Call) -> Result:
    return emit.broadcast(call.tensor(0), integers(emit, call, 1, "the shape"))


def _permute_dims(emit: Emitter, call: Call) -> Result:
    x = call.single()
    axes = call.integers("axes", None)
    rank = x.tensor.rank
    return emit.transpose(x, range(rank)[::-1] if axes is None else axes_of(axes, rank, "axes"))


def _expand_dims(emit: Emitter, call: Call) -> Result:
    """The axes are those of the result."""
    x = call.single()
    axes = call.integers("axis")
    rank = x.tensor.rank + len(axes)
    new, old = set(axes_of(axes, rank, "axis")), iter(x.tensor.shape)
    return emit.reshape(x, [1 if d in new else next(old) for d in range(rank)])


def _concat(emit: Emitter, call: Call) -> Result:
    """Without an axis, tensors of rank 1 are joined."""
    parts = call.fields()
    along = call.integer("axis", None)
    return emit.value("concatenate", *parts, axis=axis_in(parts[0], along or 0) if parts else 0)


def _stack(emit: Emitter, call: Call) -> Result:
    parts = call.fields()
    if not parts:
        raise InputError("expected at least one tensor to stack, got none")
    along = axis_of(call.integer("axis", 0), parts[0].tensor.rank + 1, "axis")
    return emit.value("stack", *parts, axis=along)


def _split(emit: Emitter, call: Call) -> Result:
    """A number of sections gives parts of equal extent, of which the last may be shorter."""
    x = call.single()
    along, parts = axis_in(x, call.integer("axis", 0)), call.take("indices_or_sections")
    extent = x.tensor.shape[along]
    if type(parts) is int:
        if parts < 1:
            raise InputError(f"expected at least one section, got {parts}")
        each = -(-extent // parts)
        parts = tuple(min(each * i, extent) for i in range(1, parts))
    if not isinstance(parts, tuple) or any(type(p) is not int for p in parts):
        raise InputError(f"expected indices_or_sections to be integers, got {parts!r}")
    bounds = [min(p + extent if p < 0 else p, extent) for p in parts]
    return emit.values("split", (x,), indices=tuple(bounds), axis=along)


def _strided_slice(emit: Emitter, call: Call) -> Result:
    """Bounds are clamped to the tensor, also where they are assumed to lie within it."""
    x = call.tensor(0)
    call.drop("assume_inbound")
    axes = integers(emit, call, 1, "the axes")
    begin, end = integers(emit, call, 2, "the beginning"), integers(emit, call, 3, "the end")
    strides = integers(emit, call, 4, "the strides") if call.count > 4 else (1,) * len(axes)
    return _sliced(emit, x, begin, end, strides, axes)


def _dynamic_strided_slice(emit: Emitter, call: Call) -> Result:
    x = call.tensor(0)
    begin, end = integers(emit, call, 1, "the beginning"), integers(emit, call, 2, "the end")
    return _sliced(emit, x, begin, end, integers(emit, call, 3, "the strides"), range(x.tensor.rank))


def _sliced(
    emit: Emitter,
    x: Value,
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int],
    axes: Sequence[int],
) -> Value:
    bounds = resolve_slice(x.tensor.shape, tuple(begin), tuple(end), tuple(strides), tuple(axes))
    if bounds == ((0,) * x.tensor.rank, x.tensor.shape, (1,) * x.tensor.rank):
        return x
    return emit.value("strided_slice", x, begin=bounds[0], size=bounds[1], strides=bounds[2])


def _repeat(emit: Emitter, call: Call) -> Result:
    """Without an axis, the tensor counts as flattened."""
    x = call.single()
    repeats, along = call.integer("repeats"), call.integer("axis", None)
    if along is None:
        x, along = emit.reshape(x, (x.tensor.size,)), 0
    return emit.value("repeat", x, repeats=repeats, axis=axis_in(x, along))


def _collapse_sum_to(emit: Emitter, call: Call) -> Result:
    return collapsed(emit, call.tensor(0), integers(emit, call, 1, "the shape"))


def _pad(emit: Emitter, call: Call) -> Result:
    """Widths before and after alternate."""
    x = call.single()
    flat, mode = call.integers("pad_width"), call.text("pad_mode", "constant")
    value = call.real("pad_value", 0.0)
    if len(flat) != 2 * x.tensor.rank:
        raise InputError(f"expected {2 * x.tensor.rank} widths for {x.type}, got {len(flat)}")
    if mode not in _PAD_MODES:
        raise UnsupportedError(f"expected pad_mode among {', '.join(_PAD_MODES)}, got '{mode}'")
    return padded(emit, x, list(zip(flat[::2], flat[1::2], strict=True)), value, _PAD_MODES[mode])


def _pixel_shuffle(emit: Emitter, call: Call) -> Result:
    """[..., c r r, h, w] becomes [..., c, h r, w r]."""
    x = call.single()
    r = call.integer("upscale_factor")
    if x.tensor.rank < 3 or r < 1 or x.tensor.shape[-3] % (r * r):
        raise InputError(f"expected channels that {r} x {r} divides, got {x.type}")
    *batch, channels, h, w = x.tensor.shape
    count = len(batch)
    blocks = emit.reshape(x, (*batch, channels // (r * r), r, r, h, w))
    order = (*range(count), count, count + 3, count + 1, count + 4, count + 2)
    return emit.reshape(emit.transpose(blocks, order), (*batch, channels // (r * r), h * r, w * r))


def _extents(of: str) -> Rule:
    def rule(emit: Emitter, call: Call) -> Result:
        x = call.single()
        return emit.constant(np.asarray(getattr(x.tensor, of), np.int64))

    return rule


def _nonzero(emit: Emitter, call: Call) -> Result:
    """Of a constant only: how many columns there are depends on the values."""
    array = array_of(emit, call, 0, "the operand of nonzero")
    return emit.constant(np.stack(np.nonzero(array)).astype(np.int64))


RULES: Mapping[str, Rule] = {
    **{name: SHARED[name] for name in _AS_RELAY},
    "zeros": _of_shape(0),
    "ones": _of_shape(1),
    "full": _full,
    "eye": _eye,
    "eye_like": _eye_like,
    "arange": _arange,
    "hamming_window": _hamming_window,
    "tril": _triangle(lower=True),
    "triu": _triangle(lower=False),
    "null_value": lambda emit, call: Absent("a value that is left out"),
    "reshape": _reshape,
    "flatten": _flatten,
    "broadcast_to": _broadcast_to,
    "permute_dims": _permute_dims,
    "expand_dims": _expand_dims,
    "concat": _concat,
    "stack": _stack,
    "split": _split,
    "strided_slice": _strided_slice,
    "dynamic_strided_slice": _dynamic_strided_slice,
    "repeat": _repeat,
    "tile": tile("repeats"),
    "flip": direct("reverse", axis=axis()),
    "collapse_sum_to": _collapse_sum_to,
    "nn.pad": _pad,
    "nn.pixel_shuffle": _pixel_shuffle,
    "shape_of": _extents("shape"),
    "size": _extents("size"),
    "nonzero": _nonzero,
}
