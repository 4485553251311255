"""Resizing of one, two or three spatial dimensions: nearest, linear and cubic, one axis after the other.

Coordinates are exact fractions except for `tf_crop_and_resize`, whose corners are float32 numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.ir.division import OperandRows, SlicedOp, by_rules, of_image, replaced
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.extents import Dims
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.interpolation import (
    CROPPING,
    METHODS,
    MODES,
    ROUNDING,
    Rational,
    cropped,
    default_rounding,
    is_layout,
    letters,
    rounded,
    spatial,
    weighted,
)
from tilewright.ir.graph_ops.operands import entries, require, require_rank, tensors
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, Infer, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

#: coordinates are computed with 32-bit integers
MAX_PRODUCT = 1 << 28


def _check(attrs: Attrs, dimensions: str) -> None:
    """Raise InputError for an attribute that no resizing knows."""
    known = (
        ("method", METHODS),
        ("coordinate_transformation_mode", MODES),
        ("rounding_method", ("", *ROUNDING)),
    )
    for key, values in known:
        require(attrs[key] in values, f"expected {key} among {', '.join(values)}, got '{attrs[key]}'")
    fits = is_layout(attrs["layout"], ("N", "C", *dimensions))
    require(fits, f"expected a layout of N, C, {', '.join(dimensions)}, got '{attrs['layout']}'")
    if attrs["coordinate_transformation_mode"] == CROPPING:
        count = 2 * len(dimensions)
        good = len(attrs["roi"]) == count and all(type(v) in (int, float) for v in attrs["roi"])
        require(good, f"expected {count} numbers in 'roi', got {attrs['roi']}")


def _infer(dimensions: str) -> Infer:
    def infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
        (x,) = tensors(types)
        _check(attrs, dimensions)
        require_rank(x, len(letters(attrs["layout"])))
        size = entries(attrs["size"], len(dimensions), "size", least=1)
        shape = list(x.shape)
        for d, target in zip(spatial(attrs["layout"]), size, strict=True):
            fits = shape[d] > 0 and shape[d] * target < MAX_PRODUCT
            require(fits, f"expected a source with elements and at most 2**28 pairs, got {x} to {size}")
            shape[d] = target
        return [TensorType(attrs["out_dtype"] or x.dtype, tuple(shape))]

    return infer


def held_dtype(dtype: str, method: str) -> str:
    """The dtype of the arithmetic: float32, or float64 for float64; the nearest element keeps its own."""
    if method == "nearest_neighbor":
        return dtype
    return "f64" if dtype == "f64" else "f32"


def corners(attrs: Attrs, axis: int) -> tuple[float, float]:
    """The cropped part of a spatial axis. `roi` lists starts, then ends; for three axes from W to D."""
    count = len(attrs["size"])
    at = count - 1 - axis if count == 3 else axis
    return float(attrs["roi"][at]), float(attrs["roi"][at + count])


def axis_taps(attrs: Attrs, axis: int, size: int, target: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Taps [taps, target], their weights, and which elements lie outside a cropped axis [target]."""
    method, mode = attrs["method"], attrs["coordinate_transformation_mode"]
    rounding = default_rounding(attrs["rounding_method"], mode)
    outside = np.zeros(target, bool)
    if mode == CROPPING:
        at = cropped(*corners(attrs, axis), size, target)
        outside = (at < 0) | (at > size - 1)
        base = np.floor(at).astype(np.int64)
        fraction = at - np.floor(at)
        nearest = rounded(at, rounding)
    else:
        r = Rational.of(mode, size, target)
        x = np.arange(target)
        above = r.scale * x + r.shift
        base, fraction = above // r.divisor, (above % r.divisor) / r.divisor
        n = r.nearest(rounding)
        nearest = (n.scale * x + n.shift) // n.divisor
    if method == "nearest_neighbor":
        base, fraction = nearest, np.zeros(target)
    exclude = bool(attrs["cubic_exclude"])
    return *weighted(base, fraction, method, attrs["cubic_alpha"], size, exclude=exclude), outside


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    nearest = attrs["method"] == "nearest_neighbor"
    kind = numpy_dtype(attrs["out_dtype"]) if attrs["out_dtype"] else x.dtype
    out = x if nearest else x.astype(np.float64 if x.dtype == np.float64 else numpy_dtype("f32"))
    for axis, d in enumerate(spatial(attrs["layout"])):
        target = attrs["size"][axis]
        taps, weights, _ = axis_taps(attrs, axis, x.shape[d], target)
        parts = [np.take(out, t, axis=d) for t in taps]
        along = [1] * x.ndim
        along[d] = target
        if nearest:
            out = parts[0]
        else:
            out = sum(p * w.reshape(along).astype(out.dtype) for p, w in zip(parts, weights, strict=True))
    for axis, d in enumerate(spatial(attrs["layout"])):
        outside = axis_taps(attrs, axis, x.shape[d], attrs["size"][axis])[2]
        along = [1] * x.ndim
        along[d] = len(outside)
        if outside.any():
            out = np.where(
                outside.reshape(along), np.asarray(attrs["extrapolation_value"]).astype(out.dtype), out
            )
    return [np.asarray(out).astype(kind)]


