"""Blocks of pixels moved into channels and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.division import OperandRows, SlicedOp, by_rules, of_image
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Gradient, movement
from tilewright.ir.graph_ops.layouts import permuted
from tilewright.ir.graph_ops.operands import require, require_rank, tensors
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type

LAYOUTS = ("NCHW", "NHWC")
MODES = ("DCR", "CRD")
_ATTRS = {
    "block_size": AttrDef("int"),
    "layout": AttrDef("str", "NCHW", "NCHW or NHWC"),
    "mode": AttrDef(
        "str", "DCR", "order of channels: DCR (row in block, column, channel) or CRD (channel, row, column)"
    ),
}


def _checked(types: Sequence[Type], attrs: Attrs) -> tuple[TensorType, int]:
    (x,) = tensors(types)
    require_rank(x, 4)
    size, layout, mode = attrs["block_size"], attrs["layout"], attrs["mode"]
    require(size >= 1, f"expected a block size of at least 1, got {size}")
    require(layout in LAYOUTS, f"expected 'layout' among {', '.join(LAYOUTS)}, got '{layout}'")
    require(mode in MODES, f"expected 'mode' among {', '.join(MODES)}, got '{mode}'")
    return x, size


def _rows_to_space(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Rows of the image that whole blocks make."""
    size = op.integer("block_size")
    if str(op["layout"])[axis] == "C" or start % size or end % size:
        return None
    return SlicedOp((OperandRows(axis, start // size, end // size),), align=size)


def _rows_to_depth(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """The rows of whole blocks."""
    size = op.integer("block_size")
    if str(op["layout"])[axis] == "C":
        return None
    return SlicedOp((OperandRows(axis, start * size, end * size),))


def _infer_depth_to_space(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, size = _checked(types, attrs)
    n, c, h, w = (x.shape[attrs["layout"].index(d)] for d in "NCHW")
    square = size * size
    require(c % square == 0, f"expected a multiple of {square} channels, got {c} in {x}")
    return [_typed(x, attrs, (n, c // square, h * size, w * size))]


def _infer_space_to_depth(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, size = _checked(types, attrs)
    n, c, h, w = (x.shape[attrs["layout"].index(d)] for d in "NCHW")
    good = h % size == 0 and w % size == 0
    require(good, f"expected height and width to divide into blocks of {size}, got {x}")
    return [_typed(x, attrs, (n, c * size * size, h // size, w // size))]


def _typed(x: TensorType, attrs: Attrs, nchw: tuple[int, ...]) -> TensorType:
    return TensorType(x.dtype, tuple(nchw["NCHW".index(d)] for d in attrs["layout"]))


def _depth_to_space(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, size = permuted(inputs[0], attrs["layout"], "NCHW"), attrs["block_size"]
    n, c, h, w = x.shape
    c //= size * size
    if attrs["mode"] == "DCR":
        blocks = x.reshape(n, size, size, c, h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape(n, c, size, size, h, w).transpose(0, 1, 4, 2, 5, 3)
    return [permuted(blocks.reshape(n, c, h * size, w * size), "NCHW", attrs["layout"])]


def _space_to_depth(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, size = permuted(inputs[0], attrs["layout"], "NCHW"), attrs["block_size"]
    n, c, h, w = x.shape
    h, w = h // size, w // size
    order = (0, 3, 5, 1, 2, 4) if attrs["mode"] == "DCR" else (0, 1, 3, 5, 2, 4)
    blocks = x.reshape(n, c, h, size, w, size).transpose(order)
    return [permuted(blocks.reshape(n, c * size * size, h, w), "NCHW", attrs["layout"])]


define(
    "graph.depth_to_space",
    ("x",),
    "An image of `block_size` times the height and width from one of as many times squared the channels.",
    attrs=_ATTRS,
    infer=_infer_depth_to_space,
    evaluate=_depth_to_space,
    facts=movement(
        Elements.MOVES,
        by_rules(_rows_to_space, labels=of_image("N")),
        attributes_stay,
        gradient=Gradient.RULE,
    ),
)
define(
    "graph.space_to_depth",
    ("x",),
    "The inverse of depth_to_space: the pixels of each block become channels.",
    attrs=_ATTRS,
    infer=_infer_space_to_depth,
    evaluate=_space_to_depth,
    facts=movement(
        Elements.MOVES,
        by_rules(_rows_to_depth, labels=of_image("N")),
        attributes_stay,
        gradient=Gradient.RULE,
    ),
)
