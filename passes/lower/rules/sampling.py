"""Sampling at coordinates that are data: maps compute them, gathers fetch the taps, a map weighs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.interpolation import letters, spatial
from tilewright.ir.graph_ops.resizing import held_dtype
from tilewright.ir.graph_ops.sampling import BOX_METHODS, GRID_ALPHA, GRID_EPSILON, GRID_METHODS
from tilewright.passes.lower.lowering import accumulated, converted, lowering, mapped, result_type
from tilewright.passes.lower.rules.interpolation import Axis, Fold, interpolated, point_names


def _reflected(i: Builder, x: Value, size: int, align: bool) -> Value:
    """Scalar: a float coordinate mirrored at both ends of an axis."""
    dtype = x.type.dtype
    span, corner = (max(1, size - 1), 0.0) if align else (size, -0.5)
    distance = i.value("scalar.abs", i.value("scalar.sub", i.const(corner, dtype), x))
    turns = i.value("scalar.floor", i.value("scalar.div", distance, i.const(span, dtype)))
    rest = i.value("scalar.sub", distance, i.value("scalar.mul", turns, i.const(span, dtype)))
    half = i.value("scalar.mul", turns, i.const(0.5, dtype))
    even = i.value("scalar.eq", half, i.value("scalar.floor", half))
    mirrored = i.value("scalar.select", even, rest, i.value("scalar.sub", i.const(span, dtype), rest))
    mirrored = i.value("scalar.add", mirrored, i.const(corner, dtype))
    inside = i.value(
        "scalar.and",
        i.value("scalar.ge", x, i.const(corner, dtype)),
        i.value("scalar.le", x, i.const(span + corner, dtype)),
    )
    return i.value("scalar.select", inside, x, mirrored)


def _clamped(i: Builder, x: Value, size: int) -> Value:
    dtype = x.type.dtype
    return i.value("scalar.min", i.value("scalar.max", x, i.const(0, dtype)), i.const(size - 1, dtype))


def _grid_axis(b: Builder, grid: Value, attrs: dict[str, Any], dim: int, size: int) -> Axis:
    """Coordinates along a dimension of the data; the grid's channels run from W outwards."""
    t = grid.tensor
    held = accumulated(TensorType(t.dtype, (t.shape[0], *t.shape[2:])))
    align, mode = attrs["align_corners"], attrs["padding_mode"]

    def body(i: Builder, p: Sequence[Value]) -> Value:
        x = i.value("scalar.add", i.cast(p[0], held.dtype), i.const(1, held.dtype))
        x = i.value("scalar.mul", x, i.const(size - 1 if align else size, held.dtype))
        x = i.value("scalar.mul", x, i.const(0.5, held.dtype))
        if not align:
            x = i.value("scalar.sub", x, i.const(0.5, held.dtype))
        if mode == "zeros" or attrs["method"] == "bicubic":
            return x
        return _clamped(i, _reflected(i, x, size, align) if mode == "reflection" else x, size)

    names = point_names(held.rank)
    read: tuple[Expr, ...] = (Sym(names[0]), t.rank - 1 - dim, *map(Sym, names[1:]))
    coordinate = mapped(b, [grid], held, dict(zip(names, held.shape, strict=True)), [read], body)
    # the result has channels at dimension 1
    return Axis(dim, coordinate, (Sym("d0"), *(Sym(f"d{d}") for d in range(2, t.rank))), size)


def _fold(attrs: dict[str, Any]) -> Fold | None:
    """How bicubic taps outside the image are brought inside; other methods change the coordinate instead."""
    mode, align = attrs["padding_mode"], attrs["align_corners"]
    if attrs["method"] != "bicubic" or mode == "zeros":
        return None

    def fold(i: Builder, tap: Value, size: int) -> Value:
        if mode == "reflection":
            tap = i.cast(_reflected(i, i.cast(tap, "f32"), size, align), "i32")
        return _clamped(i, tap, size)

    return fold


