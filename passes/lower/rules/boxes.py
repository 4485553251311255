"""Overlaps of boxes as one map, greedy selection as a recurrence, closing gaps as a scan and a scatter."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Op, Pairs, Sym, TensorType, Value, scalar_body
from tilewright.ir.nodes import Attr
from tilewright.passes.lower.lowering import accumulated, elementwise, lowering, mapped, reduced, result_type
from tilewright.passes.lower.rules.interpolation import point_names
from tilewright.passes.lower.rules.scans import scanned


@lowering("graph.box_overlap")
def box_overlap(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Each point reads the corners of two boxes."""
    t = result_type(op)
    held = accumulated(t).dtype
    ordered, offset = bool(op["sort_corners"]), float(op["offset"])  # type: ignore[arg-type]

    def extents(i: Builder, low: Value, high: Value) -> Value:
        return i.value("scalar.add", i.value("scalar.sub", high, low), i.const(offset, held))

    def body(i: Builder, p: Sequence[Value]) -> Value:
        a, c = ([i.cast(v, held) for v in p[k : k + 4]] for k in (0, 4))
        sides, areas = [], []
        for box in (a, c):
            lows, highs = box[:2], box[2:]
            if ordered:
                pairs = list(zip(box[:2], box[2:], strict=True))
                lows = [i.value("scalar.min", u, v) for u, v in pairs]
                highs = [i.value("scalar.max", u, v) for u, v in pairs]
            sides.append((lows, highs))
            spans = [extents(i, u, v) for u, v in zip(lows, highs, strict=True)]
            areas.append(i.value("scalar.mul", *spans))
        zero = i.const(0, held)
        shared = []
        for d in (0, 1):
            low = i.value("scalar.max", sides[0][0][d], sides[1][0][d])
            high = i.value("scalar.min", sides[0][1][d], sides[1][1][d])
            shared.append(i.value("scalar.max", extents(i, low, high), zero))
        common = i.value("scalar.mul", *shared)
        union = i.value("scalar.sub", i.value("scalar.add", *areas), common)
        part = i.value("scalar.div", common, union)
        return i.cast(i.value("scalar.select", i.value("scalar.le", union, zero), zero, part), t.dtype)

    par = dict(zip(("n", "i", "j"), t.shape, strict=True))
    reads = [(Sym("n"), Sym(which), k) for which in ("i", "j") for k in range(4)]
    return [mapped(b, [x[0]] * 8, t, par, reads, body)]


@lowering("graph.greedy_keep")
def greedy_keep(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """An element stays what it is unless an earlier one both stayed and suppresses it."""
    t = result_type(op)
    body, (suppresses, kept, held) = scalar_body(["bool"] * 3)
    body.loc = b.loc
    struck = body.value("scalar.and", suppresses, kept)
    body.do("scalar.yield", body.value("scalar.and", held, body.value("scalar.not", struck)))
    attrs: dict[str, Attr] = {
        "par": Pairs.of({"n": t.shape[0], "i": t.shape[1]}),
        "red": Pairs.of({"t": t.shape[1]}),
        "reads": ((Sym("n"), Sym("i")), (Sym("n"), Sym("i"), Sym("t"))),
        "dim": "i",
    }
    block = body.block((suppresses, kept, held))
    return b.emit("tensor.recur", x, attrs, types=[t], body=block)


@lowering("graph.compact")
def compact(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Kept rows are scattered to the places a running count gives them, the others nowhere."""
    rows, keep = x
    t, k = rows.tensor, keep.tensor
    lines = TensorType("i32", k.shape)
    flags = elementwise(b, [keep], lines, lambda i, p: i.cast(p[0], "i32"))

    def add(i: Builder, p: Sequence[Value]) -> Value:
        return i.value("scalar.add", p[0], p[1])

    places = scanned(b, flags, lines, 1, add, 0, exclusive=True)

    def placed(i: Builder, p: Sequence[Value]) -> Value:
        return i.value("scalar.select", p[0], p[1], i.const(k.shape[1], "i32"))

    target = elementwise(b, [keep, places], lines, placed)
    par = {"n": k.shape[0]}
    counts = reduced(
        b, "tensor.reduce", [flags], result_type(op, 1), par, {"i": k.shape[1]}, [(Sym("n"), Sym("i"))], add,
        init=0,
    )  # fmt: skip
    names = point_names(t.rank)
    domain = dict(zip(names, t.shape, strict=True))
    value: float = op["value"]  # type: ignore[assignment]
    init = mapped(b, [], t, domain, [], lambda i, p: i.const(value, t.dtype))
    return [_moved(b, init, rows, target), counts]


def _moved(b: Builder, init: Value, rows: Value, target: Value) -> Value:
    """A copy of `init` where row `target` is the row of `rows`; rows beyond the end are dropped."""
    t = rows.tensor
    names = point_names(t.rank)
    body, (old, new) = scalar_body([t.dtype, t.dtype])
    body.loc = b.loc
    body.do("scalar.yield", new)
    whole = tuple(map(Sym, names))
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(zip(names, t.shape, strict=True))),
        "reads": (whole, whole[:2]),
        "at": (whole[0], Sym("i0"), *whole[2:]),
    }
    (out,) = b.emit("tensor.scatter", [init, rows, target], attrs, types=[t], body=body.block((old, new)))
    return out
