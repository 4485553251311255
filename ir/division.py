"""Along which dimensions a graph op works independently: labels that operands and results share.

An op may be done on a piece of a labelled dimension if every operand that has the label gives that piece; a
label that only operands have is summed (or its maximum taken) over the pieces. Dimensions without a label
are needed whole, unless a rule of the op says which rows of operands make rows of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from tilewright.ir.nodes import Attr, Op, Value
from tilewright.ir.windows import Interval

Label = int | str
#: one label per dimension; None where the dimension is needed whole
DimLabels = tuple[Label | None, ...]


@dataclass(frozen=True, slots=True)
class OperandRows:
    """Rows [start, end) of an operand along one of its axes."""

    axis: int
    start: int
    end: int


@dataclass(frozen=True)
class SlicedOp:
    """The op that makes rows [start, end) of its results along one axis.

    needs: per operand the rows it reads; None for the whole operand.
    attrs: attributes that differ from those of the whole op.
    keep: rows of what the sliced op makes that are wanted; None: all of them.
    align: rows must start and end at multiples of it.
    balanced: the rows are cut anew, evenly, instead of following those of an operand.
    """

    needs: tuple[OperandRows | None, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    keep: Interval | None = None
    align: int = 1
    balanced: bool = False


@dataclass(frozen=True)
class PartialOp:
    """The op on some rows of what it reduces; the results of all parts are to be joined.

    weight, divisor: what this part's result is multiplied by before it is added to those of the others, and
      what the sum is divided by; whole numbers, which no dtype rounds.
    """

    needs: tuple[OperandRows | None, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    reduction: Literal["sum", "max"] = "sum"
    weight: int = 1
    divisor: int = 1


#: (op, axis of its results, start, end) -> how these rows are made; None: not in rows along this axis
RowRule = Callable[[Op, int, int, int], SlicedOp | None]
#: (op, number of an operand, axis of it, start, end) -> the op on these rows; None: it needs all of them
PartRule = Callable[[Op, int, int, int, int], PartialOp | None]


#: (op, the operands of which every member has a summand) -> whether the op done by every member on its
#: summands and on the other operands, whole, gives summands of the result: `each`; `once` where the others
#: are zero but for one member; None: it does not
SummandRule = Callable[[Op, Sequence[Value]], Literal["each", "once"] | None]
#: how an op that standardises is done on samples in pieces (`ir.graph_ops.moments`)
MomentRule = Callable[..., tuple[Value, ...]]


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of every operand and every result; `sums` and `maxima` are what is reduced over.

    rows: how rows along a dimension of the results without a label are made, where they can be (windows,
      joins). parts: how the op is done on rows of an operand along a dimension without a label (means).
    summands: where the op is linear, in which operands. moments: how moments of pieces are joined.
    """

    operands: tuple[DimLabels, ...]
    results: tuple[DimLabels, ...]
    sums: frozenset[Label] = frozenset()
    maxima: frozenset[Label] = frozenset()
    rows: RowRule | None = None
    parts: PartRule | None = None
    summands: SummandRule | None = None
    moments: MomentRule | None = None


#: the labels of an op by its types and attributes; None where it needs its operands whole
Division = Callable[[Op], Labels | None]


def undivided(op: Op) -> Labels | None:
    """All operands are needed whole."""
    return None


def by_rules(
    rows: RowRule | None = None, parts: PartRule | None = None, labels: Division | None = None
) -> Division:
    """A division with rules for the dimensions that have no label: all of them, or those of `labels`."""

    def division(op: Op) -> Labels | None:
        stated = _unlabelled_op(op) if labels is None else labels(op)
        return None if stated is None else replace(stated, rows=rows, parts=parts)

    return division


def linear(labels: Division, rule: SummandRule) -> Division:
    """The division of an op that is linear in some operands."""

    def division(op: Op) -> Labels | None:
        stated = labels(op)
        return None if stated is None else replace(stated, summands=rule)

    return division


def in_its_operand(op: Op, summands: Sequence[Value]) -> Literal["each"]:
    """The summand rule of an op that is linear in its only operand."""
    return "each"


def _unlabelled_op(op: Op) -> Labels:
    operands = tuple(unlabelled(v.tensor.rank) for v in op.operands)
    return Labels(operands, tuple(unlabelled(r.tensor.rank) for r in op.results))


def replaced(values: Sequence[int], at: int, value: int) -> tuple[int, ...]:
    """`values` with another one at position `at`."""
    return (*values[:at], value, *values[at + 1 :])


def unlabelled(rank: int) -> DimLabels:
    """The labels of an operand that is needed whole."""
    return (None,) * rank


