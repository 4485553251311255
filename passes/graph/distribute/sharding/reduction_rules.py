"""Rows of reductions along axes they keep, and their parts along axes they reduce."""

from __future__ import annotations

from tilewright.ir.nodes import Op
from tilewright.passes.graph.distribute.distribution import (
    Need,
    Partial,
    Sliced,
    along,
    partial_rule,
    slice_rule,
)


def _reduced(op: Op) -> frozenset[int]:
    rank = op.operands[0].tensor.rank
    return frozenset(a % rank for a in op.integers("axis"))


@slice_rule("sum", "prod", "max", "min", "all", "any", "mean", "variance", "argmax", "argmin")
def kept_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Rows along an axis that is kept."""
    reduced = _reduced(op)
    rank = op.operands[0].tensor.rank
    kept = range(rank) if op["keepdims"] else [d for d in range(rank) if d not in reduced]
    if not kept or kept[axis] in reduced:
        return None
    needs: list[Need | None] = [Need(kept[axis], start, end)]
    for v in op.operands[1:]:  # the mean that a variance is taken around broadcasts to x
        at = along(v.tensor.rank, rank, kept[axis])
        needs.append(None if at is None or v.tensor.shape[at] == 1 else Need(at, start, end))
    return Sliced(tuple(needs))


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
