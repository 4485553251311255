"""The ways in which one op may run on several ranks: in rows of its results, in parts of its sums, or whole.

What an op says of its dimensions (`ir.division`) decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.division import DimLabels, Label, OperandRows, PartialOp, SlicedOp, replaced
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Attr, Op, Value
from tilewright.ir.opdef import attributes_at, facts_of
from tilewright.ir.windows import Interval


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


#: per operand: the rows every rank needs; None for the whole operand
Needs = tuple[tuple[OperandRows, ...] | None, ...]


def sliced(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Return the op that makes rows [start, end) of the results along `axis`; None where nothing says how."""
    labels = facts_of(op.name).division(op)
    if labels is None or not op.results:
        return None
    (label, *others) = (dims[axis] for dims in labels.results)
    if label is None or others != [label] * len(others):
        return None if labels.rows is None else labels.rows(op, axis, start, end)
    needs = tuple(_rows_labelled(label, dims, start, end) for dims in labels.operands)
    attrs = _attributes(op, needs)
    return None if attrs is None else SlicedOp(needs, attrs)


def summed(op: Op, operand: int, axis: int, start: int, end: int) -> PartialOp | None:
    """The op on rows [start, end) along `axis` of one operand; None where it needs all of them."""
    labels = facts_of(op.name).division(op)
    if labels is None:
        return None
    label = labels.operands[operand][axis]
    if label is None:
        return None if labels.parts is None else labels.parts(op, operand, axis, start, end)
    if label not in labels.sums | labels.maxima:
        return None
    needs = tuple(_rows_labelled(label, dims, start, end) for dims in labels.operands)
    attrs = _attributes(op, needs)
    return None if attrs is None else PartialOp(needs, attrs, "sum" if label in labels.sums else "max")


def _rows_labelled(label: Label, dims: DimLabels, start: int, end: int) -> OperandRows | None:
    return OperandRows(dims.index(label), start, end) if label in dims else None


def _attributes(op: Op, needs: Sequence[OperandRows | None]) -> Mapping[str, Attr] | None:
    """The attributes of the op on these rows of its operands; None where it does not say what they are."""
    shapes = [
        v.tensor.shape if n is None else replaced(v.tensor.shape, n.axis, n.end - n.start)
        for v, n in zip(op.operands, needs, strict=True)
    ]
    try:
        return attributes_at(op, shapes)
    except UnsupportedError:
        return None


@dataclass(frozen=True)
class Placement:
    """The decision on how an op runs, the same on all ranks.

    split: of its results; None where every rank has them whole.
    pieces: what each rank runs, None for a rank that makes nothing; without pieces all run the whole op.
    scatter: partial results are added and kept in rows (`split`) instead of whole.
    """

    split: Distribution = None
    pieces: tuple[SlicedOp | PartialOp | None, ...] = ()
    needs: Needs = ()
    scatter: bool = False

    @property
    def partial(self) -> bool:
        """True where the ranks' results are to be joined."""
        return any(isinstance(p, PartialOp) for p in self.pieces)


WHOLE = Placement()


def split_placement(op: Op, split: Split) -> Placement | None:
    """The op in these rows of its results; None where it cannot be made so."""
    whole = sliced(op, split.axis, 0, op.results[0].tensor.shape[split.axis])
    if whole is None:
        return None
    pieces: list[SlicedOp | PartialOp | None] = []
    for start, end in split.intervals:
        piece = sliced(op, split.axis, start, end) if end > start else None
        if piece is None and end > start:
            return None
        pieces.append(piece)
    return Placement(split, tuple(pieces), _needs(op, whole, pieces))


def partial_placement(op: Op, operand: int, split: Split, scatter: Split | None) -> Placement | None:
    """The op on the rows each rank has of one operand, its results joined; None where it cannot be made so.

    scatter: how the sum is kept; None: whole.
    """
    own = split.own()
    extent = op.operands[operand].tensor.shape[split.axis]
    whole = summed(op, operand, split.axis, 0, extent)
    if whole is None or (scatter is not None and whole.reduction != "sum"):
        return None
    pieces: list[SlicedOp | PartialOp | None] = []
    for start, end in own.intervals:
        piece = summed(op, operand, split.axis, start, end) if end > start else None
        if piece is None and end > start:
            return None
        pieces.append(piece)
    return Placement(scatter, tuple(pieces), _needs(op, whole, pieces), scatter is not None)


def _needs(op: Op, whole: SlicedOp | PartialOp, pieces: Sequence[SlicedOp | PartialOp | None]) -> Needs:
    out: list[tuple[OperandRows, ...] | None] = []
    for i in range(len(op.operands)):
        like = whole.needs[i]
        if like is None:
            out.append(None)
            continue
        rows = (None if p is None else p.needs[i] for p in pieces)
        out.append(tuple(n if n is not None else OperandRows(like.axis, 0, 0) for n in rows))
    return tuple(out)


def following_axes(op: Op, distributions: Mapping[Value, Distribution]) -> list[int]:
    """Axes of the results along which rows of the op are made from rows that operands are split into."""
    rank = op.results[0].tensor.rank
    if any(r.tensor.rank != rank for r in op.results):
        return []
    axes = []
    for axis in range(rank):
        whole = sliced(op, axis, 0, op.results[0].tensor.shape[axis])
        if whole is None:
            continue
        for v, need in zip(op.operands, whole.needs, strict=True):
            split = distributions.get(v)
            if split is not None and need is not None and need.axis == split.axis:
                axes.append(axis)
                break
    return axes


def followed_intervals(
    op: Op, axis: int, distributions: Mapping[Value, Distribution]
) -> tuple[Interval, ...] | None:
    """The rows of results that come from the rows of the largest split operand; None to cut them anew."""
    extent = op.results[0].tensor.shape[axis]
    whole = sliced(op, axis, 0, extent)
    if whole is None or whole.balanced:
        return None
    best: tuple[int, tuple[Interval, ...]] | None = None
    for v, need in zip(op.operands, whole.needs, strict=True):
        split = distributions.get(v)
        if split is None or need is None or need.axis != split.axis:
            continue
        scaled = _scaled(split.intervals, v.tensor.shape[split.axis], extent)
        if scaled is not None and (best is None or v.tensor.size > best[0]):
            best = v.tensor.size, scaled
    return None if best is None else best[1]


def _scaled(intervals: tuple[Interval, ...], before: int, after: int) -> tuple[Interval, ...] | None:
    if before == after:
        return intervals
    if not before or not after or any((b * after) % before for interval in intervals for b in interval):
        return None
    return tuple((s * after // before, e * after // before) for s, e in intervals)


def preserved_axis(op: Op, operand: int, axis: int) -> int | None:
    """The axis of the results whose row i is made from row i of one operand along `axis`, if there is one."""
    extent = op.operands[operand].tensor.shape[axis]
    for d in range(op.results[0].tensor.rank if op.results else 0):
        if op.results[0].tensor.shape[d] != extent:
            continue
        whole = sliced(op, d, 0, extent)
        need = None if whole is None or whole.balanced else whole.needs[operand]
        if need is not None and need.axis == axis:
            return d
    return None
