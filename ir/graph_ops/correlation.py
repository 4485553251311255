"""Patches of two images compared: correlation over displacements, and morphological dilation by a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.division import by_sample, undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.layouts import Window, arranged, check_layout, padded, permuted, sliding, windows
from tilewright.ir.graph_ops.operands import (
    alike,
    dtype_of,
    entries,
    require,
    require_float,
    require_rank,
    wide,
)
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

_PADDING = AttrDef("ints", (0, 0, 0, 0), "top, left, bottom, right")
#: data layout -> kernel layout of a dilation
DILATION_LAYOUTS = {"NCHW": "IHW", "NHWC": "HWI"}


@dataclass(frozen=True, slots=True)
class Correlation:
    """Patches of `kernel` x `kernel` pixels at `rows` x `columns` places, displaced up to `reach` steps."""

    kernel: int
    rows: int
    columns: int
    reach: int

    @property
    def displacements(self) -> int:
        """Displacements along one axis."""
        return 2 * self.reach + 1


def correlation_of(a: TensorType, b: TensorType, attrs: Attrs) -> Correlation:
    """The extents of a correlation of these types; raises InputError where they do not fit."""
    require_float(a)
    require_rank(a, 4)
    require(a.shape == b.shape, f"expected images of one shape, got {a} and {b}")
    kernel, reach = attrs["kernel_size"], attrs["max_displacement"]
    require(kernel >= 1 and kernel % 2 == 1, f"expected an odd kernel_size, got {kernel}")
    steps = (attrs["stride1"], attrs["stride2"])
    require(reach >= 0 and min(steps) >= 1, f"expected a displacement and strides, got {reach}, {steps}")
    top, left, bottom, right = entries(attrs["padding"], 4, "padding")
    border = reach + (kernel - 1) // 2
    rows, columns = (
        -(-(size + pad - 2 * border) // steps[0])
        for size, pad in ((a.shape[2], top + bottom), (a.shape[3], left + right))
    )
    good = rows >= 1 and columns >= 1
    require(good, f"expected images larger than twice the border of {border}, got {a}")
    return Correlation(kernel, rows, columns, reach // steps[1])


def _infer_correlation(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    a, b = alike(types)
    g = correlation_of(a, b, attrs)
    return [TensorType(a.dtype, (a.shape[0], g.displacements**2, g.rows, g.columns))]


def _evaluate_correlation(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    a, b = (TensorType(dtype_of(v), v.shape) for v in inputs)
    g = correlation_of(a, b, attrs)
    top, left, bottom, right = attrs["padding"]
    widths = ((0, 0), (0, 0), (top, bottom), (left, right))
    x, y = (np.pad(wide(v, dtype_of(v)), widths) for v in inputs)
    step, reach = attrs["stride1"], attrs["max_displacement"]

    along = [Window((n - 1) * step + g.kernel, g.kernel, step, 1, 0, 0) for n in (g.rows, g.columns)]

    def patches(image: np.ndarray, down: int, right: int) -> np.ndarray:
        return sliding(image[:, :, reach + down :, reach + right :], along)

    out = np.empty((a.shape[0], g.displacements**2, g.rows, g.columns), x.dtype)
    still = patches(x, 0, 0)
    for k, (i, j) in enumerate(np.ndindex(g.displacements, g.displacements)):
        moved = patches(y, (i - g.reach) * attrs["stride2"], (j - g.reach) * attrs["stride2"])
        compared = still * moved if attrs["is_multiply"] else np.abs(still - moved)
        out[:, k] = compared.sum(axis=(1, 2, 3))
    count = np.asarray(g.kernel * g.kernel * a.shape[1]).astype(out.dtype)
    return [(out / count).astype(inputs[0].dtype, copy=False)]


def _correlation_flops(op: Op) -> int:
    """Per result, a product (or a difference) and a sum for each pixel of a patch and each channel."""
    channels = op.operands[0].tensor.shape[1]
    return 2 * op.result.tensor.size * channels * op.integer("kernel_size") ** 2


define(
    "graph.correlation",
    ("a", "b"),
    "Mean product (or absolute difference) of every patch of a and the patches of b displaced from it.",
    attrs={
        "kernel_size": AttrDef("int", 1),
        "max_displacement": AttrDef("int", 1),
        "stride1": AttrDef("int", 1, "between patches"),
        "stride2": AttrDef("int", 1, "between displacements"),
        "padding": _PADDING,
        "is_multiply": AttrDef("bool", True),
    },
    infer=_infer_correlation,
    evaluate=_evaluate_correlation,
    facts=Facts(
        elements=Elements.CONTRACTS,
        flops=_correlation_flops,
        precision=Precision.FOLLOWS,
        division=by_sample(2),
        extents=attributes_stay,
        report=ReportClass.CORRELATION,
        gradient=Gradient.DERIVED,
        exact=False,
    ),
)


def dilation_windows(x: TensorType, w: TensorType, attrs: Attrs) -> tuple[Window, ...]:
    """Windows of both spatial dimensions; raises InputError where the operands do not fit."""
    check_layout(attrs["data_layout"], tuple(DILATION_LAYOUTS), "data_layout")
    require_rank(x, 4)
    require_rank(w, 3)
    require(x.dtype != "bool", f"expected numbers, got {x}")
    _, c, *sizes = arranged(x.shape, attrs["data_layout"], "NCHW")
    i, *taps = arranged(w.shape, DILATION_LAYOUTS[attrs["data_layout"]], "IHW")
    require(i == c, f"expected a kernel of {c} channels, got {w}")
    return windows(sizes, taps, attrs["strides"], attrs["padding"], attrs["dilation"])


def _infer_dilation(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, w = alike(types)
    counts = [v.count for v in dilation_windows(x, w, attrs)]
    n, c = arranged(x.shape, attrs["data_layout"], "NC")
    return [TensorType(x.dtype, arranged((n, c, *counts), "NCHW", attrs["data_layout"]))]


def _evaluate_dilation(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, w = inputs
    layout = attrs["data_layout"]
    types = [TensorType(dtype_of(v), v.shape) for v in inputs]
    along = dilation_windows(types[0], types[1], attrs)
    image = permuted(wide(x, dtype_of(x)), layout, "NCHW")
    kernel = permuted(wide(w, dtype_of(w)), DILATION_LAYOUTS[layout], "IHW")
    taps = sliding(padded(image, along, 0), along) + kernel[None, :, :, :, None, None]
    out = taps.max(axis=(2, 3)).astype(numpy_dtype(dtype_of(x)), copy=False)
    return [permuted(out, "NCHW", layout)]


define(
    "graph.dilation2d",
    ("x", "weight"),
    "The largest sum of an element and its tap of the kernel in every window; padding counts as 0.",
    attrs={
        "strides": AttrDef("ints", (1, 1)),
        "padding": _PADDING,
        "dilation": AttrDef("ints", (1, 1)),
        "data_layout": AttrDef("str", "NCHW", "NCHW (kernel IHW) or NHWC (kernel HWI)"),
    },
    infer=_infer_dilation,
    evaluate=_evaluate_dilation,
    facts=Facts(
        elements=Elements.SLIDES,
        flops=flops_per_element,
        precision=Precision.FOLLOWS,
        division=undivided,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.DERIVED,
        exact=False,
    ),
)
