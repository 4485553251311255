"""Convolutions over one, two or three spatial dimensions: groups, depthwise, dilation, layouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from tilewright.ir.division import Labels, OperandRows, SlicedOp, replaced
from tilewright.ir.extents import Dims
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass
from tilewright.ir.graph_ops.layouts import (
    SPATIAL,
    Window,
    arranged,
    check_layout,
    data_layouts,
    kernel_layouts,
    padded,
    permuted,
    sliding,
    windows,
)
from tilewright.ir.graph_ops.linear import OUT_DTYPE, result_dtype
from tilewright.ir.graph_ops.operands import dtype_of, factors, require, require_rank, wide
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype
from tilewright.ir.windows import input_interval

#: ways to compute graph.conv2d; the graph level means the same by all of them
CONV2D_ALGORITHMS = ("direct", "winograd2", "winograd4", "fft")


def window_attrs(spatial: int) -> dict[str, AttrDef]:
    """Strides, padding, dilation and groups of a convolution."""
    return {
        "strides": AttrDef("ints", (1,) * spatial),
        "padding": AttrDef("ints", (0,) * (2 * spatial), "before each dimension, then after each"),
        "dilation": AttrDef("ints", (1,) * spatial),
        "groups": AttrDef("int", 1),
    }


def layout_attr(spatial: int) -> AttrDef:
    """The layout of x and of the result."""
    known = data_layouts(spatial)
    return AttrDef("str", known[0], f"{', '.join(known)}: of x and of the result")


@dataclass(frozen=True, slots=True)
class ConvolutionGeometry:
    """The extents of one convolution: per group, `channels` inputs and `filters` outputs."""

    batch: int
    groups: int
    channels: int
    filters: int
    windows: tuple[Window, ...]
    multiplier_in_kernel: bool = False

    @property
    def depthwise(self) -> bool:
        """Every group has one input channel."""
        return self.channels == 1 and self.groups > 1

    @property
    def result(self) -> tuple[int, ...]:
        """The result's extents in the order N, C, spatial."""
        return self.batch, self.groups * self.filters, *(w.count for w in self.windows)


