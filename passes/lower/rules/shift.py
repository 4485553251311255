"""Spatial shift: a gather, which a convolution that follows computes where it reads."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Pairs, Sym, Value
from tilewright.ir.nodes import Attr
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import lowering, result_type


@lowering("graph.shift")
def shift(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Element (y, x) of channel c comes from (y + offsets[c, 0], x + offsets[c, 1])."""
    t, layout = result_type(op), str(op["data_layout"])
    names = {"N": "n", "C": "c", "H": "y", "W": "x"}
    at: dict[str, Expr] = {d: Sym(n) for d, n in names.items()}
    at["H"], at["W"] = at["H"] + Sym("i0"), at["W"] + Sym("i1")
    whole = t.dtype not in FLOATS
    attrs: dict[str, Attr] = {
        "par": Pairs.of({names[d]: n for d, n in zip(layout, t.shape, strict=True)}),
        "reads": ((Sym("c"), 0), (Sym("c"), 1)),
        "at": tuple(at[d] for d in layout),
        "mode": "fill",
        "fill_value": 0 if whole else 0.0,
    }
    return b.emit("tensor.gather", [x[0], x[1], x[1]], attrs, types=[t])
