"""How a graph value is spread over ranks, and what an op needs to make some rows of its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from tilewright.ir.facts import Elements
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import facts_of

R = TypeVar("R")

#: half-open interval of rows along an axis
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Split:
    """Rank r holds rows intervals[r] along `axis`; together they cover the extent, and they may overlap."""

    axis: int
    intervals: tuple[Interval, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """Rows of every rank."""
        return tuple(end - start for start, end in self.intervals)

    def own(self) -> Split:
        """The same rows without overlaps: of rows that several ranks hold, the first rank keeps them."""
        out: list[Interval] = []
        reached = 0
        for start, end in self.intervals:
            first = max(start, reached)
            out.append((first, end) if end > first else (reached, reached))
            reached = out[-1][1]
        return Split(self.axis, tuple(out))


#: None: every rank holds the whole value
Distribution = Split | None


@dataclass(frozen=True, slots=True)
class Need:
    """Rows [start, end) of an operand along one of its axes."""

    axis: int
    start: int
    end: int


@dataclass(frozen=True)
class Sliced:
    """The op that makes rows [start, end) of a result along one axis.

    needs: per operand the rows it reads; None for the whole operand.
    attrs: attributes that differ from those of the whole op.
    keep: rows of what the sliced op makes that are wanted; None: all of them.
    align: rows must start and end at multiples of it.
    balanced: the rows are cut anew, evenly, instead of following those of an operand.
    """

    needs: tuple[Need | None, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    keep: Interval | None = None
    align: int = 1
    balanced: bool = False


@dataclass(frozen=True)
class Partial:
    """The op on some rows of what it sums (or takes the maximum) over; all ranks' results are to be joined.

    weight, divisor: what this rank's result is multiplied by before it is added to those of the others, and
      what the sum is divided by; whole numbers, which no dtype rounds.
    """

    needs: tuple[Need | None, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    reduction: Literal["sum", "max"] = "sum"
    weight: int = 1
    divisor: int = 1


#: (op, axis of its results, start, end) -> how these rows are made; None: not in rows along this axis
SliceRule = Callable[[Op, int, int, int], Sliced | None]
#: (op, number of an operand, axis of it, start, end) -> the op on these rows; None: it needs all of them
PartialRule = Callable[[Op, int, int, int, int], Partial | None]

#: what ops do to elements whose rows follow from their labels: no attribute changes, no rows overlap
_LABELS_SUFFICE = {
    *(Elements.KEEPS, Elements.MAPS, Elements.MAPS_PER_CHANNEL, Elements.REDUCES, Elements.NORMALISES),
}
_SLICES: dict[str, SliceRule] = {}
_PARTIALS: dict[str, PartialRule] = {}


def slice_rule(*names: str) -> Callable[[SliceRule], SliceRule]:
    """Register how ops of these names (without `graph.`) are made in rows."""

    return _registering(_SLICES, names, "rows")


def partial_rule(*names: str) -> Callable[[PartialRule], PartialRule]:
    """Register how ops of these names (without `graph.`) sum over rows of an operand."""

    return _registering(_PARTIALS, names, "sums")


def _registering(table: dict[str, R], names: Sequence[str], what: str) -> Callable[[R], R]:
    def register(rule: R) -> R:
        for name in names:
            if f"graph.{name}" in table:
                raise ValueError(f"graph.{name} has a rule for its {what} already")
            table[f"graph.{name}"] = rule
        return rule

    return register


def sliced(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """How rows [start, end) along `axis` of the results of an op are made; None where nothing says so."""
    rule = _SLICES.get(op.name)
    if rule is None and facts_of(op.name).elements in _LABELS_SUFFICE:
        rule = _labelled_rows
    return None if rule is None else rule(op, axis, start, end)


def _labelled_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """The rows of every operand that have the label of the result's rows; none where the op needs all."""
    labels = facts_of(op.name).division(op)
    label = labels.results[0][axis] if labels is not None else None
    if labels is None or label is None:
        return None
    places = (dims.index(label) if label in dims else None for dims in labels.operands)
    return Sliced(tuple(None if at is None else Need(at, start, end) for at in places))


def summed(op: Op, operand: int, axis: int, start: int, end: int) -> Partial | None:
    """The op on rows [start, end) along `axis` of one operand; None where it needs all of them."""
    rule = _PARTIALS.get(op.name)
    return None if rule is None else rule(op, operand, axis, start, end)


def along(value_rank: int, result_rank: int, axis: int) -> int | None:
    """The axis of an operand that broadcasts to `axis` of the result; None where it has none."""
    found = axis - (result_rank - value_rank)
    return found if found >= 0 else None


def replaced(values: Sequence[int], at: int, value: int) -> tuple[int, ...]:
    """`values` with another one at position `at`."""
    return (*values[:at], value, *values[at + 1 :])
