"""Spatial shift: a gather, which a convolution that follows computes where it reads."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, Value
from tilewright.passes.lower.lowering import looked_up, lowering, result_type


@lowering("graph.shift")
def shift(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Element (y, x) of channel c comes from (y + offsets[c, 0], x + offsets[c, 1])."""
    t, layout = result_type(op), str(op["data_layout"])
    names = {"N": "n", "C": "c", "H": "y", "W": "x"}
    at: dict[str, Expr] = {d: Sym(n) for d, n in names.items()}
    at["H"], at["W"] = at["H"] + Sym("i0"), at["W"] + Sym("i1")
    par = {names[d]: n for d, n in zip(layout, t.shape, strict=True)}
    reads = ((Sym("c"), 0), (Sym("c"), 1))
    return [looked_up(b, x[0], [x[1], x[1]], par, reads, [at[d] for d in layout], "fill")]
