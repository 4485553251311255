"""Rows, columns and inner extents of matrix products."""

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


@slice_rule("dense")
def dense_rows(op: Op, axis: int, start: int, end: int) -> Sliced:
    """Rows of the data, or units with their rows of the weight."""
    if axis == op.result.tensor.rank - 1:
        return Sliced((None, Need(0, start, end)), balanced=True)
    return Sliced((Need(axis, start, end), None))


@partial_rule("dense")
def dense_inner(op: Op, operand: int, axis: int, start: int, end: int) -> Partial | None:
    """Columns of data and weight: the ranks' products add up."""
    if axis != op.operands[operand].tensor.rank - 1:
        return None
    rank = op.operands[0].tensor.rank
    return Partial((Need(rank - 1, start, end), Need(1, start, end)))


@slice_rule("matmul", "batch_matmul")
def matmul_rows(op: Op, axis: int, start: int, end: int) -> Sliced:
    """Rows of a, columns of b, or matrices of both."""
    rank = op.result.tensor.rank
    a, b = (v.tensor for v in op.operands)
    if axis == rank - 2:
        return Sliced((Need(a.rank - (1 if op["transpose_a"] else 2), start, end), None))
    if axis == rank - 1:
        return Sliced((None, Need(b.rank - (2 if op["transpose_b"] else 1), start, end)))
    needs = []
    for t in (a, b):
        at = along(t.rank, rank, axis)
        needs.append(None if at is None or t.shape[at] == 1 else Need(at, start, end))
    return Sliced(tuple(needs))


@partial_rule("matmul", "batch_matmul")
def matmul_inner(op: Op, operand: int, axis: int, start: int, end: int) -> Partial | None:
    """Columns of a with rows of b: the ranks' products add up."""
    a, b = (v.tensor for v in op.operands)
    inner = (
        a.rank - (2 if op["transpose_a"] else 1),
        b.rank - (1 if op["transpose_b"] else 2),
    )
    if axis != inner[operand]:
        return None
    return Partial((Need(inner[0], start, end), Need(inner[1], start, end)))