def part_of_mean(op: Op, operand: int, axis: int, start: int, end: int) -> PartialOp | None:
    """The mean over all rows is the mean of means over some of them, weighted by how many they are."""
    x = op.operands[0].tensor
    if not x.dtype.startswith(("f", "bf")):
        return None
    need = OperandRows(axis, start, end)
    return PartialOp((need,), weight=end - start, divisor=x.shape[axis])


def elementwise(op: Op) -> Labels:
    """Operands broadcast to the result, whose dimension d is labelled d."""
    shape = op.results[0].tensor.shape
    operands = (broadcast_labels(v.tensor.shape, shape, range(len(shape))) for v in op.operands)
    return Labels(tuple(operands), tuple(tuple(range(r.tensor.rank)) for r in op.results))


def broadcast_labels(sizes: Sequence[int], shape: Sequence[int], labels: Sequence[Label | None]) -> DimLabels:
    """Labels of a tensor that broadcasts to `shape` with its `labels`; where it repeats, it has none."""
    first = len(shape) - len(sizes)
    return tuple(labels[first + d] if n == shape[first + d] else None for d, n in enumerate(sizes))


def same_dimensions(op: Op, closed: Iterable[int] = (), *others: DimLabels) -> Labels:
    """Results with the dimensions of the first operand; `closed` ones are needed whole.

    others: labels of the second operand and of further ones; those after them have none.
    """
    rank = op.operands[0].tensor.rank
    shut = {d % rank for d in closed}
    dims = tuple(None if d in shut else d for d in range(rank))
    rest = (unlabelled(v.tensor.rank) for v in op.operands[1 + len(others) :])
    return Labels((dims, *others[: len(op.operands) - 1], *rest), (dims,) * len(op.results))


def axis_of(op: Op) -> int:
    """The attribute `axis`, counted from the front of the first operand."""
    return op.integer("axis") % op.operands[0].tensor.rank


def along_other_axes(op: Op) -> Labels:
    """The dimension `axis` is needed whole, all others are independent."""
    return same_dimensions(op, [op.integer("axis")])


def closed_from(first: int) -> Division:
    """Dimensions from `first` on (which may count from the back) are needed whole."""

    def division(op: Op) -> Labels:
        return same_dimensions(op, range(op.operands[0].tensor.rank)[first:])

    return division


def per_channel(op: Op) -> Labels:
    """Further operands hold one value per index of `axis`."""
    return same_dimensions(op, (), *((axis_of(op),) for _ in op.operands[1:]))


def of_image(letters: str) -> Division:
    """Ops on images of a `layout`, which work independently along the dimensions named."""

    def division(op: Op) -> Labels:
        dims = tuple(c if c in letters else None for c in str(op["layout"]))
        rest = (unlabelled(v.tensor.rank) for v in op.operands[1:])
        return Labels((dims, *rest), (dims,) * len(op.results))

    return division


def by_sample(count: int) -> Division:
    """Samples are independent: the first dimension of the first `count` operands and of the results."""

    def division(op: Op) -> Labels:
        operands = tuple(
            ("N", *unlabelled(v.tensor.rank - 1)) if i < count else unlabelled(v.tensor.rank)
            for i, v in enumerate(op.operands)
        )
        return Labels(operands, tuple(("N", *unlabelled(r.tensor.rank - 1)) for r in op.results))

    return division


def where_untouched(op: Op) -> Labels:
    """Slices, paddings and the like: dimensions that operands and results have alike and in full."""
    shapes = [v.tensor.shape for v in (*op.operands, *op.results) if v.tensor.rank == op.result.tensor.rank]
    shut = {d for d in range(op.result.tensor.rank) if len({s[d] for s in shapes}) > 1}
    for key, plain in (("begin", 0), ("strides", 1), ("pad_before", 0), ("pad_after", 0)):
        values = op.integers(key) if op.get(key) is not None else ()
        shut |= {d for d, n in enumerate(values) if n != plain}
    if op.get("axis") is not None:
        shut.add(axis_of(op))
    dims = tuple(None if d in shut else d for d in range(op.result.tensor.rank))
    alike = (dims if v.tensor.rank == len(dims) else unlabelled(v.tensor.rank) for v in op.operands)
    return Labels(tuple(alike), (dims,))


def where_not_repeated(op: Op) -> Labels:
    """Dimensions of the operand that are not repeated."""
    result = op.result.tensor.rank
    first = result - op.operands[0].tensor.rank
    pairs = zip(op.operands[0].tensor.shape, op.result.tensor.shape[first:], strict=True)
    dims = tuple(first + d if a == b else None for d, (a, b) in enumerate(pairs))
    return Labels((dims,), ((*unlabelled(first), *dims),))
