"""Overlaps of boxes as one map, greedy selection as a recurrence, closing gaps as a scan and a scatter."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.nodes import Attr
from tilewright.passes.lower.lowering import (
    accumulated,
    added,
    elementwise,
    lowering,
    mapped,
    point_names,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.scans import scanned
from tilewright.passes.lower.scalars import Scalar, Scalars, written


@lowering("graph.box_overlap")
def box_overlap(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Each point reads the corners of two boxes."""
    t = result_type(op)
    acc = accumulated(t).dtype
    ordered, offset = bool(op["sort_corners"]), float(op.number("offset"))

    def extents(i: Scalars, low: Scalar, high: Scalar) -> Scalar:
        return high - low + offset

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        a, c = ([i.cast(v, acc) for v in p[k : k + 4]] for k in (0, 4))
        sides, areas = [], []
        for box in (a, c):
            lows, highs = box[:2], box[2:]
            if ordered:
                pairs = list(zip(box[:2], box[2:], strict=True))
                lows = [u.min(v) for u, v in pairs]
                highs = [u.max(v) for u, v in pairs]
            sides.append((lows, highs))
            spans = [extents(i, u, v) for u, v in zip(lows, highs, strict=True)]
            areas.append(i.value("scalar.mul", *spans))
        zero = i.const(0, acc)
        shared = []
        for d in (0, 1):
            low = sides[0][0][d].max(sides[1][0][d])
            high = sides[0][1][d].min(sides[1][1][d])
            shared.append(extents(i, low, high).max(zero))
        common = i.value("scalar.mul", *shared)
        union = i.value("scalar.add", *areas) - common
        part = common / union
        return i.cast((union <= zero).select(zero, part), t.dtype)

    par = dict(zip(("n", "i", "j"), t.shape, strict=True))
    reads = [(Sym("n"), Sym(which), k) for which in ("i", "j") for k in range(4)]
    return [mapped(b, [x[0]] * 8, t, par, reads, body)]


@lowering("graph.greedy_keep")
def greedy_keep(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """An element stays what it is unless an earlier one both stayed and suppresses it."""
    t = result_type(op)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        suppresses, stays, before = p
        struck = suppresses & stays
        return before & ~struck

    attrs: dict[str, Attr] = {
        "par": Pairs.of({"n": t.shape[0], "i": t.shape[1]}),
        "red": Pairs.of({"t": t.shape[1]}),
        "reads": ((Sym("n"), Sym("i")), (Sym("n"), Sym("i"), Sym("t"))),
        "dim": "i",
    }
    return b.emit("tensor.recur", x, attrs, types=[t], body=written(b, ["bool"] * 3, body))


@lowering("graph.compact")
def compact(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Kept rows are scattered to the places a running count gives them, the others nowhere."""
    rows, keep = x
    t, k = rows.tensor, keep.tensor
    lines = TensorType("i32", k.shape)
    flags = elementwise(b, [keep], lines, lambda i, p: i.cast(p[0], "i32"))

    places = scanned(b, flags, lines, 1, added, 0, exclusive=True)

    def placed(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return p[0].select(p[1], k.shape[1])

    target = elementwise(b, [keep, places], lines, placed)
    par = {"n": k.shape[0]}
    counts = reduced(
        b, "tensor.reduce", [flags], result_type(op, 1), par, {"i": k.shape[1]}, [(Sym("n"), Sym("i"))],
        added, init=0,
    )  # fmt: skip
    names = point_names(t.rank)
    domain = dict(zip(names, t.shape, strict=True))
    value = op.number("value")
    init = mapped(b, [], t, domain, [], lambda i, p: i.const(value, t.dtype))
    return [_moved(b, init, rows, target), counts]


def _moved(b: Builder, init: Value, rows: Value, target: Value) -> Value:
    """A copy of `init` where row `target` is the row of `rows`; rows beyond the end are dropped."""
    t = rows.tensor
    names = point_names(t.rank)
    block = written(b, [t.dtype, t.dtype], lambda i, p: p[1])
    whole = tuple(map(Sym, names))
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(zip(names, t.shape, strict=True))),
        "reads": (whole, whole[:2]),
        "at": (whole[0], Sym("i0"), *whole[2:]),
    }
    (out,) = b.emit("tensor.scatter", [init, rows, target], attrs, types=[t], body=block)
    return out
