"""Bytes that ranks exchange for an op, and the part of its time that the slowest of them takes."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.division import OperandRows
from tilewright.ir.nodes import Value
from tilewright.passes.graph.distribute.rows.placement import Distribution, Split


def row_bytes(value: Value, axis: int) -> float:
    """Bytes of one row along an axis."""
    t = value.tensor
    return t.nbytes / t.shape[axis] if t.shape[axis] else 0.0


def gather_bytes(value: Value, distribution: Distribution) -> float:
    """Most bytes a rank receives to have a whole value."""
    if distribution is None:
        return 0.0
    own = distribution.own()
    return row_bytes(value, distribution.axis) * (value.tensor.shape[distribution.axis] - min(own.extents))


def fetch_bytes(value: Value, distribution: Distribution, needs: Sequence[OperandRows] | None) -> float:
    """Most bytes a rank receives to have the rows it needs (all rows where `needs` is None)."""
    if distribution is None:
        return 0.0
    if needs is None or needs[0].axis != distribution.axis:
        return gather_bytes(value, distribution)
    return row_bytes(value, distribution.axis) * max(map(missing_rows, needs, distribution.intervals))


def missing_rows(need: OperandRows, owned: tuple[int, int]) -> int:
    """Rows that are needed and not owned."""
    common = min(need.end, owned[1]) - max(need.start, owned[0])
    return need.end - need.start - max(0, common)


def share(split: Split, extent: int, speeds: Sequence[float]) -> float:
    """The part of a whole op's time that the rank takes which is done last."""
    if not extent:
        return 1.0
    return max(rows / extent / speed for rows, speed in zip(split.extents, speeds, strict=True))