def convolution_of(x: TensorType, w: TensorType, attrs: Attrs, spatial: int) -> ConvolutionGeometry:
    """The extents of a convolution of these types; raises InputError where they do not fit.

    Depthwise kernels may also come as [channels, multiplier, h, w] (in OIHW), as Relay writes them; then
    `multiplier_in_kernel` is set.
    """
    letters = SPATIAL[spatial]
    check_layout(attrs["data_layout"], data_layouts(spatial), "data_layout")
    check_layout(attrs["kernel_layout"], kernel_layouts(spatial), "kernel_layout")
    require_rank(x, spatial + 2)
    require_rank(w, spatial + 2)
    n, c, *sizes = arranged(x.shape, attrs["data_layout"], f"NC{letters}")
    k, i, *taps = arranged(w.shape, attrs["kernel_layout"], f"OI{letters}")
    groups = attrs["groups"]
    good = groups >= 1 and c % groups == 0 and k % groups == 0
    require(good, f"expected channels divisible by {groups} groups, got {c} and {k}")
    multiplied = groups > 1 and c == groups == k and i > 1
    fits = multiplied or i * groups == c
    require(fits, f"expected {c // groups} input channels per group in the kernel, got {i} ({x}, {w})")
    along = windows(sizes, taps, attrs["strides"], attrs["padding"], attrs["dilation"])
    filters = i if multiplied else k // groups
    return ConvolutionGeometry(n, groups, c // groups, filters, along, multiplied)


def _infer(spatial: int, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, w = factors(types, attrs)
    if "algorithm" in attrs:
        check_layout(attrs["algorithm"], CONV2D_ALGORITHMS, "algorithm")
    geometry = convolution_of(x, w, attrs, spatial)
    shape = arranged(geometry.result, f"NC{SPATIAL[spatial]}", attrs["data_layout"])
    return [TensorType(result_dtype(x, attrs), shape)]


def _evaluate(spatial: int, inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    data, weight = (TensorType(dtype_of(x), x.shape) for x in inputs)
    geometry = convolution_of(data, weight, attrs, spatial)
    letters = SPATIAL[spatial]
    dtype = str(attrs["out_dtype"] or dtype_of(inputs[0]))
    x = wide(permuted(inputs[0], attrs["data_layout"], f"NC{letters}"), dtype)
    w = wide(permuted(inputs[1], attrs["kernel_layout"], f"OI{letters}"), dtype)
    out = convolve(x, w, geometry).astype(numpy_dtype(dtype), copy=False)
    return [permuted(out, f"NC{letters}", attrs["data_layout"])]


def _flops(spatial: int, op: Op) -> int:
    """2 x results x summed products; padding counts."""
    x, weight = (v.tensor for v in op.operands[:2])
    geometry = convolution_of(x, weight, op.attributes, spatial)
    return 2 * op.result.tensor.size * geometry.channels * prod(w.kernel for w in geometry.windows)


def divided(op: Op, *, depthwise: bool = True) -> Labels:
    """Samples, output channels and (added up) input channels of one group; the channels of depthwise ones."""
    layout, kernel_layout = str(op["data_layout"]), str(op["kernel_layout"])
    x, w = (v.tensor for v in op.operands)
    groups, outputs, inputs = (op.integer("groups"), *(w.shape[kernel_layout.index(c)] for c in "OI"))
    if groups == 1:
        data, weight, result = {"N": "n", "C": "c"}, {"I": "c", "O": "o"}, {"N": "n", "C": "o"}
    elif depthwise and groups == x.shape[layout.index("C")] == outputs and inputs == 1:
        data, weight, result = {"N": "n", "C": "g"}, {"O": "g"}, {"N": "n", "C": "g"}
    else:
        data, weight, result = {"N": "n"}, {}, {"N": "n"}
    dims = tuple(map(data.get, layout)), tuple(map(weight.get, kernel_layout))
    return Labels(dims, (tuple(map(result.get, layout)),), frozenset("c") if groups == 1 else frozenset())


def _divided(op: Op) -> Labels:
    return replace(divided(op), rows=_rows)


def _rows(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Rows of the image (with halos), or channels of whole groups."""
    layout, kernel_layout = str(op["data_layout"]), str(op["kernel_layout"])
    letter = layout[axis]
    if letter == "C":
        return _group_rows(op, axis, start, end)
    x, w = (v.tensor for v in op.operands)
    d = SPATIAL[len(layout) - 2].index(letter)
    kernel = w.shape[kernel_layout.index(letter)]
    strides, dilation, padding = (op.integers(k) for k in ("strides", "dilation", "padding"))
    rows = input_interval((start, end), x.shape[axis], kernel, strides[d], dilation[d], padding[d])
    if rows.start == rows.end:
        return None
    pads = replaced(replaced(padding, d, rows.pad_before), d + len(strides), rows.pad_after)
    return SlicedOp((OperandRows(axis, rows.start, rows.end), None), {"padding": pads}, balanced=True)


def _group_rows(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Filters are cut along with the channels they make; of groups, only whole ones."""
    x, w = (v.tensor for v in op.operands)
    groups, kernel_axis = op.integer("groups"), str(op["kernel_layout"]).index("O")
    filters, channels = op.result.tensor.shape[axis] // groups, x.shape[axis] // groups
    first, last = start // filters, end // filters
    per_group = w.shape[kernel_axis] // groups
    multiplied = per_group != filters  # a kernel [channels, multiplier, h, w] must keep more than one group
    if start % filters or end % filters or (multiplied and last - first == 1):
        return None
    needs = (
        OperandRows(axis, first * channels, last * channels),
        OperandRows(kernel_axis, first * per_group, last * per_group),
    )
    return SlicedOp(needs, {"groups": last - first}, align=filters)


def _new_groups(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Channels that are groups of their own stay so."""
    channels = operands[0][attrs["data_layout"].index("C")]
    outputs = operands[1][attrs["kernel_layout"].index("O")]
    depthwise = 1 < attrs["groups"] == channels.old and channels.pair == outputs.pair
    return {"groups": channels.new} if depthwise else {}


def convolve(x: np.ndarray, w: np.ndarray, g: ConvolutionGeometry) -> np.ndarray:
    """Convolution of data [N, C, ..] with a kernel [O, I, ..], one matrix product per sample and group."""
    taps = sliding(padded(x, g.windows, 0), g.windows)
    return multiplied_taps(taps, w, g).reshape(g.result)


def multiplied_taps(taps: np.ndarray, w: np.ndarray, g: ConvolutionGeometry) -> np.ndarray:
    """[N, groups, filters, points] from elements [N, C, taps.., windows..] and a kernel [O, I, taps..]."""
    inner = g.channels * prod(v.kernel for v in g.windows)
    points = prod(v.count for v in g.windows)
    kernel = w.reshape(g.groups, g.filters, inner)
    out = np.empty((g.batch, g.groups, g.filters, points), dtype=np.result_type(taps, w))
    for sample, target in zip(taps, out, strict=True):
        np.matmul(kernel, sample.reshape(g.groups, inner, points), out=target)
    return out


_ALGORITHM = {"algorithm": AttrDef("str", "direct", f"how to lower it: {', '.join(CONV2D_ALGORITHMS)}")}

for _spatial in SPATIAL:
    define(
        f"graph.conv{_spatial}d",
        ("x", "weight"),
        "Sums of products of the kernel with every window of x, per group of channels.",
        attrs={
            **window_attrs(_spatial),
            "data_layout": layout_attr(_spatial),
            "kernel_layout": AttrDef("str", kernel_layouts(_spatial)[0], ", ".join(kernel_layouts(_spatial))),
            "out_dtype": OUT_DTYPE,
            **(_ALGORITHM if _spatial == 2 else {}),
        },
        infer=partial(_infer, _spatial),
        evaluate=partial(_evaluate, _spatial),
        facts=Facts(
            elements=Elements.CONTRACTS,
            flops=partial(_flops, _spatial),
            precision=Precision.NARROW,
            division=_divided,
            extents=_new_groups,
            report=ReportClass.CONVOLUTION,
            gradient=Gradient.RULE,
            exact=False,
        ),
    )
