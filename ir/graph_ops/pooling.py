"""Pooling over sliding windows of one, two or three spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

import ml_dtypes
import numpy as np

from tilewright.ir.division import OperandRows, SlicedOp, by_rules, of_image, replaced
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_tap
from tilewright.ir.graph_ops.convolution import layout_attr
from tilewright.ir.graph_ops.layouts import (
    SPATIAL,
    Window,
    arranged,
    check_layout,
    data_layouts,
    padded,
    permuted,
    sliding,
    windows,
)
from tilewright.ir.graph_ops.operands import dtype_of, lowest, quotient, require, require_rank, tensors, wide
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import FLOATS, TensorType, Type, numpy_dtype
from tilewright.ir.windows import input_interval


def pool_attrs(spatial: int) -> dict[str, AttrDef]:
    """Attributes of windows, of the layout and of how they are counted."""
    return {
        "pool_size": AttrDef("ints"),
        "strides": AttrDef("ints", (1,) * spatial),
        "padding": AttrDef("ints", (0,) * (2 * spatial), "before each dimension, then after each"),
        "dilation": AttrDef("ints", (1,) * spatial),
        "layout": layout_attr(spatial),
        "ceil_mode": AttrDef("bool", False, "round the number of windows up"),
    }


def pool_windows(x: TensorType, attrs: Attrs, spatial: int) -> tuple[Window, ...]:
    """Windows of every spatial dimension; raises InputError where the attributes do not fit."""
    check_layout(attrs["layout"], data_layouts(spatial), "layout")
    require_rank(x, spatial + 2)
    sizes = arranged(x.shape, attrs["layout"], SPATIAL[spatial])
    sequences = (attrs["pool_size"], attrs["strides"], attrs["padding"], attrs["dilation"])
    return windows(sizes, *sequences, attrs["ceil_mode"])


def with_image(x: TensorType, layout: str, image: Sequence[int]) -> TensorType:
    """The type of `x` with other spatial extents."""
    n, c = arranged(x.shape, layout, "NC")
    return TensorType(x.dtype, arranged((n, c, *image), f"NC{SPATIAL[len(image)]}", layout))


def lowest_finite(dtype: str) -> float | int | bool:
    """The lowest number of a dtype that is no infinity."""
    if dtype not in FLOATS:
        return lowest(dtype)
    return float(ml_dtypes.finfo(numpy_dtype(dtype)).min)  # type: ignore[no-untyped-call]


def _infer(spatial: int, numbers: bool, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types)
    require(not numbers or x.dtype != "bool", f"expected numbers, got {x}")
    along = pool_windows(x, attrs, spatial)
    return [with_image(x, attrs["layout"], [w.count for w in along])]


def _taps(
    x: np.ndarray, attrs: Attrs, fill: float | int | bool, spatial: int
) -> tuple[np.ndarray, tuple[Window, ...]]:
    along = pool_windows(TensorType(dtype_of(x), x.shape), attrs, spatial)
    image = permuted(x, attrs["layout"], f"NC{SPATIAL[spatial]}")
    return sliding(padded(image, along, fill), along), along


def _evaluate_max(spatial: int, inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    taps, along = _taps(x, attrs, lowest_finite(dtype_of(x)), spatial)
    first, *others = (taps[:, :, *tap] for tap in np.ndindex(*(w.kernel for w in along)))
    out = first.copy()
    for tap in others:
        np.maximum(out, tap, out=out)
    return [permuted(out, f"NC{SPATIAL[spatial]}", attrs["layout"])]


def _evaluate_avg(spatial: int, inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    taps, along = _taps(wide(x, dtype_of(x)), attrs, 0, spatial)
    out = np.zeros(taps.shape[:2] + taps.shape[2 + spatial :], dtype=taps.dtype)
    for tap in np.ndindex(*(w.kernel for w in along)):
        out += taps[:, :, *tap]
    counts = reduce(np.multiply.outer, (counted_taps(w, attrs["count_include_pad"]) for w in along))
    out = quotient(out, np.maximum(counts, 1))
    return [permuted(out.astype(x.dtype, copy=False), f"NC{SPATIAL[spatial]}", attrs["layout"])]


def counted_taps(w: Window, padding: bool) -> np.ndarray:
    """Per window, how many taps count: those that read elements, or padding that was asked for as well.

    What a window reaches beyond that, where the number of windows was rounded up, never counts.
    """
    at = np.arange(w.count)[:, None] * w.stride - w.before + np.arange(w.kernel) * w.dilation
    low, high = (-w.before, w.size + w.after) if padding else (0, w.size)
    return np.asarray(((at >= low) & (at < high)).sum(axis=1))


def _rows(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Rows of the image; what the last window reaches beyond the padding (ceil mode) is no padding of a piece
    either.
    """
    layout = str(op["layout"])
    d = SPATIAL[len(layout) - 2].index(layout[axis])
    kernel, strides, dilation, padding = (
        op.integers(k) for k in ("pool_size", "strides", "dilation", "padding")
    )
    extent = op.operands[0].tensor.shape[axis]
    rows = input_interval((start, end), extent, kernel[d], strides[d], dilation[d], padding[d])
    if rows.start == rows.end:
        return None
    after = min(rows.pad_after, padding[d + len(strides)])
    pads = replaced(replaced(padding, d, rows.pad_before), d + len(strides), after)
    return SlicedOp((OperandRows(axis, rows.start, rows.end),), {"padding": pads}, balanced=True)


#: facts that ops below share; each replaces those that differ
_POOLING = Facts(
    elements=Elements.SLIDES,
    flops=flops_per_tap,
    precision=Precision.FOLLOWS,
    exact=True,
    division=by_rules(_rows, labels=of_image("NC")),
    extents=attributes_stay,
    report=ReportClass.POOLING,
    gradient=Gradient.RULE,
)
for _spatial in SPATIAL:
    define(
        f"graph.max_pool{_spatial}d",
        ("x",),
        "The largest element of every window; padding counts as the lowest finite number.",
        attrs=pool_attrs(_spatial),
        infer=partial(_infer, _spatial, False),
        evaluate=partial(_evaluate_max, _spatial),
        facts=_POOLING,
    )
    define(
        f"graph.avg_pool{_spatial}d",
        ("x",),
        "The mean of every window over the elements inside x, with `count_include_pad` also over "
        "padding; integers round towards zero.",
        attrs={**pool_attrs(_spatial), "count_include_pad": AttrDef("bool", False)},
        infer=partial(_infer, _spatial, True),
        evaluate=partial(_evaluate_avg, _spatial),
        facts=replace(_POOLING, exact=False),
    )
