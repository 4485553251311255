"""Relay operators that pad, move blocks of pixels, and change between layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Attr, Value
from tilewright.ir.types import storage_dtype

Pairs = Sequence[tuple[int, int]]


def cropped(emit: Emitter, data: Value, crops: Pairs) -> Value:
    """`data` without so many elements at both ends of each dimension."""
    if not any(map(any, crops)):
        return data
    x = data.tensor
    size = tuple(n - lo - hi for n, (lo, hi) in zip(x.shape, crops, strict=True))
    begin = tuple(lo for lo, _ in crops)
    if min(size) < 0:
        raise InputError(f"expected to crop at most all elements of {x}, got {tuple(crops)}")
    return emit.value("strided_slice", data, begin=begin, size=size, strides=(1,) * x.rank)


def padded(
    emit: Emitter, data: Value, widths: Pairs, value: Value | float = 0.0, mode: str = "constant"
) -> Value:
    """`data` padded by `widths` per dimension; negative ones crop what is padded at the other end."""
    if len(widths) != data.tensor.rank:
        raise InputError(f"expected {data.tensor.rank} pairs of widths for {data.type}, got {len(widths)}")
    before = tuple(max(0, lo) for lo, _ in widths)
    after = tuple(max(0, hi) for _, hi in widths)
    attrs: dict[str, Attr] = {"pad_before": before, "pad_after": after, "pad_mode": mode}
    if any(before + after) and isinstance(value, Value):
        data = emit.value("pad", data, value, **attrs)
    elif any(before + after) and not isinstance(value, Value):
        data = emit.value("pad", data, pad_value=value, **attrs)
    return cropped(emit, data, [(max(0, -lo), max(0, -hi)) for lo, hi in widths])


def _dilate(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Elements of x a stride apart, among elements of one value."""
    (data,) = emit.tensors(args, 1)
    x, strides = data.tensor, attrs.integers("strides")
    if len(strides) != x.rank or min(strides, default=1) < 1:
        raise InputError(f"expected {x.rank} positive strides, got {strides}")
    value = emit.constant(np.asarray(attrs.real("dilation_value", 0.0)).astype(storage_dtype(x.dtype)))
    shape = tuple(max(0, (n - 1) * step + 1) for n, step in zip(x.shape, strides, strict=True))
    among = emit.value("broadcast_to", value, shape=shape)
    return emit.value("strided_set", among, data, begin=(0,) * x.rank, strides=strides)


