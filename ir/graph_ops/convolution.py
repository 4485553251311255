"""Two-dimensional convolution (groups, depthwise, dilation, layouts) and its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.graph_ops.layouts import (
    DATA_LAYOUTS,
    KERNEL_LAYOUTS,
    TRANSPOSED_KERNEL_LAYOUTS,
    Window,
    arranged,
    check_layout,
    padded,
    permuted,
    sliding,
    windows,
)
from tilewright.ir.graph_ops.linear import OUT_DTYPE, result_dtype
from tilewright.ir.graph_ops.operands import alike, dtype_of, entries, require, require_rank, wide
from tilewright.ir.opdef import AttrDef, Attrs, OpDef, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

CONV_ATTRS = {
    "strides": AttrDef("ints", (1, 1)),
    "padding": AttrDef("ints", (0, 0, 0, 0), "top, left, bottom, right"),
    "dilation": AttrDef("ints", (1, 1)),
    "groups": AttrDef("int", 1),
}


@dataclass(frozen=True, slots=True)
class Conv2d:
    """The extents of one convolution: per group, `channels` inputs and `filters` outputs."""

    batch: int
    groups: int
    channels: int
    filters: int
    rows: Window
    columns: Window
    multiplier_in_kernel: bool = False

    @property
    def depthwise(self) -> bool:
        """Every group has one input channel."""
        return self.channels == 1 and self.groups > 1

    @property
    def result(self) -> tuple[int, int, int, int]:
        """The result's extents in the order NCHW."""
        return self.batch, self.groups * self.filters, self.rows.count, self.columns.count


