"""Relax operators that move, join and cut tensors. Shapes and bounds are operands, known to be constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relax.static import (
    array_of,
    axes_in,
    axis_in,
    integers,
    reshaped,
    transposed,
)
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.rules.movement import collapsed
from tilewright.frontends.relay.rules.padding import padded
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.movement import resolve_slice
from tilewright.ir.graph_ops.operands import axes_of, axis_of
from tilewright.ir.nodes import Value

_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "edge": "edge"}


def _reshape(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x = emit.tensor(args, 0)
    shape = list(integers(emit, args, 1, "the shape"))
    if shape.count(-1) == 1:
        rest = -prod(shape)
        shape[shape.index(-1)] = x.tensor.size // rest if rest else 0
    return emit.value("reshape", x, newshape=tuple(shape))


def _flatten(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    return emit.value("reshape", x, newshape=(x.tensor.size,))


def _broadcast_to(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, shape = emit.tensor(args, 0), integers(emit, args, 1, "the shape")
    return x if x.tensor.shape == shape else emit.value("broadcast_to", x, shape=shape)


def _permute_dims(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    axes = attrs.integers("axes", None)
    if axes is None:
        return transposed(emit, x, range(x.tensor.rank)[::-1])
    return transposed(emit, x, axes_of(axes, x.tensor.rank, "axes"))


def _expand_dims(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The axes are those of the result."""
    (x,) = emit.tensors(args, 1)
    given = attrs.integers("axis")
    rank = x.tensor.rank + len(given)
    new, old = set(axes_of(given, rank, "axis")), iter(x.tensor.shape)
    return reshaped(emit, x, [1 if d in new else next(old) for d in range(rank)])


