"""Sampling of images at coordinates that are data: grids, affine grids, and boxes cropped to one size.

16-bit floats and integers are interpolated in float32; coordinates have the dtype of grid or boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from tilewright.ir.division import by_sample, undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.interpolation import first_tap, is_layout, letters, polynomials, rounded, spatial
from tilewright.ir.graph_ops.operands import (
    dtype_of,
    entries,
    require,
    require_float,
    require_integer,
    require_rank,
    tensors,
    wide,
)
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

PADDING_MODES = ("zeros", "border", "reflection")
#: method of a grid -> method of interpolation
GRID_METHODS = {"nearest": "nearest_neighbor", "bilinear": "linear", "bicubic": "cubic"}
BOX_METHODS = {"nearest_neighbor": "nearest_neighbor", "bilinear": "linear"}
#: of the bicubic method, PyTorch's
GRID_ALPHA = -0.75
#: taken off the span [-1, 1] of an affine grid, as Relay does
GRID_EPSILON = 1e-7


def interpolated(
    data: np.ndarray,
    batch: np.ndarray,
    coordinates: Sequence[np.ndarray],
    method: str,
    *,
    rounding: str = "even",
    alpha: float = GRID_ALPHA,
    fill: bool,
    fold: Callable[[np.ndarray, int], np.ndarray] | None = None,
) -> np.ndarray:
    """Data [N, spatial..., rest...] at coordinates (one array per spatial dimension) of images `batch`.

    Taps outside are changed by `fold`, then count as zero if `fill`, else as the edge.
    """
    taps, weights = [], []
    for k, x in enumerate(coordinates):
        base = np.floor(x)
        if method == "nearest_neighbor":
            lines = [np.round(x).astype(np.int64) if rounding == "even" else rounded(x, rounding)]
        else:
            lines = [base.astype(np.int64) + first_tap(method) + i for i in range(len(polynomials(method)))]
        taps.append([fold(t, data.shape[1 + k]) if fold else t for t in lines])
        fraction = x - base if method != "nearest_neighbor" else x * 0
        weights.append([np.polynomial.polynomial.polyval(fraction, p) for p in polynomials(method, alpha)])
    total: np.ndarray | None = None
    for chosen in product(*(range(len(t)) for t in taps)):
        at = [taps[k][i] for k, i in enumerate(chosen)]
        value = data[(batch, *(np.clip(t, 0, n - 1) for t, n in zip(at, data.shape[1:], strict=False)))]
        along = (..., *[None] * (value.ndim - batch.ndim))
        if fill:
            inside = [(t >= 0) & (t < n) for t, n in zip(at, data.shape[1:], strict=False)]
            value = np.where(np.logical_and.reduce(np.broadcast_arrays(*inside))[along], value, 0)
        if method != "nearest_neighbor":
            for k, i in enumerate(chosen):
                value = value * np.broadcast_to(weights[k][i], value.shape[: batch.ndim])[along].astype(
                    data.dtype
                )
        total = value if total is None else total + value
    assert total is not None
    return total


def unnormalised(x: np.ndarray, size: int, *, align: bool) -> np.ndarray:
    """Coordinates in elements from coordinates in [-1, 1]."""
    one = x + 1
    return one * (size - 1) / 2 if align else one * size / 2 - 0.5


def reflected(x: np.ndarray, size: int, *, align: bool) -> np.ndarray:
    """Coordinates mirrored at both ends of an axis (the centres of its last elements, or their edges)."""
    span, corner = (max(1, size - 1), 0.0) if align else (size, -0.5)
    distance = np.abs(corner - x)
    turns = np.floor(distance / span)
    rest = distance - turns * span
    mirrored = np.where(turns % 2 == 0, rest, span - rest) + corner
    return np.where((x >= corner) & (x <= span + corner), x, mirrored)


def _infer_grid(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    data, grid = tensors(types)
    require(
        attrs["method"] in GRID_METHODS, f"expected method {', '.join(GRID_METHODS)}, got '{attrs['method']}'"
    )
    mode = attrs["padding_mode"]
    require(mode in PADDING_MODES, f"expected padding_mode {', '.join(PADDING_MODES)}, got '{mode}'")
    require(data.rank in (4, 5), f"expected data of rank 4 or 5, got {data}")
    count = data.rank - 2
    require(
        count == 2 or attrs["method"] != "bicubic", "expected bilinear or nearest for volumes, got bicubic"
    )
    require_float(grid)
    fits = grid.rank == data.rank and grid.shape[:2] == (data.shape[0], count) and 0 not in data.shape[2:]
    require(fits, f"expected a grid of {count} coordinates for each of {data}, got {grid}")
    return [TensorType(data.dtype, (*data.shape[:2], *grid.shape[2:]))]


def _evaluate_grid(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    data, grid = inputs
    align, mode = attrs["align_corners"], attrs["padding_mode"]
    method = GRID_METHODS[attrs["method"]]
    image = np.moveaxis(_held(data), 1, -1)
    coordinates = []
    count = data.ndim - 2
    for k in range(count):
        size = data.shape[2 + k]
        x = unnormalised(wide(grid[:, count - 1 - k], dtype_of(grid)), size, align=align)
        if method != "cubic" and mode != "zeros":
            x = np.clip(reflected(x, size, align=align) if mode == "reflection" else x, 0, size - 1)
        coordinates.append(x)

    def fold(taps: np.ndarray, size: int) -> np.ndarray:
        if mode == "reflection":
            taps = reflected(taps, size, align=align).astype(np.int64)
        return np.clip(taps, 0, size - 1)

    batch = np.arange(data.shape[0]).reshape(-1, *[1] * count)
    batch = np.broadcast_to(batch, coordinates[0].shape)
    folded = fold if method == "cubic" and mode != "zeros" else None
    out = interpolated(image, batch, coordinates, method, fill=True, fold=folded)
    return [np.moveaxis(out, -1, 1).astype(data.dtype)]


def _held(data: np.ndarray) -> np.ndarray:
    """Data in the dtype of the arithmetic."""
    return data.astype(np.float64 if data.dtype == np.float64 else numpy_dtype("f32"), copy=False)


#: facts that ops below share; each replaces those that differ
_SAMPLING = Facts(
    elements=Elements.SAMPLES,
    flops=flops_per_element,
    precision=Precision.WIDE,
    exact=False,
    division=by_sample(2),
    extents=attributes_stay,
    report=ReportClass.OF_KERNEL,
    gradient=Gradient.DERIVED,
)
define(
    "graph.grid_sample",
    ("data", "grid"),
    "Data [N, C, (D,) H, W] at coordinates [N, k, ...] in [-1, 1]; the first channel is along W.",
    attrs={
        "method": AttrDef("str", "bilinear", ", ".join(GRID_METHODS)),
        "padding_mode": AttrDef("str", "zeros", ", ".join(PADDING_MODES)),
        "align_corners": AttrDef("bool", True, "-1 and 1 are the centres of the corner elements"),
    },
    infer=_infer_grid,
    evaluate=_evaluate_grid,
    facts=_SAMPLING,
)


def _infer_affine(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (data,) = tensors(types)
    require_float(data)
    require(data.rank == 3 and data.shape[1:] == (2, 3), f"expected matrices [N, 2, 3], got {data}")
    target = entries(attrs["target_shape"], 2, "target_shape", least=2)
    return [TensorType(data.dtype, (data.shape[0], 2, *target))]


def _evaluate_affine(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    m = wide(inputs[0], dtype_of(inputs[0]))
    h, w = (
        (np.arange(n) * ((2 - GRID_EPSILON) / (n - 1)) - 1).astype(m.dtype) for n in attrs["target_shape"]
    )
    y, x = h[:, None], w
    out = m[:, :, 0, None, None] * x + m[:, :, 1, None, None] * y + m[:, :, 2, None, None]
    return [out.astype(inputs[0].dtype)]


define(
    "graph.affine_grid",
    ("data",),
    "Matrices [N, 2, 3] times the points (x, y, 1) of a regular grid over [-1, 1].",
    attrs={"target_shape": AttrDef("ints", doc="height and width")},
    infer=_infer_affine,
    evaluate=_evaluate_affine,
    facts=Facts(
        elements=Elements.COMPUTES,
        flops=flops_per_element,
        precision=Precision.WIDE,
        division=undivided,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.RULE,
        exact=False,
    ),
)


def _infer_crop(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    data, boxes, index = tensors(types)
    layout = attrs["layout"]
    require(is_layout(layout, "NCHW"), f"expected a layout of N, C, H, W, got '{layout}'")
    require(
        attrs["method"] in BOX_METHODS, f"expected method {', '.join(BOX_METHODS)}, got '{attrs['method']}'"
    )
    require_rank(data, len(letters(layout)))
    require_float(boxes)
    require_integer(index)
    fits = boxes.rank == 2 and boxes.shape[1] == 4 and index.shape == boxes.shape[:1]
    require(fits, f"expected boxes [B, 4] and indices [B], got {boxes} and {index}")
    size = entries(attrs["crop_size"], 2, "crop_size", least=1)
    shape = list(data.shape)
    require(0 not in shape or not index.size, f"expected data with elements, got {data}")
    shape[letters(layout).index("N")] = boxes.shape[0]
    for d, n in zip(spatial(layout), size, strict=True):
        shape[d] = n
    return [TensorType(attrs["out_dtype"] or data.dtype, tuple(shape))]


def _evaluate_crop(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    data, boxes, index = inputs
    dims = letters(attrs["layout"])
    order = [dims.index("N"), *spatial(attrs["layout"])]
    order += [d for d in range(data.ndim) if d not in order]
    boxes = wide(boxes, dtype_of(boxes))
    coordinates, inside = [], np.ones((len(boxes), 1, 1), bool)
    for k, n in enumerate(attrs["crop_size"]):
        last = data.shape[order[1 + k]] - 1
        start, end = boxes[:, k, None], boxes[:, k + 2, None]
        at = start * last + np.arange(n) * ((end - start) * last / max(1, n - 1))
        if n == 1:
            at = (start + end) * last * 0.5
        x = np.expand_dims(at.astype(boxes.dtype), 2 - k)
        coordinates.append(x)
        inside = inside & (x >= 0) & (x <= last)
    batch = np.broadcast_to(np.clip(index, 0, data.shape[order[0]] - 1)[:, None, None], inside.shape)
    method = BOX_METHODS[attrs["method"]]
    image = np.transpose(data if method == "nearest_neighbor" else _held(data), order)
    out = interpolated(image, batch, coordinates, method, rounding="round", fill=False)
    along = (..., *[None] * (out.ndim - 3))
    out = np.where(inside[along], out, np.asarray(attrs["extrapolation_value"]).astype(out.dtype))
    kind = numpy_dtype(attrs["out_dtype"]) if attrs["out_dtype"] else data.dtype
    return [np.transpose(out, np.argsort(order)).astype(kind)]


define(
    "graph.crop_and_resize",
    ("data", "boxes", "box_indices"),
    "For each box [y1, x1, y2, x2], in fractions of its image: `crop_size` points of it.",
    attrs={
        "crop_size": AttrDef("ints", doc="height and width"),
        "layout": AttrDef("str", "NCHW", "may be packed, as in NCHW4c"),
        "method": AttrDef("str", "bilinear", ", ".join(BOX_METHODS)),
        "extrapolation_value": AttrDef("float", 0.0, "of points outside the image"),
        "out_dtype": AttrDef("dtype?", None),
    },
    infer=_infer_crop,
    evaluate=_evaluate_crop,
    facts=replace(_SAMPLING, division=undivided, gradient=Gradient.RULE),
)
