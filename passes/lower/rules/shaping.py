"""Ops that only move elements: maps whose reads say where each element comes from."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.operands import zero
from tilewright.ir.simplify import simplify
from tilewright.passes.lower.lowering import dim_names, elementwise, lowering, result_type
from tilewright.passes.lower.scalars import Scalar, Scalars


def _same(i: Scalars, p: Sequence[Scalar]) -> Scalar:
    return p[0]


def moved(b: Builder, x: Value, result: TensorType, read: Sequence[Expr]) -> Value:
    """A copy of `x` whose element (i0, i1, ...) is x[read]."""
    dim_names(result.rank)
    return elementwise(b, [x], result, _same, [tuple(read)])


def reshaped(b: Builder, x: Value, result: TensorType) -> Value:
    """The elements of `x` in row-major order under another shape."""
    names = dim_names(result.rank)
    ranges = {d: (0, max(0, n - 1)) for d, n in zip(names, result.shape, strict=True)}
    offset: Expr = 0
    for d, n in zip(names, result.shape, strict=True):
        offset = offset * n + Sym(d)
    read: list[Expr] = []
    for i, stride in enumerate(x.tensor.strides):
        extent = x.tensor.shape[i]
        e = offset // max(1, stride)
        read.append(simplify(e % max(1, extent) if i else e, ranges))
    return moved(b, x, result, read)


@lowering("graph.reshape", "graph.batch_flatten", "graph.expand_dims", "graph.squeeze")
def reshape(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The same elements in the same order."""
    return [reshaped(b, x[0], result_type(op))]


@lowering("graph.concatenate")
def concatenate(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Each element comes from the operand whose range along the axis holds it, so never from an empty one."""
    t = result_type(op)
    axis = op.integer("axis") % t.rank
    full = [v for v in x if v.tensor.shape[axis]] or x[:1]
    return [_joined(b, full, t, axis, [v.tensor.shape[axis] for v in full], drop=False)]


@lowering("graph.stack")
def stack(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Operands side by side along a new axis."""
    t = result_type(op)
    return [_joined(b, x, t, op.integer("axis") % t.rank, [1] * len(x), drop=True)]


def _joined(
    b: Builder, x: Sequence[Value], t: TensorType, axis: int, sizes: Sequence[int], *, drop: bool
) -> Value:
    names = dim_names(t.rank)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    reads, fill = [], []
    for start in starts:
        at: list[Expr] = [Sym(d) for d in names]
        if drop:
            del at[axis]
        else:
            at[axis] -= start
        reads.append(tuple(at))
        fill.append(None if drop else zero(t.dtype))

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        out = p[-1]
        where = i.index(Sym(names[axis]))
        for k in range(len(p) - 2, -1, -1):
            here = where < starts[k + 1]
            out = here.select(p[k], out)
        return out

    return elementwise(b, x, t, body, reads, fill if len(x) > 1 else ())


@lowering("graph.split")
def split(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Consecutive slices along an axis."""
    rank = x[0].tensor.rank
    axis = op.integer("axis") % rank
    names, start, out = dim_names(rank), 0, []
    for r in op.results:
        at: list[Expr] = [Sym(d) for d in names]
        at[axis] += start
        out.append(moved(b, x[0], r.tensor, at))
        start += r.tensor.shape[axis]
    return out
