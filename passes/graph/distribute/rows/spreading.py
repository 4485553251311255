"""Decides for every op of @main how it runs on several ranks, the same way on each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from tilewright.costmodel.op_work import Rates
from tilewright.costmodel.partition.naive import split_extent
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Op, Value
from tilewright.ir.windows import Interval
from tilewright.passes.graph.distribute.rows.exchanges import fetch_bytes, gather_bytes, share
from tilewright.passes.graph.distribute.rows.layer_axes import (
    INNER,
    Direction,
    direction_axis,
    inner_axis,
    is_layer,
    is_product,
)
from tilewright.passes.graph.distribute.rows.overlap import Overlap, Parts, overlapped
from tilewright.passes.graph.distribute.rows.placement import (
    WHOLE,
    Distribution,
    Placement,
    Split,
    followed_intervals,
    following_axes,
    partial_placement,
    sliced,
    split_placement,
)


@dataclass(frozen=True)
class PlannedLayer:
    """A plan of one layer: its direction (None: all ranks run it whole), and every rank's rows.

    kept: of a layer cut along what it sums over, the direction in whose rows the sums are kept; None: whole.
    """

    direction: Direction | Literal["inner"] | None
    intervals: tuple[Interval, ...] = ()
    kept: Direction | None = None


@dataclass(frozen=True)
class SplitRequest:
    """A request: speeds of the ranks, the direction of layers, plans of single layers.

    plan: what a person asked of single layers; it binds. searched: what a search found; it is followed where
      it can be, and where running whole is not cheaper.
    late: gather as late as possible, whatever it costs.
    overlap: whether windowed ops are made in parts, so that halos arrive meanwhile.
    shares: what rows are in proportion to, instead of the speeds.
    """

    speeds: tuple[float, ...]
    direction: Direction
    plan: Mapping[Op, PlannedLayer] = field(default_factory=dict)
    searched: Mapping[Op, PlannedLayer] = field(default_factory=dict)
    late: bool = False
    rates: Rates = field(default_factory=Rates)
    overlap: Overlap = "never"
    shares: tuple[float, ...] = ()

    @property
    def devices(self) -> int:
        return len(self.speeds)


@dataclass
class Spread:
    """The decisions: how every op runs, how every value is held, and seconds per op with its exchanges.

    parts: of windowed ops that are made in parts, those of every rank.
    """

    placements: dict[Op, Placement] = field(default_factory=dict)
    parts: dict[Op, tuple[Parts | None, ...]] = field(default_factory=dict)
    held: dict[Value, Distribution] = field(default_factory=dict)
    seconds: dict[Op, float] = field(default_factory=dict)
    total_s: float = 0.0


def spread(func: Func, request: SplitRequest, end: int | None = None) -> Spread:
    """Decide how the ops of a function run on the ranks of a request.

    Layers are split along the direction (or as planned); what follows keeps the rows of its operands. From
    the place in program order on where it costs least, ops run whole on every rank, unless a plan or `late`
    says otherwise; or from op `end` on. Raises InputError for a plan that a layer cannot follow.
    """
    ops = func.body.ops[:-1]
    everywhere = _Walk(func, request, len(ops) if end is None else end).run()
    if end is not None or request.late or request.plan:
        return everywhere
    end = _cheapest_end(func, everywhere, request.rates, max(request.speeds) / min(request.speeds))
    return everywhere if end == len(ops) else _Walk(func, request, end).run()


def _cheapest_end(func: Func, everywhere: Spread, rates: Rates, slowest: float) -> int:
    """Return the place in program order from which running whole on every rank costs least, gathers included.

    One exact minimum over all places by running sums: split seconds before the place, whole seconds after it,
    and the gathers of the values that live across it.
    """
    ops = func.body.ops
    last = {v: i for i, op in enumerate(ops) for v in op.operands}
    ends = len(ops)
    gathers = [0.0] * (ends + 1)
    for at, op in enumerate(ops):
        for v in op.results:
            if everywhere.held.get(v) is not None and v in last:
                seconds = rates.move_s(gather_bytes(v, everywhere.held[v]))
                gathers[at + 1] += seconds
                gathers[last[v] + 1] -= seconds
    whole_after = sum(rates.compute_s(op) for op in ops) * slowest
    best, cheapest, before, live = 0, float("inf"), 0.0, 0.0
    for place in range(ends):
        live += gathers[place]
        total = before + whole_after + live
        if total < cheapest:
            best, cheapest = place, total
        if place < ends - 1:
            before += everywhere.seconds.get(ops[place], 0.0)
            whole_after -= rates.compute_s(ops[place]) * slowest
    return best


class _Walk:
    """One walk over the ops in program order; those from `end` on start no split and follow none."""

    def __init__(self, func: Func, request: SplitRequest, end: int) -> None:
        self.func, self.request, self.end = func, request, end
        self.rates, self.speeds = request.rates, request.speeds
        self.shares = request.shares or request.speeds
        self.out = Spread(held=dict.fromkeys(func.params))
        first = func.params[0].tensor.shape if func.params else ()
        self.samples = first[0] if first else 1
        self.gathered: set[Value] = set()

    def run(self) -> Spread:
        for at, op in enumerate(self.func.body.ops[:-1]):
            placement = self.place(op, at)
            seconds = self.seconds(op, placement)
            for v, needs in zip(op.operands, placement.needs or (None,) * len(op.operands), strict=True):
                distribution = self.out.held[v]
                if distribution is not None and (needs is None or needs[0].axis != distribution.axis):
                    self.gathered.add(v)
            self.out.placements[op] = placement
            parts = self.overlapped(op, placement)[0]
            if any(parts):
                self.out.parts[op] = parts
            self.out.held.update((r, placement.split) for r in op.results)
            self.out.seconds[op] = seconds
            self.out.total_s += seconds
        for v in dict.fromkeys(self.func.body.ops[-1].operands):
            self.out.total_s += self.rates.move_s(self.gather(v))
        return self.out

    def gather(self, v: Value) -> float:
        return 0.0 if v in self.gathered else gather_bytes(v, self.out.held[v])

    def place(self, op: Op, at: int) -> Placement:
        planned = self.request.plan.get(op)
        if planned is not None:
            return self.bound(op, planned)
        if not op.operands or not op.results or op.body is not None:
            return WHOLE
        if at >= self.end:
            return self.second_choice(op)
        searched = self.request.searched.get(op)
        made = None if searched is None else self.planned(op, searched)
        if made is not None:
            return made
        splits = self.splits(op)
        placements = [*splits, *self.partials(op)]
        if not placements:
            return self.second_choice(op)
        return min(placements, key=lambda p: self.seconds(op, p))

    def bound(self, op: Op, planned: PlannedLayer) -> Placement:
        made = self.planned(op, planned)
        if made is None:
            rows = f" in rows {[list(i) for i in planned.intervals]}" if planned.intervals else ""
            raise InputError(
                f"the plan splits {op.name} [{op.loc}] along {planned.direction}{rows}, which it cannot be"
            )
        return made

    def planned(self, op: Op, planned: PlannedLayer) -> Placement | None:
        if planned.direction is None:
            return WHOLE
        if planned.direction == INNER:
            return self.planned_sum(op, planned)
        return self.planned_rows(op, planned.direction, planned.intervals)

    def planned_rows(self, op: Op, direction: Direction, intervals: tuple[Interval, ...]) -> Placement | None:
        axis = direction_axis(op, direction)
        if axis is None:
            return None
        rows = intervals or self.cut(op, axis, direction)
        if rows is None:
            return None
        self.check_cover(op, op.result.tensor.shape[axis], rows)
        return split_placement(op, Split(axis, rows))

    def planned_sum(self, op: Op, planned: PlannedLayer) -> Placement | None:
        axis = inner_axis(op)
        if axis is None:
            return None
        extent = op.operands[0].tensor.shape[axis]
        parts = planned.intervals or tuple(split_extent(extent, self.shares))
        self.check_cover(op, extent, parts)
        kept_axis = None if planned.kept is None else direction_axis(op, planned.kept)
        rows = None
        if kept_axis is not None:
            rows = Split(kept_axis, tuple(split_extent(op.result.tensor.shape[kept_axis], self.shares)))
        return partial_placement(op, 0, Split(axis, parts), rows)

    def check_cover(self, op: Op, extent: int, intervals: Sequence[Interval]) -> None:
        reached, before = 0, 0
        good = len(intervals) == self.request.devices
        for start, end in intervals:
            if start != end:
                good = good and before <= start < end <= extent and start <= reached
                before, reached = start, max(reached, end)
        if not good or reached != extent:
            raise InputError(
                f"expected {self.request.devices} rising intervals that cover the {extent} rows of {op.name} "
                f"[{op.loc}], got {[list(i) for i in intervals]}"
            )

    def splits(self, op: Op) -> list[Placement]:
        """The op in rows that follow its operands, or in the direction asked for where it is a layer."""
        axes = following_axes(op, self.out.held)
        own = direction_axis(op, self.request.direction) if is_layer(op) else None
        if own is not None and own not in axes and self.worth_starting(op, own):
            axes.append(own)
        out = []
        for axis in axes:
            followed = followed_intervals(op, axis, self.out.held)
            made = split_placement(op, Split(axis, followed)) if followed is not None else None
            if made is None:
                anew = self.cut(op, axis, self.request.direction)
                made = split_placement(op, Split(axis, anew)) if anew is not None else None
            if made is not None:
                out.append(made)
        return out

    def worth_starting(self, op: Op, axis: int) -> bool:
        return op.result.tensor.shape[axis] >= (2 if self.request.late else self.request.devices)

    def partials(self, op: Op) -> list[Placement]:
        """The op on the rows each rank has of an operand, its sums kept whole or, of channels, in rows."""
        out = []
        for i, v in enumerate(op.operands):
            distribution = self.out.held[v]
            if distribution is None:
                continue
            scatters: list[Split | None] = [None]
            axis = direction_axis(op, "channels") if is_product(op) else None
            if axis is not None and self.request.direction == "channels":
                extent = op.result.tensor.shape[axis]
                if extent >= self.request.devices:
                    scatters.append(Split(axis, tuple(split_extent(extent, self.shares))))
            for scatter in scatters:
                made = partial_placement(op, i, distribution, scatter)
                if made is not None:
                    out.append(made)
        return out

    def second_choice(self, op: Op) -> Placement:
        """Whole on every rank; a matrix product split by units where that saves more than gathering costs."""
        if not is_product(op) or self.request.direction == "channels":
            return WHOLE
        axis = direction_axis(op, "channels")
        if axis is None or op.result.tensor.shape[axis] < self.request.devices:
            return WHOLE
        intervals = self.cut(op, axis, "channels")
        made = split_placement(op, Split(axis, intervals)) if intervals is not None else None
        if made is None:
            return WHOLE
        back = self.rates.move_s(gather_bytes(op.result, made.split))
        gain = self.seconds(op, WHOLE) - self.seconds(op, made) - back
        return made if gain > 0 or self.request.late else WHOLE

    def cut(self, op: Op, axis: int, direction: Direction) -> tuple[Interval, ...] | None:
        """Rows in proportion to the speeds, at multiples of what the op can be cut at."""
        extent = op.results[0].tensor.shape[axis]
        whole = sliced(op, axis, 0, extent)
        if whole is None:
            return None
        unit = whole.align
        if direction == "batch" and axis == 0 and self.samples and extent % self.samples == 0:
            unit = max(unit, extent // self.samples)
        if extent % unit:
            return None
        return tuple((s * unit, e * unit) for s, e in split_extent(extent // unit, self.shares))

    def seconds(self, op: Op, p: Placement) -> float:
        """Seconds of the op on the rank that is done last, after the exchanges it needs."""
        moved = 0.0
        needs = p.needs or (None,) * len(op.operands)
        for v, rows in dict(zip(op.operands, needs, strict=True)).items():
            distribution = self.out.held[v]
            whole = distribution is not None and (rows is None or rows[0].axis != distribution.axis)
            moved += self.rates.move_s(self.gather(v) if whole else fetch_bytes(v, distribution, rows))
        compute = self.rates.compute_s(op)
        if p.partial:
            parts = (self.request.devices - 1) / self.request.devices
            factor = parts if p.scatter else 2 * parts
            moved += self.rates.move_s(factor * sum(r.tensor.nbytes for r in op.results))
            return moved + compute * self.summed_share(op, p)
        if p.split is None:
            return moved + compute / min(self.speeds)
        hidden = self.overlapped(op, p)[1]
        part = share(p.split, op.results[0].tensor.shape[p.split.axis], self.speeds)
        return moved + compute * part - hidden

    def overlapped(self, op: Op, p: Placement) -> tuple[tuple[Parts | None, ...], float]:
        return overlapped(op, p, self.out.held, self.request.overlap, self.rates, self.speeds)

    def summed_share(self, op: Op, p: Placement) -> float:
        for v, rows in zip(op.operands, p.needs, strict=True):
            if rows is not None:
                split = Split(rows[0].axis, tuple((n.start, n.end) for n in rows))
                return share(split, v.tensor.shape[split.axis], self.speeds)
        return 1.0
