"""Updates at given indices: one tensor.scatter; sums and products of 16-bit floats are held in float32."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import maximum, minimum
from tilewright.ir.graph_ops.scattering import REDUCTIONS
from tilewright.ir.nodes import Attr
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    elementwise,
    lowering,
    point_names,
    result_type,
)
from tilewright.passes.lower.scalars import Body, Scalar, Scalars, written


def scattered(
    b: Builder,
    init: Value,
    updates: Value,
    indices: Sequence[Value],
    par: Sequence[int],
    reads: Sequence[Sequence[Expr]],
    at: Sequence[Expr],
    body: Body,
) -> Value:
    """A tensor.scatter over dimensions d0, d1, ... of extents `par`; i0, i1, ... are the indices read.

    body(old, update); reads are those of the updates, then of the indices.
    """
    block = written(b, [init.tensor.dtype, updates.tensor.dtype], body)
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(zip(point_names(len(par)), par, strict=True))),
        "reads": tuple(tuple(r) for r in reads),
        "at": tuple(at),
    }
    operands = [init, updates, *indices]
    (out,) = b.emit("tensor.scatter", operands, attrs, types=[init.type], body=block)
    return out


def combination(mode: str) -> Body:
    """body(old, update) of a mode."""

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        old, update = p[0], i.cast(p[1], p[0].type.dtype)
        if mode == "update":
            return update
        if mode != "mean":
            return i.value(f"scalar.{REDUCTIONS[mode]}", old, update)
        dtype = old.type.dtype
        division = "scalar.div" if dtype in FLOATS else "scalar.truncdiv"
        return i.value(division, old + update, i.const(2, dtype))

    return body


def from_end(index: Expr, extent: int) -> Expr:
    """`index + extent` where the index is negative."""
    negative = minimum(1, maximum(0, 0 - index))
    return index + negative * extent


def _combined(
    b: Builder,
    t: TensorType,
    x: Sequence[Value],
    indices: Sequence[Value],
    reads: Sequence[Sequence[Expr]],
    at: Sequence[Expr],
    mode: str,
) -> Sequence[Value]:
    """The scatter of data and updates in the dtype their combinations are held in."""
    data, updates = x
    acc = accumulated(t) if mode in ("add", "mul", "mean") else t
    init = converted(b, data, acc)
    out = scattered(b, init, updates, indices, updates.tensor.shape, reads, at, combination(mode))
    return [converted(b, out, t)]


@lowering("graph.scatter_elements")
def scatter_elements(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Every index is read once, with its update."""
    data, indices, updates = x
    t = result_type(op)
    axis = op.integer("axis") % t.rank
    names: list[Expr] = list(map(Sym, point_names(t.rank)))
    at = list(names)
    at[axis] = from_end(Sym("i0"), t.shape[axis])
    return _combined(b, t, [data, updates], [indices], [names, names], at, str(op["reduction"]))


@lowering("graph.scatter_nd")
def scatter_nd(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Every coordinate is an index operand: one row of the indices."""
    data, indices, updates = x
    t = result_type(op)
    depth, points = indices.tensor.shape[0], indices.tensor.rank - 1
    names: list[Expr] = list(map(Sym, point_names(updates.tensor.rank)))
    reads = [names, *((k, *names[:points]) for k in range(depth))]
    at = [*(from_end(Sym(f"i{k}"), t.shape[k]) for k in range(depth)), *names[points:]]
    return _combined(b, t, [data, updates], [indices] * depth, reads, at, str(op["mode"]))


@lowering("graph.sparse_to_dense")
def sparse_to_dense(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The default everywhere, and the values written over it."""
    indices, values, default = x
    t = result_type(op)
    init = elementwise(b, [default], t, lambda i, p: p[0])
    row: tuple[Expr, ...] = (Sym("d0"),) if indices.tensor.rank else ()
    columns = range(t.rank)
    reads = [
        row if values.tensor.rank else (),
        *((*row, k) if indices.tensor.rank == 2 else row for k in columns),
    ]
    rows = indices.tensor.shape[:1]
    at = [Sym(f"i{k}") for k in columns]
    return [scattered(b, init, values, [indices] * t.rank, rows, reads, at, combination("update"))]
