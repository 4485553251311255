"""Gradients of convolutions by their kernels, over one, two or three spatial dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from tilewright.ir.division import Labels
from tilewright.ir.extents import Dims
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass
from tilewright.ir.graph_ops.convolution import ConvolutionGeometry, layout_attr, window_attrs
from tilewright.ir.graph_ops.layouts import (
    SPATIAL,
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
from tilewright.ir.graph_ops.operands import alike, dtype_of, require, require_float, require_rank, wide
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype


def weight_gradient_of(g: TensorType, x: TensorType, attrs: Attrs, spatial: int) -> ConvolutionGeometry:
    """The extents of the convolution of `x` whose result has the type of `g`; InputError where none has."""
    order = f"NC{SPATIAL[spatial]}"
    check_layout(attrs["data_layout"], data_layouts(spatial), "data_layout")
    check_layout(attrs["kernel_layout"], kernel_layouts(spatial), "kernel_layout")
    require_rank(g, spatial + 2)
    require_rank(x, spatial + 2)
    n, c, *sizes = arranged(x.shape, attrs["data_layout"], order)
    samples, k, *counts = arranged(g.shape, attrs["data_layout"], order)
    groups = attrs["groups"]
    good = groups >= 1 and c % groups == 0 and k % groups == 0
    require(good, f"expected channels divisible by {groups} groups, got {c} and {k}")
    along = windows(sizes, attrs["kernel_size"], attrs["strides"], attrs["padding"], attrs["dilation"])
    fits = samples == n and [w.count for w in along] == counts
    whole = arranged((n, k, *(w.count for w in along)), order, attrs["data_layout"])
    require(fits, f"expected a cotangent of shape {whole} for {x}, got {g}")
    return ConvolutionGeometry(n, groups, c // groups, k // groups, along)


def _infer(spatial: int, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    g, x = alike(types)
    require_float(g)
    geometry = weight_gradient_of(g, x, attrs, spatial)
    kernel = (geometry.groups * geometry.filters, geometry.channels, *attrs["kernel_size"])
    shape = arranged(kernel, f"OI{SPATIAL[spatial]}", attrs["kernel_layout"])
    return [TensorType(result_dtype(g, attrs), shape)]


def _evaluate(spatial: int, inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    """One matrix product per sample and group, added up."""
    cotangent, data = (TensorType(dtype_of(v), v.shape) for v in inputs)
    geometry = weight_gradient_of(cotangent, data, attrs, spatial)
    letters = SPATIAL[spatial]
    dtype = str(attrs["out_dtype"] or dtype_of(inputs[0]))
    g, x = (wide(permuted(v, attrs["data_layout"], f"NC{letters}"), dtype) for v in inputs)
    taps = sliding(padded(x, geometry.windows, 0), geometry.windows)
    inner = geometry.channels * prod(w.kernel for w in geometry.windows)
    points = prod(w.count for w in geometry.windows)
    groups = geometry.groups
    total = np.zeros((groups, geometry.filters, inner), np.result_type(g, x))
    for row, sample in zip(g, taps, strict=True):
        rows = row.reshape(groups, geometry.filters, points)
        total += rows @ sample.reshape(groups, inner, points).transpose(0, 2, 1)
    kernel = (groups * geometry.filters, geometry.channels, *attrs["kernel_size"])
    out = total.reshape(kernel).astype(numpy_dtype(dtype), copy=False)
    return [permuted(out, f"OI{letters}", attrs["kernel_layout"])]


def _flops(op: Op) -> int:
    """2 x elements of the cotangent x channels and taps that each is multiplied by; padding counts."""
    g, x = (v.tensor for v in op.operands)
    channels = x.shape[str(op["data_layout"]).index("C")] // op.integer("groups")
    return 2 * g.size * channels * prod(op.integers("kernel_size"))


def _divided(op: Op) -> Labels:
    """Samples are added up; output channels, input channels of one group, channels of depthwise kernels."""
    layout, kernel_layout = str(op["data_layout"]), str(op["kernel_layout"])
    outputs, inputs = (v.tensor.shape[layout.index("C")] for v in op.operands)
    groups = op.integer("groups")
    cotangent, data, result = {"N": "n"}, {"N": "n"}, {}
    if groups == 1:
        cotangent["C"], data["C"], result = "o", "c", {"O": "o", "I": "c"}
    elif groups == inputs == outputs:
        cotangent["C"], data["C"], result = "g", "g", {"O": "g"}
    operands = tuple(tuple(map(dims.get, layout)) for dims in (cotangent, data))
    return Labels(operands, (tuple(map(result.get, kernel_layout)),), frozenset("n"))


def _new_groups(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Channels that are groups of their own stay so."""
    outputs, inputs = (dims[attrs["data_layout"].index("C")] for dims in operands)
    depthwise = 1 < attrs["groups"] == inputs.old and inputs.pair == outputs.pair
    return {"groups": inputs.new} if depthwise else {}


for _spatial in SPATIAL:
    define(
        f"graph.conv{_spatial}d_weight_grad",
        ("cotangent", "x"),
        f"The gradient of conv{_spatial}d by its kernel: for each tap, the products of the cotangent of the "
        "result with the elements of x that the tap meets, summed over all windows of all samples.",
        attrs={
            "kernel_size": AttrDef("ints", doc="spatial extents of the kernel"),
            **window_attrs(_spatial),
            "data_layout": layout_attr(_spatial),
            "kernel_layout": AttrDef("str", kernel_layouts(_spatial)[0], "of the result"),
            "out_dtype": OUT_DTYPE,
        },
        infer=partial(_infer, _spatial),
        evaluate=partial(_evaluate, _spatial),
        facts=Facts(
            elements=Elements.CONTRACTS,
            flops=_flops,
            precision=Precision.NARROW,
            division=_divided,
            extents=_new_groups,
            report=ReportClass.CONVOLUTION,
            gradient=Gradient.RULE,
            exact=False,
        ),
    )
