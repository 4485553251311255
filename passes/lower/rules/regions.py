"""Regions of interest: samples are gathered and folded; where data says how many, weights are summed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, UnsupportedError, Value
from tilewright.ir.graph_ops.operands import lowest
from tilewright.ir.graph_ops.regions import BIN_EPSILON, sample_bound
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    larger,
    lowering,
    mapped,
    multiply_add,
    point_names,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.interpolation import SampledAxis, gathered_at, interpolated
from tilewright.passes.lower.scalars import Body, Scalar, Scalars

#: the coordinate of a sample outside the image: no tap of it is inside
NOWHERE = -2.0
#: most samples that are kept at once
MAX_SAMPLES = 1 << 28


@dataclass(frozen=True)
class _Side:
    """One axis of all regions: 0 is y, 1 is x."""

    rois: Value
    axis: int
    bins: int
    size: int
    scale: float

    @property
    def dtype(self) -> str:
        """The dtype of coordinates."""
        return accumulated(self.rois.tensor).dtype

    def reads(self, region: str = "d0") -> list[tuple[Expr, ...]]:
        """The indices at which a body reads the start and the end of region `region`."""
        return [(Sym(region), 2 - self.axis), (Sym(region), 4 - self.axis)]

    def bin(self, i: Scalars, p: Sequence[Scalar]) -> tuple[Scalar, Scalar]:
        """Scalars: start and extent of the bin that dimension d1 counts; regions have at least extent 1."""
        scale = i.const(self.scale, self.dtype)
        start, end = (i.cast(v, self.dtype) * scale for v in p)
        span = (end - start).max(1)
        extent = span / self.bins
        return i.index(Sym("d1"), self.dtype).fma(extent, start), extent


def _between(i: Scalars, x: Scalar, low: float, high: float) -> Scalar:
    above = x >= low
    return above & (x <= high)


def _sample(
    i: Scalars, side: _Side, p: Sequence[Scalar], number: Scalar, ratio: int
) -> tuple[Scalar, Scalar, Scalar]:
    """Scalars: a sample's place on the axis, whether it exists and lies there, and how many its bin has.

    Where bins have samples as data says, `number` counts from the first one on the axis.
    """
    dtype = side.dtype
    start, extent = side.bin(i, p)
    half = i.const(0.5, dtype)
    if ratio > 0:
        count = i.const(ratio, dtype)
    else:
        count = extent.ceil()
        step = extent / count
        first = step.fma(half, start)
        skipped = (-1 - first) / step
        skipped = skipped.ceil() - 1
        number = number + skipped.max(0)
    along = (number + half) * extent
    at = start + along / count
    exists = _between(i, at, -1, side.size) & (number < count)
    place = at.max(0).min(side.size - 1)
    return place, exists, count


def _places(b: Builder, side: _Side, samples: int, ratio: int) -> Value:
    """Coordinates [region, bin, sample] along an axis; those outside are nowhere."""
    t = TensorType(side.dtype, (side.rois.tensor.shape[0], side.bins, samples))

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        place, exists, _ = _sample(i, side, p, i.index(Sym("d2"), side.dtype), ratio)
        return exists.select(place, NOWHERE)

    par = dict(zip(point_names(3), t.shape, strict=True))
    return mapped(b, [side.rois] * 2, t, par, side.reads(), body)


def _weights(b: Builder, side: _Side) -> Value:
    """Weights [region, bin, element] of the average of a bin whose number of samples is data."""
    t = TensorType(side.dtype, (side.rois.tensor.shape[0], side.bins, side.size))

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        place, exists, count = _sample(i, side, p[:2], i.index(Sym("k"), side.dtype), 0)
        distance = abs(place - i.index(Sym("d2"), side.dtype))
        zero = i.const(0, side.dtype)
        hat = (1 - distance).max(zero)
        part = exists.select(hat / count, zero)
        return part + p[2]

    par = dict(zip(point_names(3), t.shape, strict=True))
    red = {"k": sample_bound(side.size)}
    return reduced(b, "tensor.reduce", [side.rois] * 2, t, par, red, side.reads(), body)


def _images(b: Builder, rois: Value, count: int) -> Value:
    """The image of every region, the nearest of the `count` images where there is none of its number."""
    t = TensorType("i32", rois.tensor.shape[:1])

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return i.cast(p[0], "i32").max(0).min(count - 1)

    return mapped(b, [rois], t, {"d0": t.shape[0]}, [(Sym("d0"), 0)], body)


def _sides(op: Op, x: Sequence[Value]) -> list[_Side]:
    attrs = op.attributes
    extents = [x[0].tensor.shape[attrs["layout"].index(c)] for c in "HW"]
    return [_Side(x[1], k, attrs["pooled_size"][k], n, attrs["spatial_scale"]) for k, n in enumerate(extents)]


@lowering("graph.roi_align")
def roi_align(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """An average of as many samples as data says is two weighted sums; other bins fold their samples."""
    attrs = op.attributes
    sides, t = _sides(op, x), result_type(op)
    if attrs["mode"] == "avg" and attrs["sample_ratio"] <= 0:
        weights = [_weights(b, side) for side in sides]
        acc = accumulated(t)
        return [converted(b, _axis_by_axis(b, x, acc, attrs["layout"], weights, multiply_add, 0.0), t)]
    out = _folded_samples(b, op, x, sides)
    return [converted(b, out, t)]


def _axis_by_axis(
    b: Builder,
    x: Sequence[Value],
    t: TensorType,
    layout: str,
    per_axis: Sequence[Value] | None,
    body: Body,
    init: float | int | bool,
    bounds: Sequence[Sequence[Value]] = (),
) -> Value:
    """Folds the image of every region along y, then x; an axis has operands at [region, bin, element].

    per_axis: one such operand per axis; bounds: operands read at [region, bin] instead.
    """
    data, rois = x
    index = _images(b, rois, data.tensor.shape[0])
    regions = rois.tensor.shape[0]
    where = {c: k for k, c in enumerate(layout)}
    shape = (regions, *(data.tensor.shape[where[c]] for c in layout[1:]))
    at = [Sym("i0"), *(Sym(f"d{k}") for k in range(1, 4))]
    current = gathered_at(b, data, shape, at, [(index, (Sym("d0"),))], "clip")
    for axis, c in enumerate("HW"):
        target = list(current.tensor.shape)
        target[where[c]] = t.shape[where[c]]
        names = point_names(4)
        read = [Sym("e") if k == where[c] else Sym(n) for k, n in enumerate(names)]
        spot = (Sym("d0"), Sym(names[where[c]]))
        if per_axis is not None:
            operands, reads = [per_axis[axis], current], [(*spot, Sym("e")), tuple(read)]
        else:
            operands, reads = [*bounds[axis], current], [*[spot] * len(bounds[axis]), tuple(read)]
        result = TensorType(t.dtype, tuple(target))
        par = dict(zip(names, target, strict=True))
        red = {"e": current.tensor.shape[where[c]]}
        current = reduced(b, "tensor.reduce", operands, result, par, red, reads, body, init=init)
    return current


def _folded_samples(b: Builder, op: Op, x: Sequence[Value], sides: Sequence[_Side]) -> Value:
    """Samples [region, ..] with two dimensions for y and x each, folded over the second of each."""
    attrs = op.attributes
    data, rois = x
    t, ratio, first = result_type(op), attrs["sample_ratio"], attrs["layout"] == "NCHW"
    counts = [ratio if ratio > 0 else sample_bound(s.size) for s in sides]
    inner = [sides[0].bins, counts[0], sides[1].bins, counts[1]]
    channels = data.tensor.shape[attrs["layout"].index("C")]
    regions = rois.tensor.shape[0]
    shape = (regions, channels, *inner) if first else (regions, *inner, channels)
    acc = accumulated(TensorType(t.dtype, shape))
    if prod(acc.shape) > MAX_SAMPLES:
        raise UnsupportedError(f"roi_align of {prod(acc.shape)} samples; expected at most {MAX_SAMPLES}")
    places = [_places(b, s, n, ratio) for s, n in zip(sides, counts, strict=True)]
    start = 2 if first else 1
    axes = [
        SampledAxis(start + k, p, (Sym("d0"), Sym(f"d{start + 2 * k}"), Sym(f"d{start + 2 * k + 1}")), s.size)
        for k, (p, s) in enumerate(zip(places, sides, strict=True))
    ]
    at: list[Expr] = [Sym("i0"), Sym("d1"), 0, 0] if first else [Sym("i0"), 0, 0, Sym("d5")]
    index = (_images(b, rois, data.tensor.shape[0]), (Sym("d0"),))
    samples = interpolated(b, data, acc, at, axes, "linear", mode="fill", index=index)
    result = TensorType(acc.dtype, t.shape)
    if attrs["mode"] == "avg":
        return _average(b, samples, result, first, prod(counts))
    return _largest(b, samples, result, first, places, sides, ratio)


def _sample_reads(first: bool) -> tuple[list[str], tuple[Expr, ...]]:
    """Names of the result's dimensions (region, bins p and q, channel c), and where it reads the samples."""
    inner = [Sym(n) for n in ("p", "k", "q", "l")]
    if first:
        return ["n", "c", "p", "q"], (Sym("n"), Sym("c"), *inner)
    return ["n", "p", "q", "c"], (Sym("n"), *inner, Sym("c"))


