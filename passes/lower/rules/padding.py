"""Padding: a constant is what a read gives outside x, other modes read x where the element is repeated."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, Value
from tilewright.ir.expr import maximum, minimum
from tilewright.ir.graph_ops.operands import zero
from tilewright.passes.lower.lowering import dim_names, elementwise, lowering, result_type
from tilewright.passes.lower.rules.shaping import moved
from tilewright.passes.lower.scalars import Scalar, Scalars


@lowering("graph.pad")
def pad(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """One map over the padded shape."""
    t = result_type(op)
    names = dim_names(t.rank)
    before, mode = op.integers("pad_before"), str(op["pad_mode"])
    shape = x[0].tensor.shape
    if mode != "constant":
        read = [
            _mirrored(Sym(d), lo, n, mode) if n != whole else Sym(d)
            for d, lo, n, whole in zip(names, before, shape, t.shape, strict=True)
        ]
        return [moved(b, x[0], t, read)]
    at: list[Expr] = [Sym(d) - lo for d, lo in zip(names, before, strict=True)]
    if len(x) == 1:
        fill = type(zero(t.dtype))(op.number("pad_value"))
        return [elementwise(b, x, t, lambda i, p: p[0], [at], (fill,))]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        out = p[0]
        for d, lo, n, whole in zip(names, before, shape, t.shape, strict=True):
            if lo:
                above = i.index(Sym(d)) >= lo
                out = above.select(out, p[1])
            if lo + n < whole:
                below = i.index(Sym(d)) < lo + n
                out = below.select(out, p[1])
        return out

    return [elementwise(b, x, t, body, [at, (0,) * x[1].tensor.rank], (zero(t.dtype), None))]


def _mirrored(i: Expr, before: int, size: int, mode: str) -> Expr:
    """Return where place i of a dimension padded by `before` reads `size` elements.

    Mirror images repeat with a period of twice the size, less the two edges where those are left out.
    """
    last = size - 1
    if mode == "edge":
        return minimum(maximum(i - before, 0), last)
    period = 2 * size if mode == "symmetric" else 2 * last
    if period == 0:
        return 0
    place = (i + -before % period) % period
    back = (period - 1 if mode == "symmetric" else period) - place
    return minimum(minimum(place, back), last)
