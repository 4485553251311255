"""Interpolation at coordinates that are data: taps are gathered, then weighed, in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from tilewright.ir import Builder, Expr, Pairs, Sym, TensorType, Value
from tilewright.ir.graph_ops.interpolation import EPSILON, first_tap, polynomials
from tilewright.ir.nodes import Attr
from tilewright.passes.lower.lowering import mapped

#: changes a tap (i32) on an axis, given the axis's extent
Fold = Callable[[Builder, Value, int], Value]


def point_names(rank: int) -> tuple[str, ...]:
    """Names of the dimensions of a result; those of lowering.py would clash with the indices of a gather."""
    return tuple(f"d{d}" for d in range(rank))


@dataclass(frozen=True)
class Axis:
    """An interpolated dimension of the data: where its float coordinates are read, and its extent."""

    dim: int
    coordinate: Value
    read: tuple[Expr, ...]
    size: int


def polynomial(i: Builder, coefficients: Sequence[float], x: Value) -> Value:
    """Scalar: a polynomial, lowest power first, by Horner's rule."""
    dtype = x.type.dtype
    out = i.const(coefficients[-1], dtype)
    for c in reversed(coefficients[:-1]):
        out = i.value("scalar.fma", out, x, i.const(c, dtype))
    return out


def combined(i: Builder, values: Sequence[Value], weights: Sequence[Sequence[Value]]) -> Value:
    """Scalar: the sum of products of values (last axis fastest) with one weight per axis."""
    if not weights:
        return values[0]
    step = len(values) // len(weights[0])
    out: Value | None = None
    for k, w in enumerate(weights[0]):
        inner = combined(i, values[k * step : (k + 1) * step], weights[1:])
        out = i.value("scalar.mul", inner, w) if out is None else i.value("scalar.fma", inner, w, out)
    assert out is not None
    return out


def normalised(i: Builder, weights: Sequence[Value], taps: Sequence[Value], size: int) -> list[Value]:
    """Scalars: weights of the taps inside an axis, divided by their sum; the others are zero."""
    zero = i.const(0, weights[0].type.dtype)
    kept = []
    for w, tap in zip(weights, taps, strict=True):
        inside = i.value(
            "scalar.and",
            i.value("scalar.ge", tap, i.const(0, "i32")),
            i.value("scalar.lt", tap, i.const(size, "i32")),
        )
        kept.append(i.value("scalar.select", inside, w, zero))
    total = kept[0]
    for w in kept[1:]:
        total = i.value("scalar.add", total, w)
    return [i.value("scalar.div", w, total) for w in kept]


def nearest_tap(i: Builder, x: Value, rounding: str) -> Value:
    """Scalar i32: the nearest element of a float coordinate; `even` rounds half to even."""

    def shifted(by: float, name: str) -> Value:
        return i.value(name, i.value("scalar.add", x, i.const(by, x.type.dtype)))

    match rounding:
        case "floor":
            out = shifted(EPSILON, "scalar.floor")
        case "ceil":
            out = shifted(-EPSILON, "scalar.ceil")
        case "round_prefer_floor":
            out = shifted(-0.5, "scalar.ceil")
        case "even":
            out = i.value("scalar.round", x)
        case _:
            out = shifted(0.5, "scalar.floor")
    return i.cast(out, "i32")


def cropped_axis(b: Builder, start: float, end: float, size: int, target: int) -> Value:
    """Float coordinates [target] spread over a region given in fractions of an axis."""

    def body(i: Builder, p: Sequence[Value]) -> Value:
        if target == 1:
            return i.const(0.5 * (start + end) * (size - 1), "f32")
        span = i.value("scalar.mul", i.index(Sym("x"), "f32"), i.const((end - start) * (size - 1), "f32"))
        step = i.value("scalar.div", span, i.const(target - 1, "f32"))
        return i.value("scalar.add", i.const(start * (size - 1), "f32"), step)

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
    t = TensorType(data.tensor.dtype, tuple(shape))
    zero: float | int | bool = False if t.dtype == "bool" else 0 if t.dtype[0] in "iu" else 0.0
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(zip(point_names(t.rank), t.shape, strict=True))),
        "reads": tuple(tuple(r) for _, r in indices),
        "at": tuple(at),
        "mode": mode,
        "fill_value": zero,
    }
    (out,) = b.emit("tensor.gather", [data, *(v for v, _ in indices)], attrs, types=[t])
    return out


