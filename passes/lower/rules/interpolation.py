"""Interpolation at coordinates that are data: taps are gathered, then weighed, in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from tilewright.ir import Builder, Expr, Sym, TensorType, Value
from tilewright.ir.graph_ops.interpolation import EPSILON, first_tap, polynomials
from tilewright.passes.lower.lowering import looked_up, mapped, point_names
from tilewright.passes.lower.scalars import Scalar, Scalars

#: changes a tap (i32) on an axis, given the axis's extent
Fold = Callable[[Scalars, Scalar, int], Scalar]


@dataclass(frozen=True)
class SampledAxis:
    """An interpolated dimension of the data: where its float coordinates are read, and its extent."""

    dim: int
    coordinate: Value
    read: tuple[Expr, ...]
    size: int


def polynomial(i: Scalars, coefficients: Sequence[float], x: Scalar) -> Scalar:
    """Scalar: a polynomial, lowest power first, by Horner's rule."""
    dtype = x.type.dtype
    out = i.const(coefficients[-1], dtype)
    for c in reversed(coefficients[:-1]):
        out = out.fma(x, c)
    return out


def combined(i: Scalars, values: Sequence[Scalar], weights: Sequence[Sequence[Scalar]]) -> Scalar:
    """Scalar: the sum of products of values (last axis fastest) with one weight per axis."""
    if not weights:
        return values[0]
    step = len(values) // len(weights[0])
    out: Scalar | None = None
    for k, w in enumerate(weights[0]):
        inner = combined(i, values[k * step : (k + 1) * step], weights[1:])
        out = inner * w if out is None else inner.fma(w, out)
    assert out is not None
    return out


def normalised(i: Scalars, weights: Sequence[Scalar], taps: Sequence[Scalar], size: int) -> list[Scalar]:
    """Scalars: weights of the taps inside an axis, divided by their sum; the others are zero."""
    zero = i.const(0, weights[0].type.dtype)
    inner = []
    for w, tap in zip(weights, taps, strict=True):
        inside = (tap >= 0) & (tap < size)
        inner.append(inside.select(w, zero))
    total = inner[0]
    for w in inner[1:]:
        total = total + w
    return [w / total for w in inner]


def nearest_tap(i: Scalars, x: Scalar, rounding: str) -> Scalar:
    """Scalar i32: the nearest element of a float coordinate; `even` rounds half to even."""

    def shifted(by: float, name: str) -> Scalar:
        return i.value(name, x + by)

    match rounding:
        case "floor":
            out = shifted(EPSILON, "scalar.floor")
        case "ceil":
            out = shifted(-EPSILON, "scalar.ceil")
        case "round_prefer_floor":
            out = shifted(-0.5, "scalar.ceil")
        case "even":
            out = x.apply("round")
        case _:
            out = shifted(0.5, "scalar.floor")
    return i.cast(out, "i32")


def cropped_axis(b: Builder, start: float, end: float, size: int, target: int) -> Value:
    """Float coordinates [target] spread over a region given in fractions of an axis."""

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        if target == 1:
            return i.const(0.5 * (start + end) * (size - 1), "f32")
        span = i.index(Sym("x"), "f32") * ((end - start) * (size - 1))
        step = span / (target - 1)
        return start * (size - 1) + step

    return mapped(b, [], TensorType("f32", (target,)), {"x": target}, [], body)


def gathered_at(
    b: Builder,
    data: Value,
    shape: Sequence[int],
    at: Sequence[Expr],
    indices: Sequence[tuple[Value, Sequence[Expr]]],
    mode: str,
) -> Value:
    """result[d0, d1, ...] = data[at]; `at` uses i0, i1, ..., the values of `indices` at their reads.

    mode: clip, or fill (zero) for addresses outside.
    """
    par = dict(zip(point_names(len(shape)), shape, strict=True))
    return looked_up(b, data, [v for v, _ in indices], par, [r for _, r in indices], at, mode)


def _on_line(b: Builder, axis: SampledAxis, body: Callable[[Scalars, Scalar], Scalar]) -> Value:
    """An i32 tensor computed from every coordinate of an axis."""
    t = TensorType("i32", axis.coordinate.tensor.shape)
    names = point_names(t.rank)
    par = dict(zip(names, t.shape, strict=True))
    return mapped(b, [axis.coordinate], t, par, [tuple(map(Sym, names))], lambda i, p: body(i, p[0]))