def conv2d_of(x: TensorType, w: TensorType, attrs: Attrs, name: str = "graph.conv2d") -> Conv2d:
    """The extents of a convolution of these types; raises InputError where they do not fit.

    Depthwise kernels may also come as [channels, multiplier, h, w] (in OIHW), as Relay writes them; then
    `multiplier_in_kernel` is set.
    """
    check_layout(attrs["data_layout"], DATA_LAYOUTS, name, "data_layout")
    check_layout(attrs["kernel_layout"], KERNEL_LAYOUTS, name, "kernel_layout")
    require_rank(x, 4, name)
    require_rank(w, 4, name)
    n, c, h, width = arranged(x.shape, attrs["data_layout"], "NCHW")
    k, i, r, s = arranged(w.shape, attrs["kernel_layout"], "OIHW")
    groups = attrs["groups"]
    good = groups >= 1 and c % groups == 0 and k % groups == 0
    require(good, name, f"expected channels divisible by {groups} groups, got {c} and {k}")
    multiplied = groups > 1 and c == groups == k and i > 1
    fits = multiplied or i * groups == c
    require(fits, name, f"expected {c // groups} input channels per group in the kernel, got {i} ({x}, {w})")
    rows, columns = windows((h, width), (r, s), attrs["strides"], attrs["padding"], attrs["dilation"], name)
    filters = i if multiplied else k // groups
    return Conv2d(n, groups, c // groups, filters, rows, columns, multiplied)


def _infer_conv2d(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, w = alike(types, "graph.conv2d")
    shape = arranged(conv2d_of(x, w, attrs).result, "NCHW", attrs["data_layout"])
    return [TensorType(result_dtype(x, attrs), shape)]


def _types(inputs: Sequence[np.ndarray]) -> list[TensorType]:
    return [TensorType(dtype_of(x), x.shape) for x in inputs]


def _evaluate_conv2d(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    data, weight = _types(inputs)
    geometry = conv2d_of(data, weight, attrs)
    dtype = str(attrs["out_dtype"] or dtype_of(inputs[0]))
    x = wide(permuted(inputs[0], attrs["data_layout"], "NCHW"), dtype)
    w = wide(permuted(inputs[1], attrs["kernel_layout"], "OIHW"), dtype)
    out = convolve(x, w, geometry).astype(numpy_dtype(dtype), copy=False)
    return [permuted(out, "NCHW", attrs["data_layout"])]


def convolve(x: np.ndarray, w: np.ndarray, g: Conv2d) -> np.ndarray:
    """Convolution of NCHW data with an OIHW kernel, one matrix product per sample and group."""
    inner = g.channels * g.rows.kernel * g.columns.kernel
    kernel = w.reshape(g.groups, g.filters, inner)
    points = g.rows.count * g.columns.count
    out = np.empty((g.batch, g.groups, g.filters, points), dtype=np.result_type(x, w))
    taps = sliding(padded(x, g.rows, g.columns, 0), g.rows, g.columns)
    for sample, target in zip(taps, out, strict=True):
        np.matmul(kernel, sample.reshape(g.groups, inner, points), out=target)
    return out.reshape(g.result)


define(
    OpDef(
        "graph.conv2d",
        ("x", "weight"),
        "Sums of products of the kernel with every window of x, per group of channels.",
        attrs={
            **CONV_ATTRS,
            "data_layout": AttrDef("str", "NCHW", "NCHW or NHWC, of x and of the result"),
            "kernel_layout": AttrDef("str", "OIHW", "OIHW, HWIO, OHWI or HWOI"),
            "out_dtype": OUT_DTYPE,
        },
        infer=_infer_conv2d,
        evaluate=_evaluate_conv2d,
    )
)


@dataclass(frozen=True, slots=True)
class Conv2dTranspose:
    """A transposed convolution as a convolution of the spread input with the kernel turned round.

    spread: the input's spatial extents with `stride - 1` zeros between elements.
    rows, columns: windows of stride 1 over the spread input; padding may be negative (the edge is cut off).
    """

    batch: int
    groups: int
    channels: int
    filters: int
    spread: tuple[int, int]
    rows: Window
    columns: Window

    @property
    def result(self) -> tuple[int, int, int, int]:
        """The result's extents in the order NCHW."""
        return self.batch, self.groups * self.filters, self.rows.count, self.columns.count


def conv2d_transpose_of(x: TensorType, w: TensorType, attrs: Attrs) -> Conv2dTranspose:
    """The extents of a transposed convolution of these types; raises InputError where they do not fit."""
    name = "graph.conv2d_transpose"
    check_layout(attrs["data_layout"], DATA_LAYOUTS, name, "data_layout")
    check_layout(attrs["kernel_layout"], TRANSPOSED_KERNEL_LAYOUTS, name, "kernel_layout")
    require_rank(x, 4, name)
    require_rank(w, 4, name)
    n, c, h, width = arranged(x.shape, attrs["data_layout"], "NCHW")
    i, k, r, s = arranged(w.shape, attrs["kernel_layout"], "IOHW")
    groups = attrs["groups"]
    good = groups >= 1 and c % groups == 0 and i == c
    require(good, name, f"expected a kernel of {c} input channels in {groups} groups, got {x} and {w}")
    strides = entries(attrs["strides"], 2, name, "strides", 1)
    dilation = entries(attrs["dilation"], 2, name, "dilation", 1)
    padding = entries(attrs["padding"], 4, name, "padding")
    extra = entries(attrs["output_padding"], 2, name, "output_padding")
    spread = tuple((size - 1) * step + 1 for size, step in zip((h, width), strides, strict=True))
    both = []
    for d, kernel in enumerate((r, s)):
        reach = (kernel - 1) * dilation[d]
        window = Window(
            spread[d], kernel, 1, dilation[d], reach - padding[d], reach - padding[d + 2] + extra[d]
        )
        require(
            window.count >= 1, name, f"expected a result with elements, got {x}, {w} and padding {padding}"
        )
        both.append(window)
    return Conv2dTranspose(n, groups, c // groups, k, (spread[0], spread[1]), both[0], both[1])


def _infer_conv2d_transpose(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, w = alike(types, "graph.conv2d_transpose")
    shape = arranged(conv2d_transpose_of(x, w, attrs).result, "NCHW", attrs["data_layout"])
    return [TensorType(result_dtype(x, attrs), shape)]


def _evaluate_conv2d_transpose(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    """One matrix product gives what every element adds to the result; then sums by tap of the kernel."""
    data, weight = _types(inputs)
    g = conv2d_transpose_of(data, weight, attrs)
    dtype = str(attrs["out_dtype"] or dtype_of(inputs[0]))
    x = wide(permuted(inputs[0], attrs["data_layout"], "NCHW"), dtype)
    w = wide(permuted(inputs[1], attrs["kernel_layout"], "IOHW"), dtype)
    n, _, h, width = x.shape
    r, s = w.shape[2:]
    flat = x.reshape(n, g.groups, g.channels, h * width)
    kernel = w.reshape(g.groups, g.channels, g.filters * r * s)
    parts = np.matmul(np.swapaxes(kernel, 1, 2), flat).reshape(n, g.groups * g.filters, r, s, h, width)
    (top, left, bottom, right), (sh, sw), (dh, dw) = attrs["padding"], attrs["strides"], attrs["dilation"]
    oh, ow = g.rows.count, g.columns.count
    full = np.zeros((n, g.groups * g.filters, oh + top + bottom, ow + left + right), dtype=parts.dtype)
    for i in range(r):
        for j in range(s):
            rows = slice(i * dh, i * dh + (h - 1) * sh + 1, sh)
            columns = slice(j * dw, j * dw + (width - 1) * sw + 1, sw)
            full[:, :, rows, columns] += parts[:, :, i, j]
    out = full[:, :, top : top + oh, left : left + ow].astype(numpy_dtype(dtype), copy=False)
    return [permuted(out, "NCHW", attrs["data_layout"])]


define(
    OpDef(
        "graph.conv2d_transpose",
        ("x", "weight"),
        "Every element of x adds its multiple of the kernel to a window of the result.",
        attrs={
            **CONV_ATTRS,
            "output_padding": AttrDef("ints", (0, 0), "rows and columns added at the end"),
            "data_layout": AttrDef("str", "NCHW", "NCHW or NHWC, of x and of the result"),
            "kernel_layout": AttrDef("str", "IOHW", "IOHW, OIHW, HWIO or HWOI"),
            "out_dtype": OUT_DTYPE,
        },
        infer=_infer_conv2d_transpose,
        evaluate=_evaluate_conv2d_transpose,
    )
)
