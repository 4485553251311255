"""Windowed ops made in parts: rows that need own rows only while halos are under way, border rows after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from tilewright.costmodel.op_work import Rates
from tilewright.ir.division import OperandRows
from tilewright.ir.nodes import Op, Value
from tilewright.ir.windows import Interval
from tilewright.passes.graph.distribute.rows.exchanges import missing_rows, row_bytes
from tilewright.passes.graph.distribute.rows.layer_axes import image_layout
from tilewright.passes.graph.distribute.rows.placement import Distribution, Placement, Split, sliced

#: auto: where the time that is hidden exceeds what the additional kernels cost
Overlap = Literal["auto", "always", "never"]
OVERLAPS: tuple[Overlap, ...] = get_args(Overlap)


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows of a rank's result, one part after another; part `interior` needs rows that the rank has."""

    rows: tuple[Interval, ...]
    interior: int

    @property
    def borders(self) -> tuple[Interval, ...]:
        """The parts that need rows of other ranks."""
        return self.rows[: self.interior] + self.rows[self.interior + 1 :]


def parts_of(op: Op, axis: int, rows: Interval, own: Interval) -> Parts | None:
    """Rows of the result of a windowed op, of whose first operand a rank has the rows `own`, in parts.

    None where all or none of them can be made of the own rows, or where the op cannot be made in such parts.
    """
    start, end = rows

    def need(first: int, last: int) -> OperandRows | None:
        made = sliced(op, axis, first, last)
        return made.needs[0] if made is not None and made.keep is None and made.align == 1 else None

    def begins_inside(at: int) -> bool:
        rows_read = need(at, end)
        return rows_read is not None and rows_read.axis == axis and rows_read.start >= own[0]

    first = _least(start, end, begins_inside)

    def ends_outside(at: int) -> bool:
        rows_read = need(first, at)
        return rows_read is None or rows_read.end > own[1]

    last = _least(first + 1, end + 1, ends_outside) - 1
    if last <= first or (first, last) == (start, end):
        return None
    parts = tuple(p for p in pairwise((start, first, last, end)) if p[0] < p[1])
    needs = [need(*p) for p in parts]
    inside = needs[parts.index((first, last))]
    if any(n is None for n in needs) or inside is None or inside.start < own[0] or inside.end > own[1]:
        return None
    return Parts(parts, parts.index((first, last)))


def _least(start: int, end: int, holds: Callable[[int], bool]) -> int:
    """The least number in [start, end) from which on a condition holds; `end` where it never does."""
    while start < end:
        middle = (start + end) // 2
        start, end = (start, middle) if holds(middle) else (middle + 1, end)
    return start


def overlapped(
    op: Op,
    placement: Placement,
    distributions: Mapping[Value, Distribution],
    policy: Overlap,
    rates: Rates,
    speeds: Sequence[float],
) -> tuple[tuple[Parts | None, ...], float]:
    """Every rank's parts of an op, None where its rows are made at once; and the seconds they save.

    auto decides per rank, which the others need not know: messages are the same. The seconds are those of the
    rank that is done last; none where `always` costs more than it hides, so that it decides nothing else.
    """
    none = (None,) * len(speeds), 0.0
    split = placement.split
    source = distributions.get(op.operands[0]) if image_layout(op) is not None else None
    if policy == "never" or split is None or source is None or placement.partial:
        return none
    needs = placement.needs[0]
    if needs is None or needs[0].axis != source.axis or source.axis != split.axis:
        return none
    if any(n is not None for n in placement.needs[1:]):
        return none
    return _decided(op, split, source, needs, policy == "always", rates, speeds)


def _decided(
    op: Op,
    split: Split,
    source: Split,
    needs: Sequence[OperandRows],
    always: bool,
    rates: Rates,
    speeds: Sequence[float],
) -> tuple[tuple[Parts | None, ...], float]:
    fetched = row_bytes(op.operands[0], source.axis)
    chosen: list[Parts | None] = []
    before = after = 0.0
    for rows, own, need, speed in zip(split.intervals, source.intervals, needs, speeds, strict=True):
        parts = parts_of(op, split.axis, rows, own) if rows[1] > rows[0] else None

        def seconds(part: Interval, speed: float = speed) -> float:
            return rates.rows_s(op, split.axis, part[1] - part[0]) / speed

        moved = rates.move_s(fetched * missing_rows(need, own))
        plain = moved + (seconds(rows) if rows[1] > rows[0] else 0.0)
        best = plain
        if parts is not None and moved:
            inside = max(moved, seconds(parts.rows[parts.interior]))
            in_parts = inside + sum(map(seconds, parts.borders)) + rates.kernel_s * len(parts.borders)
            parts = parts if always or in_parts < plain else None
            best = in_parts if parts is not None else plain
        else:
            parts = None
        chosen.append(parts)
        before, after = max(before, plain), max(after, best)
    return tuple(chosen), max(0.0, before - after)
