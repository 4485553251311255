"""Parts of reductions along axes they reduce; rows along those they keep follow from their labels."""

from __future__ import annotations

from tilewright.ir.nodes import Op
from tilewright.passes.graph.distribute.distribution import (
    Need,
    Partial,
    partial_rule,
)


def _reduced(op: Op) -> frozenset[int]:
    rank = op.operands[0].tensor.rank
    return frozenset(a % rank for a in op.integers("axis"))


@partial_rule("sum", "max", "mean")
def reduced_rows(op: Op, operand: int, axis: int, start: int, end: int) -> Partial | None:
    """Some of the rows that are reduced: sums add up, means weighted by their rows."""
    x = op.operands[0].tensor
    if axis not in _reduced(op) or x.dtype == "bool":
        return None
    need = (Need(axis, start, end),)
    if op.name == "graph.max":
        return Partial(need, reduction="max")
    if op.name == "graph.sum":
        return Partial(need)
    if not x.dtype.startswith(("f", "bf")):
        return None
    return Partial(need, weight=end - start, divisor=x.shape[axis])
