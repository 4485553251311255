"""Sequences of different lengths: places computed by a map, elements gathered there; ranges of numbers."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Op, Sym, TensorType, Value
from tilewright.ir.expr import Expr
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import dim_names, lowering, mapped, point_names, result_type
from tilewright.passes.lower.rules.indexing import picked
from tilewright.passes.lower.scalars import Scalar, Scalars


@lowering("graph.reverse_sequence")
def reverse_sequence(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The place read is length - 1 - i before the length, i from there on."""
    t = result_type(op)
    seq, batch = (op.integer(key) % t.rank for key in ("seq_axis", "batch_axis"))
    extent = t.shape[seq]

    def place(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        here = i.index(Sym("s"))
        index_dtype = "i32" if p[0].type.dtype == "i32" else "i64"
        count = i.cast(p[0], index_dtype).min(extent)
        length = i.cast(count, "i32")
        mirrored = length - 1 - here
        return (here < length).select(mirrored, here)

    place_type = TensorType("i32", (t.shape[batch], extent))
    places = mapped(b, [x[1]], place_type, {"n": t.shape[batch], "s": extent}, [(Sym("n"),)], place)
    at: list[Expr] = [Sym(d) for d in point_names(t.rank)]
    read = (at[batch], at[seq])
    at[seq] = Sym("i0")
    return [picked(b, x[0], [places], t, [read], at, "clip")]


@lowering("graph.sequence_mask")
def sequence_mask(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x before the length of its sequence, else the value."""
    t, axis = result_type(op), op.integer("axis")
    names = dim_names(t.rank)
    value = op.number("mask_value")

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        place = i.cast(i.index(Sym(names[axis])), p[1].type.dtype)
        before = place < p[1]
        return before.select(p[0], value)

    reads = [tuple(map(Sym, names)), (Sym(names[1 - axis]),)]
    return [mapped(b, x, t, dict(zip(names, t.shape, strict=True)), reads, body)]


@lowering("graph.arange")
def arange(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """start + i * step, in 64 bits for integers and at least 32 for floats."""
    t = result_type(op)
    start, step = op.number("start"), op.number("step")
    whole = isinstance(start, int) and isinstance(step, int)
    acc = {"f64": "f64"}.get(t.dtype, "f32") if t.dtype in FLOATS else "i64" if whole else "f64"

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        place = i.cast(i.index(Sym("i0")), acc)
        scaled = place * step
        total = start + scaled
        return i.cast(total, t.dtype)

    return [mapped(b, [], t, {"i0": t.shape[0]}, [], body)]
