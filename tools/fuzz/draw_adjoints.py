"""Draws derived adjoints: of ops that other drawers draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.ir.facts import Gradient
from tilewright.ir.nodes import Pairs
from tilewright.ir.opdef import facts_of
from tilewright.ir.types import FLOATS
from tilewright.running import interpreting  # noqa: F401  (what graph.adjoint computes)
from tilewright.tools.fuzz.program import RandomGraph, Rejected


def draw_adjoint(p: RandomGraph, drawers: Mapping[str, Callable[[RandomGraph], object]]) -> None:
    """The adjoint of an op that one of `drawers` draws, which stays in the graph.

    All its operands must be exact: which element is the largest must not depend on rounding.
    """
    drawers[p.choose(sorted(drawers))](p)
    op = p.builder.ops[-1]
    entries = {e.value: e for e in p.entries}
    operands = [entries[v] for v in op.operands]
    wrt = tuple(k for k, x in enumerate(operands) if x.dtype in FLOATS and p.chance(0.8))
    results = [k for k, r in enumerate(op.results) if r.tensor.dtype in FLOATS]
    smooth = facts_of(op.name).gradient in (Gradient.RULE, Gradient.DERIVED)
    if not (smooth and wrt and results and all(x.exact for x in operands)):
        raise Rejected("nothing to differentiate")
    given = tuple(k for k in results if p.chance(0.8)) or tuple(results[:1])
    cotangents = [p.fresh(op.results[k].tensor.shape, op.results[k].tensor.dtype) for k in given]
    p.emit("adjoint", *operands, *cotangents, of=op.name, attrs=Pairs(op.attrs), wrt=wrt, given=given)