def _pad(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The value to pad with is an operand, constant or not, of any dtype."""
    data, value = emit.tensors(args, 2)
    widths, mode = attrs.pairs("pad_width"), attrs.text("pad_mode", "constant")
    if mode != "constant":
        return padded(emit, data, widths, mode=mode)
    known = emit.known(value)
    if known is not None and known.size == 1:
        return padded(emit, data, widths, known.reshape(()).item())
    return padded(emit, data, widths, emit.value("cast", value, dtype=data.tensor.dtype))


def _mirror_pad(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    mode = attrs.text("mode", "SYMMETRIC")
    if mode not in ("SYMMETRIC", "REFLECT"):
        raise InputError(f"expected mode SYMMETRIC or REFLECT, got '{mode}'")
    return padded(emit, data, attrs.pairs("pad_width"), mode=mode.lower())


#: Relay's orders of channels -> ours. Its own description says CDR; importers of TVM also write CRD.
_ORDERS = {"DCR": "DCR", "CDR": "CRD", "CRD": "CRD"}


def _depth_to_space(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    order = attrs.text("mode", "DCR")
    if order not in _ORDERS:
        raise InputError(f"expected mode DCR or CDR, got '{order}'")
    return _blocks(emit, "depth_to_space", args, attrs, _ORDERS[order])


def _space_to_depth(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The attributes are those of depth_to_space, but there is one order only, whatever the mode says."""
    attrs.drop("mode")
    return _blocks(emit, "space_to_depth", args, attrs, "DCR")


def _blocks(emit: Emitter, name: str, args: Sequence[Result], attrs: Attributes, order: str) -> Result:
    return emit.value(
        name,
        *emit.tensors(args, 1),
        block_size=attrs.integer("block_size", 1),
        layout=attrs.text("layout", "NCHW"),
        mode=order,
    )


def _space_to_batch_nd(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Blocks of the dimensions after the first become further images of the batch."""
    (data,) = emit.tensors(args, 1)
    block, paddings = attrs.integers("block_shape", (1, 1)), attrs.pairs("paddings")
    k, rank = len(block), data.tensor.rank
    _check_block(data, block, paddings)
    rest = ((0, 0),) * (rank - 1 - k)
    x = padded(emit, data, ((0, 0), *paddings, *rest), attrs.real("pad_value", 0.0))
    n, *extents = x.tensor.shape
    if any(e % s for e, s in zip(extents, block, strict=False)):
        raise InputError(f"expected padded dimensions that divide into blocks {block}, got {x.type}")
    split = [part for e, s in zip(extents, block, strict=False) for part in (e // s, s)]
    x = emit.value("reshape", x, newshape=(n, *split, *extents[k:]))
    inside, outside = range(2, 2 * k + 1, 2), range(1, 2 * k, 2)
    x = emit.value("transpose", x, axes=(*inside, 0, *outside, *range(2 * k + 1, rank + k)))
    shape = (n * prod(block), *split[::2], *extents[k:])
    return emit.value("reshape", x, newshape=shape)


def _batch_to_space_nd(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The inverse: images of the batch are put together to blocks, and edges cropped."""
    (data,) = emit.tensors(args, 1)
    block, crops = attrs.integers("block_shape", (1, 1)), attrs.pairs("crops")
    k, rank = len(block), data.tensor.rank
    _check_block(data, block, crops)
    n, *extents = data.tensor.shape
    if n % prod(block):
        raise InputError(f"expected a batch that is a multiple of {prod(block)}, got {data.type}")
    n //= prod(block)
    x = emit.value("reshape", data, newshape=(*block, n, *extents))
    woven = [axis for d in range(k) for axis in (k + 1 + d, d)]
    x = emit.value("transpose", x, axes=(k, *woven, *range(2 * k + 1, rank + k)))
    whole = [e * s for e, s in zip(extents, block, strict=False)]
    x = emit.value("reshape", x, newshape=(n, *whole, *extents[k:]))
    return cropped(emit, x, ((0, 0), *crops, *((0, 0),) * (rank - 1 - k)))


def _check_block(data: Value, block: Sequence[int], widths: Pairs) -> None:
    good = 1 <= len(block) < data.tensor.rank and len(widths) == len(block)
    if not good or min(block) < 1 or min(map(min, widths)) < 0:
        raise InputError(
            f"expected positive block sizes and non-negative pairs for dimensions after the first of "
            f"{data.type}, got {tuple(block)} and {tuple(widths)}"
        )


_AXIS = re.compile(r"(\d*)([A-Za-z])")


def _axes(layout: str) -> list[tuple[str, int]]:
    """Axes of a layout in order: letter and, for a lower-case one, the size of its blocks."""
    found = _AXIS.findall(layout)
    letters = [letter for _, letter in found]
    blocked = [bool(count) == letter.islower() for count, letter in found]
    split = all(letter.upper() in letters for letter in letters)
    if (
        not split
        or not all(blocked)
        or len(set(letters)) < len(letters)
        or "".join(count + letter for count, letter in found) != layout
    ):
        raise UnsupportedError(f"expected a layout such as NCHW or NCHW4c, got '{layout}'")
    return [(letter, int(count or 0)) for count, letter in found]


def _layout_transform(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Blocks are joined with their dimensions, dimensions reordered and cut again, zeros filling the last."""
    (x,) = emit.tensors(args, 1)
    source, wanted = _axes(attrs.text("src_layout")), _axes(attrs.text("dst_layout"))
    whole = [letter for letter, _ in wanted if letter.isupper()]
    if sorted(whole) != sorted(letter for letter, _ in source if letter.isupper()):
        raise InputError("expected two layouts of the same dimensions")
    if x.tensor.rank != len(source):
        raise InputError(f"expected an operand of rank {len(source)}, got {x.type}")
    extents = dict(zip((letter for letter, _ in source), x.tensor.shape, strict=True))
    for letter, count in source:
        if count and extents[letter] != count:
            raise InputError(f"expected blocks of {count} in '{letter}', got {x.type}")
    parts = [p for letter in whole for p in (letter, letter.lower()) if p in extents]
    x = _ordered(emit, x, [letter for letter, _ in source], parts)
    sizes = {d: extents[d] * extents.get(d.lower(), 1) for d in whole}
    blocks = {letter: count for letter, count in wanted if count}
    lacking = [-sizes[d] % blocks.get(d.lower(), 1) for d in whole]
    if any(lacking):
        x = emit.value("reshape", x, newshape=tuple(sizes.values()))
        x = padded(emit, x, [(0, n) for n in lacking])
    cut = {
        d: (sizes[d] + n) // blocks.get(d.lower(), 1) for d, n in zip(whole, lacking, strict=True)
    } | blocks
    parts = [p for letter in whole for p in (letter, letter.lower()) if p in cut]
    shape = tuple(cut[p] for p in parts)
    if shape != x.tensor.shape:
        x = emit.value("reshape", x, newshape=shape)
    return _ordered(emit, x, parts, [letter for letter, _ in wanted])


def _ordered(emit: Emitter, x: Value, letters: Sequence[str], wanted: Sequence[str]) -> Value:
    if list(letters) == list(wanted):
        return x
    return emit.value("transpose", x, axes=tuple(letters.index(d) for d in wanted))


RULES: Mapping[str, Rule] = {
    "nn.dilate": _dilate,
    "nn.pad": _pad,
    "nn.mirror_pad": _mirror_pad,
    "nn.depth_to_space": _depth_to_space,
    "nn.space_to_depth": _space_to_depth,
    "nn.space_to_batch_nd": _space_to_batch_nd,
    "nn.batch_to_space_nd": _batch_to_space_nd,
    "layout_transform": _layout_transform,
}
