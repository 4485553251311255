"""Pass multiply-by-reciprocals: a division by constants is a multiplication by what 1 divided by them is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir import Level, Module, Op, Value
from tilewright.passes import PassContext, register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module

#: types whose reciprocals are rounded finely enough: of float16 both roundings would show in the result
DTYPES = frozenset({"f32", "f64"})


@register_pass(Level.GRAPH, requires={"shapes-known"})
def multiply_by_reciprocals(module: Module, ctx: PassContext) -> Module:
    """Replace a division by constants, which costs a GPU about ten multiplications.

    rewrite:  graph.divide(%x, c)   -->   graph.multiply(%x, 1 / c)

    Reciprocals are computed in float64 and rounded once, so that a quotient is within 1.5 units in the last
    place instead of 0.5. A constant stays where it is zero, not finite, or has no normal reciprocal.
    """
    return rewrite_module(
        module, [Pattern("reciprocal", frozenset({"graph.divide"}), _multiplied)], level="graph"
    )


def _multiplied(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    value, divisor = op.operands
    array, source = rewriter.constant(divisor), rewriter.producer(divisor)
    if array is None or source is None or divisor.tensor.dtype not in DTYPES:
        return None
    with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
        reciprocals = (1.0 / array.astype(np.float64)).astype(array.dtype)
    if not np.isfinite(reciprocals).all() or (np.abs(reciprocals) < np.finfo(array.dtype).tiny).any():
        return None
    factor = rewriter.new_constant("graph", f"{source['name']}.reciprocal", reciprocals, divisor.type)
    return rewriter.emit("graph.multiply", (value, factor), hint=op.result.hint)
