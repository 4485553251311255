"""Ops that rearrange, repeat or select elements by position: one map each, its read says which element."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, Value
from tilewright.ir.graph_ops.operands import zero
from tilewright.passes.lower.lowering import broadcast_read, dim_names, lowering, mapped, result_type
from tilewright.passes.lower.rules.shaping import moved
from tilewright.passes.lower.scalars import Scalar, Scalars


@lowering("graph.transpose")
def transpose(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Dimension axes[d] of x is read at dimension d of the result."""
    t = result_type(op)
    names = dim_names(t.rank)
    axes = [a % t.rank for a in op.integers("axes")]
    return [moved(b, x[0], t, [Sym(names[axes.index(d)]) for d in range(t.rank)])]


@lowering("graph.broadcast_to")
def broadcast_to(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Extents of 1 are read at 0."""
    t = result_type(op)
    return [moved(b, x[0], t, broadcast_read(x[0].tensor.shape, dim_names(t.rank), t.shape))]


@lowering("graph.strided_slice")
def strided_slice(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Read at begin + i * stride."""
    t = result_type(op)
    begin, strides = op.integers("begin"), op.integers("strides")
    read = [Sym(d) * step + first for d, first, step in zip(dim_names(t.rank), begin, strides, strict=True)]
    return [moved(b, x[0], t, read)]


@lowering("graph.reverse")
def reverse(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Read at the last element minus i along the axis."""
    t = result_type(op)
    axis = op.integer("axis") % t.rank
    read: list[Expr] = [Sym(d) for d in dim_names(t.rank)]
    read[axis] = t.shape[axis] - 1 - read[axis]
    return [moved(b, x[0], t, read)]


@lowering("graph.tile")
def tile(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Read at the remainder of i by the extent of x."""
    t, source = result_type(op), x[0].tensor.shape
    read = [
        Sym(d) if n == whole else Sym(d) % max(1, n)
        for d, n, whole in zip(
            dim_names(t.rank)[t.rank - len(source) :], source, t.shape[t.rank - len(source) :], strict=True
        )
    ]
    return [moved(b, x[0], t, read)]


@lowering("graph.repeat")
def repeat(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Read at i // repeats along the axis."""
    t = result_type(op)
    axis = op.integer("axis") % t.rank
    read: list[Expr] = [Sym(d) for d in dim_names(t.rank)]
    read[axis] = read[axis] // max(1, op.integer("repeats"))
    return [moved(b, x[0], t, read)]


@lowering("graph.sliding_window")
def sliding_window(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Read at place * stride + element."""
    t, rank = result_type(op), x[0].tensor.rank
    names, axis = dim_names(t.rank), op.integer("axis") % rank
    places, taps = names[axis:rank], names[rank:]
    read: list[Expr] = [Sym(d) for d in names[:axis]]
    for place, tap, step in zip(places, taps, op.integers("strides"), strict=True):
        read.append(Sym(place) * step + Sym(tap))
    return [moved(b, x[0], t, read)]


@lowering("graph.strided_set")
def strided_set(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """v where each index is begin + i * stride for an element i of v, else x."""
    t, size = result_type(op), x[1].tensor.shape
    begin, strides = op.integers("begin"), op.integers("strides")
    names = dim_names(t.rank)
    steps: list[Expr] = []
    tests: list[tuple[str, Expr, int]] = []
    for d, n, whole, first, step in zip(names, size, t.shape, begin, strides, strict=True):
        way = Sym(d) - first if step > 0 else first - Sym(d)
        steps.append(way // abs(step))
        if n < whole:
            tests.append(("scalar.ge", way, 0))
            tests.append(("scalar.lt", steps[-1], n))
        if abs(step) > 1:
            tests.append(("scalar.eq", way % abs(step), 0))

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        inside: Scalar | None = None
        for compare, at, bound in tests:
            true = i.value(compare, i.index(at), i.const(bound, "i32"))
            inside = true if inside is None else inside & true
        return p[1] if inside is None else inside.select(p[1], p[0])

    reads = [tuple(map(Sym, names)), tuple(steps)]
    par = dict(zip(names, t.shape, strict=True))
    return [mapped(b, x, t, par, reads, body, (None, zero(t.dtype)))]
