"""Resizing as maps: an output element reads its taps at `(a * x + c) // d`, clamped to the image."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.expr import maximum, minimum
from tilewright.ir.graph_ops.interpolation import (
    CROPPING,
    Rational,
    default_rounding,
    first_tap,
    polynomials,
    spatial,
)
from tilewright.ir.graph_ops.resizing import corners, held_dtype
from tilewright.passes.lower.lowering import converted, dim_names, lowering, mapped, point_names, result_type
from tilewright.passes.lower.rules.interpolation import (
    SampledAxis,
    combined,
    cropped_axis,
    interpolated,
    normalised,
    polynomial,
)
from tilewright.passes.lower.scalars import Scalar, Scalars

#: most taps that one map reads; more of them are taken one axis after the other
MAX_TAPS = 8


@lowering("graph.resize1d", "graph.resize2d", "graph.resize3d")
def resize(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """All axes in one map where the taps are few, else one map per axis; cropped ones gather."""
    attrs = op.attributes
    if attrs["coordinate_transformation_mode"] == CROPPING:
        return [_cropped(b, op, x[0], attrs)]
    axes = list(enumerate(spatial(attrs["layout"])))
    taps = len(polynomials(attrs["method"])) ** len(axes)
    acc = held_dtype(x[0].tensor.dtype, attrs["method"])
    out = x[0]
    for part in [axes] if taps <= MAX_TAPS else [[a] for a in axes]:
        shape = list(out.tensor.shape)
        for axis, d in part:
            shape[d] = attrs["size"][axis]
        out = _interpolated(b, out, TensorType(acc, tuple(shape)), [d for _, d in part], attrs)
    return [converted(b, out, result_type(op))]


def _interpolated(b: Builder, x: Value, t: TensorType, dims: Sequence[int], attrs: dict[str, Any]) -> Value:
    """`x` interpolated along `dims` to type `t`."""
    names = dim_names(t.rank)
    taps: list[list[Expr]] = []
    fractions: list[tuple[Expr, int]] = []
    method = attrs["method"]
    for d in dims:
        r = Rational.of(attrs["coordinate_transformation_mode"], x.tensor.shape[d], t.shape[d])
        base, fraction = _place(r, Sym(names[d]), attrs)
        taps.append([base + k for k in range(len(polynomials(method)))])
        fractions.append((fraction, r.divisor))
    reads = []
    for chosen in product(*taps):
        at: list[Expr] = list(map(Sym, names))
        for d, place in zip(dims, chosen, strict=True):
            at[d] = minimum(maximum(place, 0), x.tensor.shape[d] - 1)
        reads.append(tuple(at))

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        if method == "nearest_neighbor":
            return p[0]
        weights = []
        for d, axis_taps, (fraction, divisor) in zip(dims, taps, fractions, strict=True):
            part = i.cast(i.index(fraction), t.dtype)
            part = part / divisor
            taps_of = [polynomial(i, c, part) for c in polynomials(method, attrs["cubic_alpha"])]
            if attrs["cubic_exclude"] and method == "cubic":
                places = [i.index(e) for e in axis_taps]
                taps_of = normalised(i, taps_of, places, x.tensor.shape[d])
            weights.append(taps_of)
        return combined(i, [i.cast(v, t.dtype) for v in p], weights)

    par = dict(zip(names, t.shape, strict=True))
    return mapped(b, [x] * len(reads), t, par, reads, body)


def _place(r: Rational, x: Expr, attrs: dict[str, Any]) -> tuple[Expr, Expr]:
    """The first tap of output element `x`, and its fraction in units of one divisor."""
    if attrs["method"] == "nearest_neighbor":
        mode = attrs["coordinate_transformation_mode"]
        n = r.nearest(default_rounding(attrs["rounding_method"], mode))
        return maximum(x * n.scale + n.shift, 0) // n.divisor, 0
    # one divisor more keeps the numerator from being negative
    above = x * r.scale + (r.shift + r.divisor)
    return above // r.divisor + (first_tap(attrs["method"]) - 1), above % r.divisor


def _cropped(b: Builder, op: Op, x: Value, attrs: dict[str, Any]) -> Value:
    """Float coordinates of a region; what lies outside the image has the extrapolation value."""
    t = result_type(op)
    names = point_names(t.rank)
    at: list[Expr] = list(map(Sym, names))
    axes: list[SampledAxis] = []
    for axis, d in enumerate(spatial(attrs["layout"])):
        start, end = corners(attrs, axis)
        line = cropped_axis(b, start, end, x.tensor.shape[d], t.shape[d])
        axes.append(SampledAxis(d, line, (Sym(names[d]),), x.tensor.shape[d]))
    acc = TensorType(held_dtype(x.tensor.dtype, attrs["method"]), t.shape)
    out = interpolated(
        b, x, acc, at, axes, attrs["method"],
        rounding=default_rounding(attrs["rounding_method"], CROPPING), alpha=attrs["cubic_alpha"],
        exclude=bool(attrs["cubic_exclude"]), outside=attrs["extrapolation_value"],
    )  # fmt: skip
    return converted(b, out, t)