def _new_size(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """The ratio of the sizes stays."""
    size = list(attrs["size"])
    for axis, d in enumerate(spatial(attrs["layout"])):
        old, new = operands[0][d].pair
        if old == new:
            continue
        if size[axis] * new % old:
            raise UnsupportedError(
                f"{old} elements are resized to {size[axis]}; {new} have no whole size of the same ratio"
            )
        size[axis] = size[axis] * new // old
    return {"size": tuple(size)}


def _rows(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Rows of an image enlarged by a whole factor, made from a piece whose taps are the same ones.

    Pieces take as many rows more on either side as the method reads; what those make is cut off again.
    """
    attrs, x = op.attributes, op.operands[0].tensor
    places = spatial(str(op["layout"]))
    if axis not in places:
        return SlicedOp((OperandRows(axis, start, end),))
    d, size, target = places.index(axis), x.shape[axis], op.result.tensor.shape[axis]
    if attrs["coordinate_transformation_mode"] == CROPPING or target % size:
        return None
    factor = target // size
    taps, weights, _ = axis_taps(attrs, d, size, target)
    columns, read = np.s_[:, start:end], taps[:, start:end]
    margin = 0 if attrs["method"] == "nearest_neighbor" else 2
    first = max(0, min(int(read.min()), start // factor) - margin)
    last = min(size, max(int(read.max()) + 1, -(-end // factor)) + margin)
    again = {**attrs, "size": replaced(op.integers("size"), d, (last - first) * factor)}
    own_taps, own_weights, _ = axis_taps(again, d, last - first, (last - first) * factor)
    keep = start - first * factor, end - first * factor
    same = np.array_equal(own_taps[:, slice(*keep)] + first, taps[columns])
    if not same or not np.allclose(own_weights[:, slice(*keep)], weights[columns], rtol=0, atol=1e-15):
        return None
    return SlicedOp((OperandRows(axis, first, last),), {"size": again["size"]}, keep=keep)


def _define(count: int) -> None:
    dimensions = "DHW"[3 - count :]
    define(
        f"graph.resize{count}d",
        ("x",),
        f"The image interpolated at `size` points along {', '.join(dimensions)}.",
        attrs={
            "size": AttrDef("ints"),
            "layout": AttrDef("str", f"NC{dimensions}", "may be packed, as in NCHW4c"),
            "method": AttrDef("str", "linear", ", ".join(METHODS)),
            "coordinate_transformation_mode": AttrDef("str", "half_pixel", ", ".join(MODES)),
            "rounding_method": AttrDef("str", "", f"of nearest_neighbor: {', '.join(ROUNDING)}"),
            "cubic_alpha": AttrDef("float", -0.5),
            "cubic_exclude": AttrDef("bool", False, "taps outside weigh nothing"),
            "roi": AttrDef("list", (), "of tf_crop_and_resize, in fractions: starts, then ends"),
            "extrapolation_value": AttrDef("float", 0.0, "of points outside a cropped image"),
            "out_dtype": AttrDef("dtype?", None),
        },
        infer=_infer(dimensions),
        evaluate=_evaluate,
        facts=Facts(
            elements=Elements.SAMPLES,
            flops=flops_per_element,
            precision=Precision.WIDE,
            division=by_rules(_rows, labels=of_image("NC")),
            extents=_new_size,
            report=ReportClass.OF_KERNEL,
            gradient=Gradient.RULE,
            exact=False,
        ),
    )


for _count in (1, 2, 3):
    _define(_count)