@lowering("graph.grid_sample")
def grid_sample(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Taps outside the image are zero."""
    data, grid = x
    attrs: dict[str, Any] = dict(op.attrs)
    t = result_type(op)
    method = GRID_METHODS[attrs["method"]]
    axes = [_grid_axis(b, grid, attrs, d, data.tensor.shape[d]) for d in range(2, t.rank)]
    at: list[Expr] = list(map(Sym, point_names(t.rank)))
    held = TensorType(held_dtype(t.dtype, method), t.shape)
    out = interpolated(
        b, data, held, at, axes, method, rounding="even", alpha=GRID_ALPHA, mode="fill", fold=_fold(attrs)
    )
    return [converted(b, out, t)]


@lowering("graph.affine_grid")
def affine_grid(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """A map that multiplies a matrix with the point of its own indices."""
    t = result_type(op)
    held = accumulated(t).dtype
    height, width = t.shape[2:]

    def point(i: Builder, name: str, count: int) -> Value:
        step = i.const((2 - GRID_EPSILON) / (count - 1), held)
        return i.value("scalar.fma", i.index(Sym(name), held), step, i.const(-1, held))

    def body(i: Builder, p: Sequence[Value]) -> Value:
        a, c, shift = (i.cast(v, held) for v in p)
        out = i.value("scalar.mul", a, point(i, "d3", width))
        out = i.value("scalar.fma", c, point(i, "d2", height), out)
        return i.cast(i.value("scalar.add", out, shift), t.dtype)

    par = dict(zip(point_names(4), t.shape, strict=True))
    reads = [(Sym("d0"), Sym("d1"), k) for k in range(3)]
    return [mapped(b, [x[0]] * 3, t, par, reads, body)]


def _box_axis(b: Builder, boxes: Value, k: int, dim: int, size: int, target: int) -> Axis:
    """Coordinates [box, point] along one side (0: y, 1: x) of every box."""
    held = accumulated(TensorType(boxes.tensor.dtype, (boxes.tensor.shape[0], target)))
    kind = held.dtype

    def body(i: Builder, p: Sequence[Value]) -> Value:
        start, end = (i.cast(v, kind) for v in p)
        last = i.const(size - 1, kind)
        if target == 1:
            middle = i.value("scalar.mul", i.value("scalar.add", start, end), last)
            return i.value("scalar.mul", middle, i.const(0.5, kind))
        span = i.value("scalar.mul", i.value("scalar.sub", end, start), last)
        step = i.value("scalar.div", span, i.const(target - 1, kind))
        first = i.value("scalar.mul", start, last)
        return i.value("scalar.add", first, i.value("scalar.mul", i.index(Sym("d1"), kind), step))

    reads = [(Sym("d0"), k), (Sym("d0"), k + 2)]
    par = {"d0": held.shape[0], "d1": target}
    coordinate = mapped(b, [boxes, boxes], held, par, reads, body)
    return Axis(dim, coordinate, (Sym("d0"), Sym(f"d{dim}")), size)


@lowering("graph.crop_and_resize")
def crop_and_resize(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The image of each box is an index of the gathers too."""
    data, boxes, index = x
    attrs: dict[str, Any] = dict(op.attrs)
    t = result_type(op)
    layout, method = attrs["layout"], BOX_METHODS[attrs["method"]]
    images = letters(layout).index("N")
    box = Sym(f"d{images}")
    axes = []
    for k, d in enumerate(spatial(layout)):
        axis = _box_axis(b, boxes, k, d, data.tensor.shape[d], t.shape[d])
        axes.append(Axis(d, axis.coordinate, (box, Sym(f"d{d}")), axis.size))
    at: list[Expr] = list(map(Sym, point_names(t.rank)))
    at[images] = Sym("i0")
    held = TensorType(held_dtype(data.tensor.dtype, method), t.shape)
    out = interpolated(
        b, data, held, at, axes, method,
        rounding="round", index=(index, (box,)), outside=attrs["extrapolation_value"],
    )  # fmt: skip
    return [converted(b, out, t)]
