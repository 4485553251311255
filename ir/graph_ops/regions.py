"""Pooling of regions of interest: a fixed number of bins each, interpolated (align) or rounded (pool)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.division import Labels, unlabelled
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.layouts import arranged, permuted
from tilewright.ir.graph_ops.operands import (
    dtype_of,
    entries,
    lowest,
    require,
    require_float,
    require_rank,
    tensors,
    wide,
)
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type

#: keeps bins of roi_pool from growing by rounding errors, as Relay does
BIN_EPSILON = 1e-5


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    data, rois = tensors(types)
    require(attrs["layout"] in ("NCHW", "NHWC"), f"expected layout NCHW or NHWC, got '{attrs['layout']}'")
    require_rank(data, 4)
    require_float(data)
    require_float(rois)
    require(rois.rank == 2 and rois.shape[1] == 5, f"expected regions [R, 5], got {rois}")
    n, c, h, w = arranged(data.shape, attrs["layout"], "NCHW")
    require(min(n, h, w) > 0, f"expected data with elements, got {data}")
    size = entries(attrs["pooled_size"], 2, "pooled_size", least=1)
    return [TensorType(data.dtype, arranged((rois.shape[0], c, *size), "NCHW", attrs["layout"]))]


def _infer_align(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    require(attrs["mode"] in ("avg", "max"), f"expected mode avg or max, got '{attrs['mode']}'")
    return _infer(types, attrs)


def sample_bound(size: int) -> int:
    """Most samples of one bin that can lie on an axis when they stand more than half an element apart."""
    return 2 * size + 5


def _samples(start: float, bin_size: float, bins: int, ratio: int, size: int) -> np.ndarray:
    """Weights [bins, samples, size] of all samples of one region along an axis."""
    count = ratio if ratio > 0 else int(np.ceil(bin_size))
    steps = (np.arange(count) + 0.5) * bin_size / count
    at = start + np.arange(bins)[:, None] * bin_size + steps
    inside = (at >= -1) & (at <= size)
    at = np.clip(at, 0, size - 1)
    hat = np.maximum(0, 1 - np.abs(at[..., None] - np.arange(size)))
    return np.where(inside[..., None], hat, 0)


def _evaluate_align(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    kind = inputs[0].dtype
    data = permuted(wide(inputs[0], dtype_of(inputs[0])), attrs["layout"], "NCHW")
    rois = wide(inputs[1], dtype_of(inputs[1]))
    out = np.empty((len(rois), data.shape[1], *attrs["pooled_size"]), data.dtype)
    for r, roi in enumerate(rois):
        image = data[np.clip(int(roi[0]), 0, len(data) - 1)]
        sides = []
        for k, bins in enumerate(attrs["pooled_size"]):
            start, end = (roi[[2 - k, 4 - k]] * rois.dtype.type(attrs["spatial_scale"])).tolist()
            span = max(end - start, 1.0)
            sides.append(_samples(start, span / bins, bins, attrs["sample_ratio"], image.shape[1 + k]))
        if attrs["mode"] == "avg":
            rows, columns = (s.mean(axis=1).astype(data.dtype) for s in sides)
            out[r] = rows @ image @ columns.T
        else:
            rows, columns = (s.astype(data.dtype) for s in sides)
            out[r] = np.einsum("pah,chw,qbw->cpaqb", rows, image, columns).max(axis=(2, 4))
    return [np.ascontiguousarray(permuted(out, "NCHW", attrs["layout"])).astype(kind)]


_REGION = {
    "pooled_size": AttrDef("ints", doc="bins along height and width"),
    "spatial_scale": AttrDef("float", doc="elements of the data per unit of the regions"),
    "layout": AttrDef("str", "NCHW", "NCHW or NHWC"),
}


def _divided(op: Op) -> Labels:
    """Regions are independent; the images they lie in are needed whole."""
    images, result = (v.tensor.rank for v in (op.operands[0], op.result))
    return Labels((unlabelled(images), ("r", None)), (("r", *unlabelled(result - 1)),))


#: facts that ops below share; each replaces those that differ
_SAMPLING = Facts(
    elements=Elements.SAMPLES,
    flops=flops_per_element,
    precision=Precision.WIDE,
    exact=False,
    division=_divided,
    extents=attributes_stay,
    report=ReportClass.OF_KERNEL,
    gradient=Gradient.RULE,
)
define(
    "graph.roi_align",
    ("data", "rois"),
    "Average or largest sample per bin of the regions [image, x1, y1, x2, y2]; samples outside are zero.",
    attrs={
        **_REGION,
        "sample_ratio": AttrDef("int", -1, "samples per bin and axis; not positive: about one per element"),
        "mode": AttrDef("str", "avg", "avg or max"),
    },
    infer=_infer_align,
    evaluate=_evaluate_align,
    facts=_SAMPLING,
)


def bin_bounds(start: int, end: int, bins: int, size: int, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """First element of every bin of a region, and the element behind its last, both on the axis."""
    span = np.asarray(max(end - start + 1, 1), dtype) / dtype.type(bins)
    steps = np.arange(bins).astype(dtype)
    low = np.floor(steps * span + dtype.type(BIN_EPSILON)).astype(np.int64) + start
    high = np.ceil((steps + dtype.type(1)) * span - dtype.type(BIN_EPSILON)).astype(np.int64) + start
    return np.clip(low, 0, size), np.clip(high, 0, size)


def _evaluate_pool(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    data = permuted(inputs[0], attrs["layout"], "NCHW")
    rois = wide(inputs[1], dtype_of(inputs[1]))
    out = np.zeros((len(rois), data.shape[1], *attrs["pooled_size"]), data.dtype)
    for r, roi in enumerate(rois):
        image = data[np.clip(int(roi[0]), 0, len(data) - 1)]
        scaled = roi[1:] * rois.dtype.type(attrs["spatial_scale"])
        corner = np.trunc(scaled + np.copysign(0.5, scaled)).astype(np.int64).tolist()
        (y0, y1), (x0, x1) = (
            bin_bounds(corner[1 - k], corner[3 - k], bins, image.shape[1 + k], rois.dtype)
            for k, bins in enumerate(attrs["pooled_size"])
        )
        for p, q in np.ndindex(*attrs["pooled_size"]):
            part = image[:, y0[p] : y1[p], x0[q] : x1[q]]
            if part.size:
                out[r, :, p, q] = part.max(axis=(1, 2), initial=lowest(dtype_of(data)))
    return [np.ascontiguousarray(permuted(out, "NCHW", attrs["layout"]))]


define(
    "graph.roi_pool",
    ("data", "rois"),
    "The largest element of every bin of the regions [image, x1, y1, x2, y2], rounded; 0 for empty bins.",
    attrs=_REGION,
    infer=_infer,
    evaluate=_evaluate_pool,
    facts=replace(_SAMPLING, report=ReportClass.POOLING),
)