def _on_line(b: Builder, axis: Axis, body: Callable[[Builder, Value], Value]) -> Value:
    """An i32 tensor computed from every coordinate of an axis."""
    t = TensorType("i32", axis.coordinate.tensor.shape)
    names = point_names(t.rank)
    par = dict(zip(names, t.shape, strict=True))
    return mapped(b, [axis.coordinate], t, par, [tuple(map(Sym, names))], lambda i, p: body(i, p[0]))


def _taps(b: Builder, axis: Axis, method: str, rounding: str, fold: Fold | None) -> list[tuple[Value, int]]:
    """The taps of an axis, each as an i32 tensor and a constant to add."""
    if method == "nearest_neighbor":
        return [(_on_line(b, axis, lambda i, x: nearest_tap(i, x, rounding)), 0)]
    places = [first_tap(method) + k for k in range(len(polynomials(method)))]

    def floor(i: Builder, x: Value) -> Value:
        return i.cast(i.value("scalar.floor", x), "i32")

    if fold is None:
        base = _on_line(b, axis, floor)
        return [(base, k) for k in places]

    def folded(k: int, change: Fold) -> Value:
        return _on_line(
            b, axis, lambda i, x: change(i, i.value("scalar.add", floor(i, x), i.const(k, "i32")), axis.size)
        )

    return [(folded(k, fold), 0) for k in places]


def interpolated(
    b: Builder,
    data: Value,
    t: TensorType,
    at: Sequence[Expr],
    axes: Sequence[Axis],
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
    given = [index] if index is not None else []
    first = len(given)
    taps = [_taps(b, axis, method, rounding, fold) for axis in axes]
    parts = []
    for chosen in product(*taps):
        place = list(at)
        for k, (axis, (_, offset)) in enumerate(zip(axes, chosen, strict=True)):
            place[axis.dim] = Sym(f"i{first + k}") + offset
        indices = [*given, *((v, axis.read) for axis, (v, _) in zip(axes, chosen, strict=True))]
        parts.append(gathered_at(b, data, t.shape, place, indices, mode))
    if method == "nearest_neighbor" and outside is None and data.tensor.dtype == t.dtype:
        return parts[0]

    def body(i: Builder, p: Sequence[Value]) -> Value:
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


def _weights(i: Builder, x: Value, size: int, method: str, alpha: float, exclude: bool) -> list[Value]:
    """The weights of the taps of a coordinate."""
    base = i.value("scalar.floor", x)
    fraction = i.value("scalar.sub", x, base)
    found = [polynomial(i, c, fraction) for c in polynomials(method, alpha)]
    if not exclude or method != "cubic":
        return found
    start = i.cast(base, "i32")
    places = [i.value("scalar.add", start, i.const(first_tap(method) + k, "i32")) for k in range(len(found))]
    return normalised(i, found, places, size)


def _within(
    i: Builder, value: Value, axes: Sequence[Axis], coordinates: Sequence[Value], outside: float
) -> Value:
    """`value` where all coordinates lie on their axes, else `outside`."""
    inside = i.const(True, "bool")
    for axis, x in zip(axes, coordinates, strict=True):
        low = i.value("scalar.ge", x, i.const(0, x.type.dtype))
        high = i.value("scalar.le", x, i.const(axis.size - 1, x.type.dtype))
        inside = i.value("scalar.and", inside, i.value("scalar.and", low, high))
    return i.value("scalar.select", inside, value, i.const(outside, value.type.dtype))
