"""Operators that pad, move blocks of pixels, and change between layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.movement import Pairs, cropped, padded
from tilewright.frontends.importing.rules import direct, integer, text
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value


def _dilate(emit: Emitter, call: Call) -> Result:
    """Elements of x a stride apart, among elements of one value."""
    data = call.single()
    x, strides = data.tensor, call.integers("strides")
    if len(strides) != x.rank or min(strides, default=1) < 1:
        raise InputError(f"expected {x.rank} positive strides, got {strides}")
    value = emit.full(call.real("dilation_value", 0.0), x.dtype)
    shape = tuple(max(0, (n - 1) * step + 1) for n, step in zip(x.shape, strides, strict=True))
    among = emit.value("broadcast_to", value, shape=shape)
    return emit.value("strided_set", among, data, begin=(0,) * x.rank, strides=strides)


def _pad(emit: Emitter, call: Call) -> Result:
    """The value to pad with is an operand, constant or not, of any dtype."""
    data, value = call.tensors(2)
    return padded(emit, data, call.pairs("pad_width"), value, call.text("pad_mode", "constant"))


def _mirror_pad(emit: Emitter, call: Call) -> Result:
    data = call.single()
    mode = call.choice("mode", ("SYMMETRIC", "REFLECT"), "SYMMETRIC")
    return padded(emit, data, call.pairs("pad_width"), mode=mode.lower())


#: Relay's orders of channels -> ours. Its own description says CDR; importers of TVM also write CRD.
_ORDERS = {"DCR": "DCR", "CDR": "CRD", "CRD": "CRD"}
_BLOCKS = {"block_size": integer(1), "layout": text("NCHW")}


def _depth_to_space(emit: Emitter, call: Call) -> Result:
    mode = _ORDERS[call.choice("mode", tuple(_ORDERS), "DCR")]
    return direct("depth_to_space", **_BLOCKS, mode=mode)(emit, call)


def _space_to_depth(emit: Emitter, call: Call) -> Result:
    """The attributes are those of depth_to_space, but there is one order only, whatever the mode says."""
    call.drop("mode")
    return direct("space_to_depth", **_BLOCKS, mode="DCR")(emit, call)


def _space_to_batch_nd(emit: Emitter, call: Call) -> Result:
    """Blocks of the dimensions after the first become further images of the batch."""
    data = call.single()
    block, paddings = call.integers("block_shape", (1, 1)), call.pairs("paddings")
    k, rank = len(block), data.tensor.rank
    _check_block(data, block, paddings)
    rest = ((0, 0),) * (rank - 1 - k)
    x = padded(emit, data, ((0, 0), *paddings, *rest), call.real("pad_value", 0.0))
    n, *extents = x.tensor.shape
    if any(e % s for e, s in zip(extents, block, strict=False)):
        raise InputError(f"expected padded dimensions that divide into blocks {block}, got {x.type}")
    split = [part for e, s in zip(extents, block, strict=False) for part in (e // s, s)]
    x = emit.value("reshape", x, newshape=(n, *split, *extents[k:]))
    inside, outside = range(2, 2 * k + 1, 2), range(1, 2 * k, 2)
    x = emit.value("transpose", x, axes=(*inside, 0, *outside, *range(2 * k + 1, rank + k)))
    return emit.value("reshape", x, newshape=(n * prod(block), *split[::2], *extents[k:]))


def _batch_to_space_nd(emit: Emitter, call: Call) -> Result:
    """The inverse: images of the batch are put together to blocks, and edges cropped."""
    data = call.single()
    block, crops = call.integers("block_shape", (1, 1)), call.pairs("crops")
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
    axes = _AXIS.findall(layout)
    letters = [letter for _, letter in axes]
    blocked = [bool(count) == letter.islower() for count, letter in axes]
    split = all(letter.upper() in letters for letter in letters)
    if (
        not split
        or not all(blocked)
        or len(set(letters)) < len(letters)
        or "".join(count + letter for count, letter in axes) != layout
    ):
        raise UnsupportedError(f"expected a layout such as NCHW or NCHW4c, got '{layout}'")
    return [(letter, int(count or 0)) for count, letter in axes]


def relaid(emit: Emitter, x: Value, layout: str, target: str) -> Value:
    """`x` in another layout; both may have blocks, such as NCHW8c.

    Blocks are joined with their dimensions, dimensions reordered and cut again, zeros filling the last.
    """
    if layout == target:
        return x
    before, after = _axes(layout), _axes(target)
    whole = [letter for letter, _ in after if letter.isupper()]
    if sorted(whole) != sorted(letter for letter, _ in before if letter.isupper()):
        raise InputError("expected two layouts of the same dimensions")
    if x.tensor.rank != len(before):
        raise InputError(f"expected an operand of rank {len(before)}, got {x.type}")
    extents = dict(zip((letter for letter, _ in before), x.tensor.shape, strict=True))
    for letter, count in before:
        if count and extents[letter] != count:
            raise InputError(f"expected blocks of {count} in '{letter}', got {x.type}")
    parts = [p for letter in whole for p in (letter, letter.lower()) if p in extents]
    x = _ordered(emit, x, [letter for letter, _ in before], parts)
    sizes = {d: extents[d] * extents.get(d.lower(), 1) for d in whole}
    blocks = {letter: count for letter, count in after if count}
    lacking = [-sizes[d] % blocks.get(d.lower(), 1) for d in whole]
    if any(lacking):
        x = emit.value("reshape", x, newshape=tuple(sizes.values()))
        x = padded(emit, x, [(0, n) for n in lacking])
    cut = {
        d: (sizes[d] + n) // blocks.get(d.lower(), 1) for d, n in zip(whole, lacking, strict=True)
    } | blocks
    parts = [p for letter in whole for p in (letter, letter.lower()) if p in cut]
    x = emit.reshape(x, [cut[p] for p in parts])
    return _ordered(emit, x, parts, [letter for letter, _ in after])


def _ordered(emit: Emitter, x: Value, letters: Sequence[str], order: Sequence[str]) -> Value:
    return emit.transpose(x, [letters.index(d) for d in order])


def _layout_transform(emit: Emitter, call: Call) -> Result:
    return relaid(emit, call.single(), call.text("src_layout"), call.text("dst_layout"))


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
