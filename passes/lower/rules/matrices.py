"""Parts of matrices by diagonals: maps that compare row and column."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, Value
from tilewright.ir.expr import maximum, minimum
from tilewright.ir.graph_ops.operands import zero
from tilewright.passes.lower.lowering import dim_names, elementwise, lowering, result_type
from tilewright.passes.lower.scalars import Scalar, Scalars


@lowering("graph.trilu")
def trilu(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x on one side of a diagonal, else zero."""
    t = result_type(op)
    names = dim_names(t.rank)
    test = "scalar.ge" if op["upper"] else "scalar.le"

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        above = i.index(Sym(names[-1]) - Sym(names[-2]))
        k = i.cast(p[1], "i64") if len(p) > 1 else i.const(op.integer("k"), "i64")
        inside = i.value(test, i.cast(above, "i64"), k)
        return inside.select(p[0], 0)

    reads: list[Sequence[Expr]] = [tuple(map(Sym, names)), *((0,) * k.tensor.rank for k in x[1:])]
    return [elementwise(b, x, t, body, reads)]


@lowering("graph.matrix_set_diag")
def matrix_set_diag(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Diagonals from the main one on count columns by row, those below it by column."""
    t, width = result_type(op), x[1].tensor.shape[-1]
    k1, k2, rows, columns = op.integer("k1"), op.integer("k2"), *t.shape[-2:]
    names = dim_names(t.rank)
    row, column = Sym(names[-2]), Sym(names[-1])
    k = column - row
    batch = tuple(map(Sym, names[:-2]))
    line: tuple[Expr, ...] = () if k1 == k2 else (k2 - k,)

    def shifted(place: Expr, length: Expr, right: object) -> Expr:
        return place + (width - length) if right else place

    above = shifted(row, minimum(rows, columns - maximum(k, 0)), op["super_diag_right_align"])
    below = shifted(column, minimum(rows + minimum(k, 0), columns), op["sub_diag_right_align"])
    # Each side of the main diagonal has its read of the diagonals; a side that is not there has none.
    sides: list[Expr] = [place for place, there in ((above, k2 >= 0), (below, k1 < 0)) if there]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        which = i.index(k)
        chosen = p[1]
        if len(sides) == 2:
            upper = which >= 0
            chosen = upper.select(p[1], p[2])
        low = which >= k1
        high = which <= k2
        return (low & high).select(chosen, p[0])

    operands = [x[0], *[x[1]] * len(sides)]
    reads = [tuple(map(Sym, names)), *((*batch, *line, place) for place in sides)]
    fill = (None, *[zero(t.dtype)] * len(sides))
    return [elementwise(b, operands, t, body, reads, fill)]