def _taps(
    b: Builder, axis: SampledAxis, method: str, rounding: str, fold: Fold | None
) -> list[tuple[Value, int]]:
    """The taps of an axis, each as an i32 tensor and a constant to add."""
    if method == "nearest_neighbor":
        return [(_on_line(b, axis, lambda i, x: nearest_tap(i, x, rounding)), 0)]
    places = [first_tap(method) + k for k in range(len(polynomials(method)))]

    def floor(i: Scalars, x: Scalar) -> Scalar:
        return i.cast(x.floor(), "i32")

    if fold is None:
        base = _on_line(b, axis, floor)
        return [(base, k) for k in places]

    def folded(k: int, change: Fold) -> Value:
        return _on_line(b, axis, lambda i, x: change(i, floor(i, x) + k, axis.size))

    return [(folded(k, fold), 0) for k in places]


def interpolated(
    b: Builder,
    data: Value,
    t: TensorType,
    at: Sequence[Expr],
    axes: Sequence[SampledAxis],
    method: str,
    *,
    rounding: str = "floor",
    alpha: float = -0.5,
    exclude: bool = False,
    mode: str = "clip",
    fold: Fold | None = None,
    index: tuple[Value, tuple[Expr, ...]] | None = None,
    outside: float | None = None,
) -> Value:
    """`data` interpolated to type `t` (whose dtype the arithmetic has) at coordinates of some of its axes.

    at: where other dimensions are read, over d0, d1, ...; i0 is the value of `index`, if there is one.
    outside: the value where a coordinate lies outside its axis; None: taps are clamped or filled by `mode`.
    """
    leading = [index] if index is not None else []
    first = len(leading)
    taps = [_taps(b, axis, method, rounding, fold) for axis in axes]
    parts = []
    for chosen in product(*taps):
        place = list(at)
        for k, (axis, (_, offset)) in enumerate(zip(axes, chosen, strict=True)):
            place[axis.dim] = Sym(f"i{first + k}") + offset
        indices = [*leading, *((v, axis.read) for axis, (v, _) in zip(axes, chosen, strict=True))]
        parts.append(gathered_at(b, data, t.shape, place, indices, mode))
    if method == "nearest_neighbor" and outside is None and data.tensor.dtype == t.dtype:
        return parts[0]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        coordinates = p[len(parts) :]
        values = [i.cast(v, t.dtype) for v in p[: len(parts)]]
        if method == "nearest_neighbor":
            out = values[0]
        else:
            pairs = zip(axes, coordinates, strict=True)
            weights = [_weights(i, c, axis.size, method, alpha, exclude) for axis, c in pairs]
            out = combined(i, values, [[i.cast(w, t.dtype) for w in line] for line in weights])
        return out if outside is None else _within(i, out, axes, coordinates, outside)

    names = point_names(t.rank)
    identity = tuple(map(Sym, names))
    reads = [identity] * len(parts) + [axis.read for axis in axes]
    par = dict(zip(names, t.shape, strict=True))
    return mapped(b, [*parts, *(axis.coordinate for axis in axes)], t, par, reads, body)


def _weights(i: Scalars, x: Scalar, size: int, method: str, alpha: float, exclude: bool) -> list[Scalar]:
    """The weights of the taps of a coordinate."""
    base = x.floor()
    fraction = x - base
    weights = [polynomial(i, c, fraction) for c in polynomials(method, alpha)]
    if not exclude or method != "cubic":
        return weights
    start = i.cast(base, "i32")
    places = [start + (first_tap(method) + k) for k in range(len(weights))]
    return normalised(i, weights, places, size)


def _within(
    i: Scalars, value: Scalar, axes: Sequence[SampledAxis], coordinates: Sequence[Scalar], outside: float
) -> Scalar:
    """`value` where all coordinates lie on their axes, else `outside`."""
    inside = i.const(True, "bool")
    for axis, x in zip(axes, coordinates, strict=True):
        low = x >= 0
        high = x <= axis.size - 1
        inside = inside & (low & high)
    return inside.select(value, outside)