def _average(b: Builder, samples: Value, t: TensorType, first: bool, count: int) -> Value:
    names, read = _sample_reads(first)
    shape = samples.tensor.shape
    red = {"k": shape[3 if first else 2], "l": shape[5 if first else 4]}

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return p[0].fma(1 / count, p[1])

    par = dict(zip(names, t.shape, strict=True))
    return reduced(b, "tensor.reduce", [samples], t, par, red, [read], body)


def _largest(
    b: Builder,
    samples: Value,
    t: TensorType,
    first: bool,
    places: Sequence[Value],
    sides: Sequence[_Side],
    ratio: int,
) -> Value:
    """The largest sample; where data says how many, a sample outside (zero) counts once per bin."""
    names, read = _sample_reads(first)
    shape = samples.tensor.shape
    red = {"k": shape[3 if first else 2], "l": shape[5 if first else 4]}
    par = dict(zip(names, t.shape, strict=True))
    low = lowest(t.dtype)
    if ratio > 0:
        return reduced(
            b, "tensor.reduce", [samples], t, par, red, [read],
            larger, init=low,
        )  # fmt: skip

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        there = [v >= 0 for v in p[1:3]]
        inside = i.value("scalar.and", *there)
        return inside.select(p[0], low).max(p[3])

    reads = [read, (Sym("n"), Sym("p"), Sym("k")), (Sym("n"), Sym("q"), Sym("l"))]
    best = reduced(b, "tensor.reduce", [samples, *places], t, par, red, reads, body, init=low)
    partial = [_partial(b, p, s) for p, s in zip(places, sides, strict=True)]

    def final(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        some = p[1] | p[2]
        return some.select(p[0].max(0), p[0])

    whole = tuple(map(Sym, names))
    return mapped(b, [best, *partial], t, par, [whole, (Sym("n"), Sym("p")), (Sym("n"), Sym("q"))], final)


def _partial(b: Builder, places: Value, side: _Side) -> Value:
    """Per region and bin: whether some of its samples lie outside the axis."""
    shape = places.tensor.shape
    par = dict(zip(("d0", "d1"), shape, strict=False))

    def count(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        there = p[0] >= 0
        return i.cast(there, side.dtype) + p[1]

    inside = reduced(
        b, "tensor.reduce", [places], TensorType(side.dtype, shape[:2]), par, {"k": shape[2]},
        [(Sym("d0"), Sym("d1"), Sym("k"))], count,
    )  # fmt: skip

    def fewer(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        _, extent = side.bin(i, p[1:])
        return p[0] < extent.ceil()

    reads = [(Sym("d0"), Sym("d1")), *side.reads()]
    return mapped(b, [inside, side.rois, side.rois], TensorType("bool", shape[:2]), par, reads, fewer)


def _bin_bounds(b: Builder, side: _Side) -> list[Value]:
    """First element [region, bin] of every rounded bin, and the one behind its last (i32)."""
    t = TensorType("i32", (side.rois.tensor.shape[0], side.bins))
    dtype = side.dtype

    def corner(i: Scalars, v: Scalar) -> Scalar:
        x = i.cast(v, dtype) * side.scale
        away = (abs(x) + 0.5).floor()
        negative = x < 0
        return negative.select(-away, away)

    def bound(behind: int) -> Value:
        def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            start, end = (corner(i, v) for v in p)
            span = end - start + 1
            extent = span.max(1)
            extent = extent / side.bins
            at = i.index(Sym("d1") + behind, dtype) * extent
            rounding, nudge = ("scalar.ceil", -BIN_EPSILON) if behind else ("scalar.floor", BIN_EPSILON)
            at = i.value(rounding, at + nudge)
            at = (at + start).max(0)
            return i.cast(at.min(side.size), "i32")

        par = dict(zip(("d0", "d1"), t.shape, strict=True))
        return mapped(b, [side.rois] * 2, t, par, side.reads(), body)

    return [bound(0), bound(1)]


@lowering("graph.roi_pool")
def roi_pool(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The largest element of each bin's rows, then of its columns; empty bins become zero."""
    t = result_type(op)
    layout = str(op["layout"])
    bounds = [_bin_bounds(b, side) for side in _sides(op, x)]
    low = lowest(t.dtype)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        here = i.index(Sym("e"))
        inside = (here >= p[0]) & (here < p[1])
        return inside.select(p[2], low).max(p[3])

    best = _axis_by_axis(b, x, t, layout, None, body, low, bounds)

    def final(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        empty = [p[1 + 2 * k] >= p[2 + 2 * k] for k in (0, 1)]
        return i.value("scalar.or", *empty).select(0, p[0])

    names = point_names(4)
    spots = [(Sym("d0"), Sym(names[layout.index(c)])) for c in "HW"]
    reads = [tuple(map(Sym, names)), spots[0], spots[0], spots[1], spots[1]]
    par = dict(zip(names, t.shape, strict=True))
    return [mapped(b, [best, *bounds[0], *bounds[1]], t, par, reads, final)]
