"""Transposed convolution over one, two or three spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from tilewright.ir.division import Labels, OperandRows, SlicedOp, replaced
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass
from tilewright.ir.graph_ops.convolution import divided, layout_attr, window_attrs
from tilewright.ir.graph_ops.layouts import (
    SPATIAL,
    Window,
    arranged,
    check_layout,
    data_layouts,
    kernel_layouts,
    permuted,
)
from tilewright.ir.graph_ops.linear import OUT_DTYPE, result_dtype
from tilewright.ir.graph_ops.operands import dtype_of, entries, factors, require, require_rank, wide
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype


@dataclass(frozen=True, slots=True)
class TransposedConvolution:
    """A transposed convolution as a convolution of the spread input with the kernel turned round.

    windows: of stride 1 over the input with `strides - 1` zeros between elements; their padding may be
    negative (the edge is cut off).
    """

    batch: int
    groups: int
    channels: int
    filters: int
    strides: tuple[int, ...]
    windows: tuple[Window, ...]

    @property
    def result(self) -> tuple[int, ...]:
        """The result's extents in the order N, C, spatial."""
        return self.batch, self.groups * self.filters, *(w.count for w in self.windows)


def transposed_convolution_of(
    x: TensorType, w: TensorType, attrs: Attrs, spatial: int
) -> TransposedConvolution:
    """The extents of a transposed convolution of these types; raises InputError where they do not fit."""
    letters = SPATIAL[spatial]
    check_layout(attrs["data_layout"], data_layouts(spatial), "data_layout")
    check_layout(attrs["kernel_layout"], kernel_layouts(spatial), "kernel_layout")
    require_rank(x, spatial + 2)
    require_rank(w, spatial + 2)
    n, c, *sizes = arranged(x.shape, attrs["data_layout"], f"NC{letters}")
    i, k, *taps = arranged(w.shape, attrs["kernel_layout"], f"IO{letters}")
    groups = attrs["groups"]
    good = groups >= 1 and c % groups == 0 and i == c
    require(good, f"expected a kernel of {c} input channels in {groups} groups, got {x} and {w}")
    strides = entries(attrs["strides"], spatial, "strides", 1)
    dilation = entries(attrs["dilation"], spatial, "dilation", 1)
    padding = entries(attrs["padding"], 2 * spatial, "padding")
    extra = entries(attrs["output_padding"], spatial, "output_padding")
    along = []
    for d, kernel in enumerate(taps):
        reach = (kernel - 1) * dilation[d]
        before, after = reach - padding[d], reach - padding[d + spatial] + extra[d]
        window = Window((sizes[d] - 1) * strides[d] + 1, kernel, 1, dilation[d], before, after)
        good = kernel >= 1 and sizes[d] >= 1 and window.count >= 1
        require(good, f"expected a result with elements, got {x}, {w} and padding {padding}")
        along.append(window)
    return TransposedConvolution(n, groups, c // groups, k, strides, tuple(along))


def _infer(spatial: int, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, w = factors(types, attrs)
    geometry = transposed_convolution_of(x, w, attrs, spatial)
    shape = arranged(geometry.result, f"NC{SPATIAL[spatial]}", attrs["data_layout"])
    return [TensorType(result_dtype(x, attrs), shape)]


def _evaluate(spatial: int, inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    """One matrix product gives what every element adds to the result; then sums by tap of the kernel."""
    data, weight = (TensorType(dtype_of(x), x.shape) for x in inputs)
    g = transposed_convolution_of(data, weight, attrs, spatial)
    letters = SPATIAL[spatial]
    dtype = str(attrs["out_dtype"] or dtype_of(inputs[0]))
    x = wide(permuted(inputs[0], attrs["data_layout"], f"NC{letters}"), dtype)
    w = wide(permuted(inputs[1], attrs["kernel_layout"], f"IO{letters}"), dtype)
    sizes, taps = x.shape[2:], w.shape[2:]
    flat = x.reshape(g.batch, g.groups, g.channels, prod(sizes))
    kernel = w.reshape(g.groups, g.channels, g.filters * prod(taps))
    parts = np.matmul(np.swapaxes(kernel, 1, 2), flat)
    parts = parts.reshape(g.batch, g.groups * g.filters, *taps, *sizes)
    before, after = attrs["padding"][:spatial], attrs["padding"][spatial:]
    counts = g.result[2:]
    room = tuple(n + lo + hi for n, lo, hi in zip(counts, before, after, strict=True))
    full = np.zeros((*g.result[:2], *room), dtype=parts.dtype)
    for tap in np.ndindex(*taps):
        at = tuple(
            slice(t * w.dilation, t * w.dilation + w.size, step)
            for t, w, step in zip(tap, g.windows, g.strides, strict=True)
        )
        full[:, :, *at] += parts[:, :, *tap]
    inside = tuple(slice(lo, lo + n) for lo, n in zip(before, counts, strict=True))
    out = full[:, :, *inside].astype(numpy_dtype(dtype), copy=False)
    return [permuted(out, f"NC{letters}", attrs["data_layout"])]


def _flops(spatial: int, op: Op) -> int:
    """2 x elements of x x taps and filters that each is multiplied by."""
    x, weight = (v.tensor for v in op.operands[:2])
    geometry = transposed_convolution_of(x, weight, op.attributes, spatial)
    return 2 * x.size * geometry.filters * prod(w.kernel for w in geometry.windows)


def _divided(op: Op) -> Labels:
    return replace(divided(op, depthwise=False), rows=_rows)


def _rows(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Output row o adds element i by tap k where o = i S - P + k D; the padding cuts to the rows wanted."""
    layout, kernel_layout = str(op["data_layout"]), str(op["kernel_layout"])
    letter = layout[axis]
    if letter == "C":
        return None
    x, w = (v.tensor for v in op.operands)
    d = SPATIAL[len(layout) - 2].index(letter)
    strides, dilation, padding = (op.integers(k) for k in ("strides", "dilation", "padding"))
    step, reach = strides[d], (w.shape[kernel_layout.index(letter)] - 1) * dilation[d]
    shifted = start + padding[d]
    first = min(max(0, -((reach - shifted) // step)), shifted // step, x.shape[axis] - 1)
    last = min(x.shape[axis], (end - 1 + padding[d]) // step + 1)
    if last <= first:
        return None
    before = shifted - first * step
    after = (last - first - 1) * step + reach + 1 - before - (end - start)
    attrs: dict[str, Attr] = {
        "padding": replaced(replaced(padding, d, before), d + len(strides), max(0, after)),
        "output_padding": replaced(op.integers("output_padding"), d, max(0, -after)),
    }
    return SlicedOp((OperandRows(axis, first, last), None), attrs, balanced=True)


for _spatial in SPATIAL:
    define(
        f"graph.conv{_spatial}d_transpose",
        ("x", "weight"),
        "Every element of x adds its multiple of the kernel to a window of the result.",
        attrs={
            **window_attrs(_spatial),
            "output_padding": AttrDef("ints", (0,) * _spatial, "added at the end of each dimension"),
            "data_layout": layout_attr(_spatial),
            "kernel_layout": AttrDef("str", f"IO{SPATIAL[_spatial]}", ", ".join(kernel_layouts(_spatial))),
            "out_dtype": OUT_DTYPE,
        },
        infer=partial(_infer, _spatial),
        evaluate=partial(_evaluate, _spatial),
        facts=Facts(
            elements=Elements.CONTRACTS,
            flops=partial(_flops, _spatial),
            precision=Precision.NARROW,
            division=_divided,
            extents=attributes_stay,
            report=ReportClass.TRANSPOSED_CONVOLUTION,
            gradient=Gradient.RULE,
            exact=False,
        ),
    )
