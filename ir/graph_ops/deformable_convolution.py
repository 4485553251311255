"""Two-dimensional convolution whose taps are displaced by offsets read from a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

import numpy as np

from tilewright.ir.division import undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass
from tilewright.ir.graph_ops.convolution import (
    ConvolutionGeometry,
    convolution_of,
    layout_attr,
    multiplied_taps,
    window_attrs,
)
from tilewright.ir.graph_ops.layouts import Window, arranged, kernel_layouts, permuted
from tilewright.ir.graph_ops.linear import OUT_DTYPE, result_dtype
from tilewright.ir.graph_ops.operands import alike, dtype_of, require, require_float, wide
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype


def deformable_convolution_of(
    x: TensorType, offset: TensorType, w: TensorType, attrs: Attrs
) -> tuple[ConvolutionGeometry, int]:
    """The extents of the convolution and input channels per deformable group; InputError for misfits."""
    require_float(x)
    g = convolution_of(x, w, attrs, 2)
    parts, channels = attrs["deformable_groups"], g.groups * g.channels
    good = parts >= 1 and channels % parts == 0 and not g.multiplier_in_kernel
    require(good, f"expected {channels} channels divisible by {parts} deformable groups")
    rows, columns = g.windows
    fitting = (g.batch, parts * rows.kernel * columns.kernel * 2, rows.count, columns.count)
    shape = arranged(fitting, "NCHW", attrs["data_layout"])
    require(offset.shape == shape, f"expected offsets of shape {shape}, got {offset}")
    return g, channels // parts


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, offset, w = alike(types)
    g, _ = deformable_convolution_of(x, offset, w, attrs)
    return [TensorType(result_dtype(x, attrs), arranged(g.result, "NCHW", attrs["data_layout"]))]


def _places(w: Window, tap: int, offset: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where a tap of every window reads along one axis (a real number), and whether that is inside."""
    start = np.arange(w.count) * w.stride - w.before + tap * w.dilation
    at = offset + start.reshape((-1, 1) if axis == 0 else (1, -1)).astype(offset.dtype)
    at = np.clip(at, -1, w.size)
    return at, (at >= 0) & (at < w.size)


def _sampled(x: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """[N, C, Y, X] between the pixels of [N, C, H, W] at [N, Y, X] places; pixels outside count as 0."""
    n, _, h, w = x.shape
    out: np.ndarray = np.zeros((n, x.shape[1], *rows.shape[1:]), x.dtype)
    samples = np.arange(n)[:, None, None]
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    for down, right in product((0, 1), (0, 1)):
        y, z = top + down, left + right
        share = (rows - top if down else 1 - (rows - top)) * (
            columns - left if right else 1 - (columns - left)
        )
        inside = (y >= 0) & (y < h) & (z >= 0) & (z < w)
        pixels = x[samples, :, np.clip(y, 0, h - 1), np.clip(z, 0, w - 1)]
        out += np.moveaxis(pixels, -1, 1) * np.where(inside, share, 0).astype(x.dtype)[:, None]
    return out


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    data, offset, weight = (TensorType(dtype_of(v), v.shape) for v in inputs)
    g, per_part = deformable_convolution_of(data, offset, weight, attrs)
    dtype = str(attrs["out_dtype"] or dtype_of(inputs[0]))
    x = wide(permuted(inputs[0], attrs["data_layout"], "NCHW"), dtype_of(inputs[0]))
    offsets = wide(permuted(inputs[1], attrs["data_layout"], "NCHW"), dtype_of(inputs[1]))
    rows, columns = g.windows
    taps = np.zeros((*x.shape[:2], rows.kernel, columns.kernel, rows.count, columns.count), x.dtype)
    for part, r, s in np.ndindex(attrs["deformable_groups"], rows.kernel, columns.kernel):
        at = 2 * ((part * rows.kernel + r) * columns.kernel + s)
        y, inside = _places(rows, r, offsets[:, at], 0)
        z, across = _places(columns, s, offsets[:, at + 1], 1)
        channels = slice(part * per_part, (part + 1) * per_part)
        values = _sampled(x[:, channels], y, z)
        taps[:, channels, r, s] = np.where((inside & across)[:, None], values, 0)
    kernel = wide(permuted(inputs[2], attrs["kernel_layout"], "OIHW"), dtype)
    out = multiplied_taps(wide(taps, dtype), kernel, g).reshape(g.result)
    return [permuted(out.astype(numpy_dtype(dtype), copy=False), "NCHW", attrs["data_layout"])]


def _flops(op: Op) -> int:
    """2 x results x summed products; the interpolation of elements is not counted."""
    x, offset, weight = (v.tensor for v in op.operands)
    geometry, _ = deformable_convolution_of(x, offset, weight, op.attributes)
    return 2 * op.result.tensor.size * geometry.channels * prod(w.kernel for w in geometry.windows)


define(
    "graph.deformable_conv2d",
    ("x", "offset", "weight"),
    "A convolution whose taps read between the pixels of x, at their place plus an offset (down, right) "
    "per deformable group, tap and result pixel; places outside x give 0.",
    attrs={
        **window_attrs(2),
        "deformable_groups": AttrDef("int", 1),
        "data_layout": layout_attr(2),
        "kernel_layout": AttrDef("str", "OIHW", ", ".join(kernel_layouts(2))),
        "out_dtype": OUT_DTYPE,
    },
    infer=_infer,
    evaluate=_evaluate,
    facts=Facts(
        elements=Elements.CONTRACTS,
        flops=_flops,
        precision=Precision.NARROW,
        division=undivided,
        extents=attributes_stay,
        report=ReportClass.CONVOLUTION,
        gradient=Gradient.DERIVED,
        exact=False,
    ),
)
