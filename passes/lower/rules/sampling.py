"""Sampling at coordinates that are data: maps compute them, gathers fetch the taps, a map weighs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.interpolation import letters, spatial
from tilewright.ir.graph_ops.resizing import held_dtype
from tilewright.ir.graph_ops.sampling import BOX_METHODS, GRID_ALPHA, GRID_EPSILON, GRID_METHODS
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    lowering,
    mapped,
    point_names,
    result_type,
)
from tilewright.passes.lower.rules.interpolation import Fold, SampledAxis, interpolated
from tilewright.passes.lower.scalars import Scalar, Scalars


def _reflected(i: Scalars, x: Scalar, size: int, align: bool) -> Scalar:
    """Scalar: a float coordinate mirrored at both ends of an axis."""
    span, corner = (max(1, size - 1), 0.0) if align else (size, -0.5)
    distance = abs(corner - x)
    turns = (distance / span).floor()
    rest = distance - turns * span
    half = turns * 0.5
    even = half.equals(half.floor())
    mirrored = even.select(rest, span - rest)
    mirrored = mirrored + corner
    inside = (x >= corner) & (x <= span + corner)
    return inside.select(x, mirrored)


def _clamped(i: Scalars, x: Scalar, size: int) -> Scalar:
    return x.max(0).min(size - 1)


def _grid_axis(b: Builder, grid: Value, attrs: dict[str, Any], dim: int, size: int) -> SampledAxis:
    """Coordinates along a dimension of the data; the grid's channels run from W outwards."""
    t = grid.tensor
    acc = accumulated(TensorType(t.dtype, (t.shape[0], *t.shape[2:])))
    align, mode = attrs["align_corners"], attrs["padding_mode"]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        x = i.cast(p[0], acc.dtype) + 1
        x = x * (size - 1 if align else size)
        x = x * 0.5
        if not align:
            x = x - 0.5
        if mode == "zeros" or attrs["method"] == "bicubic":
            return x
        return _clamped(i, _reflected(i, x, size, align) if mode == "reflection" else x, size)

    names = point_names(acc.rank)
    read: tuple[Expr, ...] = (Sym(names[0]), t.rank - 1 - dim, *map(Sym, names[1:]))
    coordinate = mapped(b, [grid], acc, dict(zip(names, acc.shape, strict=True)), [read], body)
    # the result has channels at dimension 1
    return SampledAxis(dim, coordinate, (Sym("d0"), *(Sym(f"d{d}") for d in range(2, t.rank))), size)


def _fold(attrs: dict[str, Any]) -> Fold | None:
    """The change that brings bicubic taps outside the image inside; other methods change the coordinate."""
    mode, align = attrs["padding_mode"], attrs["align_corners"]
    if attrs["method"] != "bicubic" or mode == "zeros":
        return None

    def fold(i: Scalars, tap: Scalar, size: int) -> Scalar:
        if mode == "reflection":
            tap = i.cast(_reflected(i, i.cast(tap, "f32"), size, align), "i32")
        return _clamped(i, tap, size)

    return fold


@lowering("graph.grid_sample")
def grid_sample(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Taps outside the image are zero."""
    data, grid = x
    attrs = op.attributes
    t = result_type(op)
    method = GRID_METHODS[attrs["method"]]
    axes = [_grid_axis(b, grid, attrs, d, data.tensor.shape[d]) for d in range(2, t.rank)]
    at: list[Expr] = list(map(Sym, point_names(t.rank)))
    acc = TensorType(held_dtype(t.dtype, method), t.shape)
    out = interpolated(
        b, data, acc, at, axes, method, rounding="even", alpha=GRID_ALPHA, mode="fill", fold=_fold(attrs)
    )
    return [converted(b, out, t)]


@lowering("graph.affine_grid")
def affine_grid(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """A map that multiplies a matrix with the point of its own indices."""
    t = result_type(op)
    acc = accumulated(t).dtype
    height, width = t.shape[2:]

    def point(i: Scalars, name: str, count: int) -> Scalar:
        step = i.const((2 - GRID_EPSILON) / (count - 1), acc)
        return i.index(Sym(name), acc).fma(step, -1)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        a, c, shift = (i.cast(v, acc) for v in p)
        out = a * point(i, "d3", width)
        out = c.fma(point(i, "d2", height), out)
        return i.cast(out + shift, t.dtype)

    par = dict(zip(point_names(4), t.shape, strict=True))
    reads = [(Sym("d0"), Sym("d1"), k) for k in range(3)]
    return [mapped(b, [x[0]] * 3, t, par, reads, body)]


def _box_axis(b: Builder, boxes: Value, k: int, dim: int, size: int, target: int) -> SampledAxis:
    """Coordinates [box, point] along one side (0: y, 1: x) of every box."""
    acc = accumulated(TensorType(boxes.tensor.dtype, (boxes.tensor.shape[0], target)))
    kind = acc.dtype

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        start, end = (i.cast(v, kind) for v in p)
        last = i.const(size - 1, kind)
        if target == 1:
            middle = (start + end) * last
            return middle * 0.5
        span = (end - start) * last
        step = span / (target - 1)
        first = start * last
        return first + i.index(Sym("d1"), kind) * step

    reads = [(Sym("d0"), k), (Sym("d0"), k + 2)]
    par = {"d0": acc.shape[0], "d1": target}
    coordinate = mapped(b, [boxes, boxes], acc, par, reads, body)
    return SampledAxis(dim, coordinate, (Sym("d0"), Sym(f"d{dim}")), size)


@lowering("graph.crop_and_resize")
def crop_and_resize(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The image of each box is an index of the gathers too."""
    data, boxes, index = x
    attrs = op.attributes
    t = result_type(op)
    layout, method = attrs["layout"], BOX_METHODS[attrs["method"]]
    images = letters(layout).index("N")
    box = Sym(f"d{images}")
    axes = []
    for k, d in enumerate(spatial(layout)):
        axis = _box_axis(b, boxes, k, d, data.tensor.shape[d], t.shape[d])
        axes.append(SampledAxis(d, axis.coordinate, (box, Sym(f"d{d}")), axis.size))
    at: list[Expr] = list(map(Sym, point_names(t.rank)))
    at[images] = Sym("i0")
    acc = TensorType(held_dtype(data.tensor.dtype, method), t.shape)
    out = interpolated(
        b, data, acc, at, axes, method,
        rounding="round", index=(index, (box,)), outside=attrs["extrapolation_value"],
    )  # fmt: skip
    return [converted(b, out, t)]
