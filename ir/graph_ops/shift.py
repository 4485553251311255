"""Spatial shift: every channel moves by its own offset (the shift modules that replace spatial kernels)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.division import undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Gradient, movement
from tilewright.ir.graph_ops.layouts import arranged, check_layout, permuted
from tilewright.ir.graph_ops.operands import require, require_integer, require_rank, tensors
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type

#: layouts of x and of the result
SHIFT_LAYOUTS = ("NCHW", "NHWC")


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, offsets = tensors(types)
    require_rank(x, 4)
    require_integer(offsets)
    check_layout(attrs["data_layout"], SHIFT_LAYOUTS, "data_layout")
    _, channels, _, _ = arranged(x.shape, attrs["data_layout"], "NCHW")
    fits = offsets.shape == (channels, 2)
    require(fits, f"expected offsets of shape ({channels}, 2), one (dy, dx) per channel, got {offsets}")
    return [TensorType(x.dtype, x.shape)]


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x = permuted(inputs[0], attrs["data_layout"], "NCHW")
    _, channels, height, width = x.shape
    offsets = inputs[1].astype(np.int64)
    rows = np.arange(height)[None, :] + offsets[:, :1]
    columns = np.arange(width)[None, :] + offsets[:, 1:]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    at = np.arange(channels)[:, None, None]
    y, z = (np.clip(v, 0, max(0, n - 1)) for v, n in ((rows, height), (columns, width)))
    moved = x[:, at, y[:, :, None], z[:, None, :]]
    out = np.where(inside, moved, np.zeros((), x.dtype))
    return [np.ascontiguousarray(permuted(out, "NCHW", attrs["data_layout"]))]


define(
    "graph.shift",
    ("x", "offsets"),
    "result[n, c, y, x] = x[n, c, y + offsets[c, 0], x + offsets[c, 1]], zero outside the image.",
    attrs={"data_layout": AttrDef("str", "NCHW", "NCHW or NHWC, of x and of the result")},
    infer=_infer,
    evaluate=_evaluate,
    facts=movement(Elements.MOVES, undivided, attributes_stay, gradient=Gradient.RULE),
)
