"""Blocks of pixels and channels: one map whose read takes positions apart and puts them together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir import Builder, Expr, Op, Sym, Value
from tilewright.passes.lower.lowering import dim_names, lowering, result_type
from tilewright.passes.lower.rules.shaping import moved


@lowering("graph.depth_to_space")
def depth_to_space(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Row and column within the block choose the channel of x."""
    t, size, layout = result_type(op), op.integer("block_size"), str(op["layout"])
    at: dict[str, Expr] = {d: Sym(s) for d, s in zip(layout, dim_names(4), strict=True)}
    h, w, channels = at["H"], at["W"], t.shape[layout.index("C")]
    block = h % size * size + w % size
    c = block * channels + at["C"] if op["mode"] == "DCR" else at["C"] * (size * size) + block
    read = {"N": at["N"], "C": c, "H": h // size, "W": w // size}
    return [moved(b, x[0], t, _ordered(read, layout))]


@lowering("graph.space_to_depth")
def space_to_depth(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The channel says which channel, row and column within the block of x."""
    t, size, layout = result_type(op), op.integer("block_size"), str(op["layout"])
    at: dict[str, Expr] = {d: Sym(s) for d, s in zip(layout, dim_names(4), strict=True)}
    square, channels = size * size, max(1, x[0].tensor.shape[layout.index("C")])
    if op["mode"] == "DCR":
        block, c = at["C"] // channels, at["C"] % channels
    else:
        block, c = at["C"] % square, at["C"] // square
    h = at["H"] * size + block // size
    w = at["W"] * size + block % size
    return [moved(b, x[0], t, _ordered({"N": at["N"], "C": c, "H": h, "W": w}, layout))]


def _ordered(read: Mapping[str, Expr], layout: str) -> list[Expr]:
    return [read[d] for d in layout]