def _squeeze(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Without axes, every dimension of extent 1 goes."""
    (x,) = emit.tensors(args, 1)
    axes = attrs.integers("axis", None)
    return emit.value("squeeze", x, axis=None if axes is None else axes_in(x, axes))


def _concat(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Without an axis, tensors of rank 1 are joined."""
    parts = emit.fields(args)
    axis = attrs.integer("axis", None)
    return emit.value("concatenate", *parts, axis=axis_in(parts[0], axis or 0) if parts else 0)


def _stack(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    parts = emit.fields(args)
    if not parts:
        raise InputError("expected at least one tensor to stack, got none")
    return emit.value(
        "stack", *parts, axis=axis_of(attrs.integer("axis", 0), parts[0].tensor.rank + 1, "axis")
    )


def _split(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """A number of sections gives parts of equal extent, of which the last may be shorter."""
    (x,) = emit.tensors(args, 1)
    axis, parts = axis_in(x, attrs.integer("axis", 0)), attrs.take("indices_or_sections")
    extent = x.tensor.shape[axis]
    if type(parts) is int:
        if parts < 1:
            raise InputError(f"expected at least one section, got {parts}")
        each = -(-extent // parts)
        parts = tuple(min(each * i, extent) for i in range(1, parts))
    if not isinstance(parts, tuple) or any(type(p) is not int for p in parts):
        raise InputError(f"expected indices_or_sections to be integers, got {parts!r}")
    bounds = [min(p + extent if p < 0 else p, extent) for p in parts]
    return emit.values("split", (x,), indices=tuple(bounds), axis=axis)


def _strided_slice(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Bounds are clamped to the tensor, also where they are assumed to lie within it."""
    x = emit.tensor(args, 0)
    attrs.drop("assume_inbound")
    axes = integers(emit, args, 1, "the axes")
    begin, end = integers(emit, args, 2, "the beginning"), integers(emit, args, 3, "the end")
    strides = integers(emit, args, 4, "the strides") if len(args) > 4 else (1,) * len(axes)
    return _sliced(emit, x, begin, end, strides, axes)


def _dynamic_strided_slice(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x = emit.tensor(args, 0)
    begin, end = integers(emit, args, 1, "the beginning"), integers(emit, args, 2, "the end")
    return _sliced(emit, x, begin, end, integers(emit, args, 3, "the strides"), range(x.tensor.rank))


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


def _repeat(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Without an axis, the tensor counts as flattened."""
    (x,) = emit.tensors(args, 1)
    repeats, axis = attrs.integer("repeats"), attrs.integer("axis", None)
    if axis is None:
        x, axis = reshaped(emit, x, (x.tensor.size,)), 0
    return emit.value("repeat", x, repeats=repeats, axis=axis_in(x, axis))


def _tile(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    reps = attrs.integers("repeats")
    return emit.value("tile", x, reps=(1,) * (x.tensor.rank - len(reps)) + reps)


def _flip(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    return emit.value("reverse", x, axis=axis_in(x, attrs.integer("axis")))


def _meshgrid(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """ij keeps the order of the operands as that of the axes, xy swaps the first two."""
    parts = emit.fields(args)
    indexing, rank = attrs.text("indexing", "ij"), len(parts)
    places = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else list(range(rank))
    shape = [0] * rank
    for part, place in zip(parts, places, strict=True):
        shape[place] = part.tensor.size
    out = []
    for part, place in zip(parts, places, strict=True):
        ramp = reshaped(emit, part, [part.tensor.size if d == place else 1 for d in range(rank)])
        out.append(emit.value("broadcast_to", ramp, shape=tuple(shape)))
    return tuple(out)


def _collapse_sum_to(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return collapsed(emit, emit.tensor(args, 0), integers(emit, args, 1, "the shape"))


def _collapse_sum_like(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, like = emit.tensors(args, 2)
    return collapsed(emit, x, like.tensor.shape)


def _pad(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Widths before and after alternate; circular padding joins slices of the tensor itself."""
    (x,) = emit.tensors(args, 1)
    flat, mode = attrs.integers("pad_width"), attrs.text("pad_mode", "constant")
    value = attrs.real("pad_value", 0.0)
    if len(flat) != 2 * x.tensor.rank:
        raise InputError(f"expected {2 * x.tensor.rank} widths for {x.type}, got {len(flat)}")
    widths = list(zip(flat[::2], flat[1::2], strict=True))
    if mode != "circular":
        if mode not in _PAD_MODES:
            raise UnsupportedError(f"expected pad_mode among {', '.join(_PAD_MODES)}, circular, got '{mode}'")
        return padded(emit, x, widths, value, _PAD_MODES[mode])
    for axis, (before, after) in enumerate(widths):
        extent = x.tensor.shape[axis]
        index = np.arange(-before, extent + after) % max(extent, 1)
        if before or after:
            x = emit.value("take", x, emit.constant(index), axis=axis, mode="clip")
    return x


def _pixel_shuffle(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """[..., c r r, h, w] becomes [..., c, h r, w r]."""
    (x,) = emit.tensors(args, 1)
    r = attrs.integer("upscale_factor")
    if x.tensor.rank < 3 or r < 1 or x.tensor.shape[-3] % (r * r):
        raise InputError(f"expected channels that {r} x {r} divides, got {x.type}")
    *batch, channels, h, w = x.tensor.shape
    count = len(batch)
    blocks = reshaped(emit, x, (*batch, channels // (r * r), r, r, h, w))
    order = (*range(count), count, count + 3, count + 1, count + 4, count + 2)
    return reshaped(emit, transposed(emit, blocks, order), (*batch, channels // (r * r), h * r, w * r))


def _shape_of(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    return emit.constant(np.asarray(x.tensor.shape, np.int64))


def _size(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    return emit.constant(np.asarray(x.tensor.size, np.int64))


def _nonzero(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Of a constant only: how many columns there are depends on the values."""
    return emit.constant(
        np.stack(np.nonzero(array_of(emit, args, 0, "the operand of nonzero"))).astype(np.int64)
    )


RULES: Mapping[str, Rule] = {
    "reshape": _reshape,
    "flatten": _flatten,
    "broadcast_to": _broadcast_to,
    "permute_dims": _permute_dims,
    "expand_dims": _expand_dims,
    "squeeze": _squeeze,
    "concat": _concat,
    "stack": _stack,
    "split": _split,
    "strided_slice": _strided_slice,
    "dynamic_strided_slice": _dynamic_strided_slice,
    "repeat": _repeat,
    "tile": _tile,
    "flip": _flip,
    "meshgrid": _meshgrid,
    "collapse_sum_to": _collapse_sum_to,
    "collapse_sum_like": _collapse_sum_like,
    "nn.pad": _pad,
    "nn.pixel_shuffle": _pixel_shuffle,
    "shape_of": _shape_of,
    "size": _size,
    "nonzero": _nonzero,
}
