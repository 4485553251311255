"""A tensor cut along one row-major factor of one dimension: which elements each device holds."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import gcd, prod

from tilewright.ir.errors import InputError

#: half-open
Interval = tuple[int, int]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Shard:
    """Dimension `axis`, read row-major as [outer, block]: member m holds indices parts[m] of the block.

    The parts follow one another and cover the block; some may be empty. A batch merged with heads is cut with
    outer = 1, heads merged into a batch with outer = batch. What a member holds keeps its order, so its
    extent along `axis` is outer * len(parts[m]).
    seeds: numbers of the decisions this cut comes from (not part of equality).
    """

    axis: int
    outer: int
    parts: tuple[Interval, ...]
    seeds: frozenset[int] = field(default=frozenset(), compare=False)

    @property
    def block(self) -> int:
        """Extent of what is cut."""
        return self.parts[-1][1]

    @property
    def extents(self) -> tuple[int, ...]:
        """Every member's extent within the block."""
        return tuple(end - start for start, end in self.parts)

    def on(self, axis: int) -> Shard:
        """The same cut of another dimension."""
        return replace(self, axis=axis)

    def held(self, shape: Sequence[int], member: int) -> Shape:
        """The shape of what a member holds of a tensor of `shape`."""
        start, end = self.parts[member]
        return (*shape[: self.axis], self.outer * (end - start), *shape[self.axis + 1 :])


def apportioned(units: int, speeds: Sequence[float]) -> tuple[Interval, ...]:
    """`units` as consecutive intervals, one per member: the slowest member (units / speed) is done first.

    Every member begins with the whole part of its share; each unit left over goes where it ends earliest, of
    equals to the first. That minimises the largest time, as it does when all units are given out so.
    """
    total = sum(speeds)
    counts = [int(units * s / total) for s in speeds]
    queue = [((n + 1) / s, m) for m, (n, s) in enumerate(zip(counts, speeds, strict=True)) if s > 0]
    heapq.heapify(queue)
    for _ in range(units - sum(counts)):
        _, m = heapq.heappop(queue)
        counts[m] += 1
        heapq.heappush(queue, ((counts[m] + 1) / speeds[m], m))
    return tuple(pairwise(accumulate(counts, initial=0)))


def scaled(parts: Iterable[Interval], factor: int) -> tuple[Interval, ...]:
    """Intervals of units of `factor` elements as intervals of elements."""
    return tuple((a * factor, b * factor) for a, b in parts)


def reshaped(shard: Shard, old: Shape, new: Shape) -> Shard | None:
    """The cut of a row-major reshape from `old` to `new`; None where the pieces are not one."""
    if 0 in old or 0 in new:
        return None
    before, inner = prod(old[: shard.axis]) * shard.outer, prod(old[shard.axis + 1 :])
    found = []
    for d, extent in enumerate(new):
        lead, tail = prod(new[:d]), prod(new[d + 1 :])
        outer = before // lead
        if before % lead or extent % outer or extent // outer * tail != shard.block * inner:
            continue
        if any(n * inner % tail for part in shard.parts for n in part):
            continue
        parts = tuple((a * inner // tail, b * inner // tail) for a, b in shard.parts)
        found.append(replace(shard, axis=d, outer=outer, parts=parts))
    return min(found, key=lambda s: (s.block != shard.block, s.axis != shard.axis), default=None)


def finer(shard: Shard, old: Shape, new: Shape) -> tuple[int, int] | None:
    """(outer, unit) by which the block has to be read for a reshape to stay a cut of one dimension.

    The block becomes [outer, units, unit] with the units handed out. Of several ways, the one with a unit of
    more than one element, a number of units that divides among the members, and most units: heads rather
    than elements of heads. None where every way leaves fewer units than members.
    """
    if 0 in old or 0 in new:
        return None
    members = len(shard.parts)
    before, inner = prod(old[: shard.axis]) * shard.outer, prod(old[shard.axis + 1 :])
    ways = []
    for d, extent in enumerate(new):
        lead, tail = prod(new[:d]), prod(new[d + 1 :])
        outer, unit = lead // gcd(before, lead), tail // gcd(inner, tail)
        new_outer = before * outer // lead
        units, rest = divmod(shard.block, outer * unit)
        if (
            rest
            or units < members
            or extent % new_outer
            or extent // new_outer * tail != units * unit * inner
        ):
            continue
        ways.append((unit == 1, units % members != 0, -units, outer, unit))
    return min(ways)[3:] if ways else None


def number_list(text: str, what: str, count: int | None = None) -> tuple[float, ...]:
    """The numbers of an option such as `1,2.5,1`; raises InputError, also for another count than wanted."""
    try:
        numbers = tuple(float(n) for n in text.split(",")) if text.strip() else ()
    except ValueError:
        raise InputError(f"option '{what}' expects numbers such as 1,2,1, got '{text}'") from None
    if count is not None and len(numbers) != count:
        raise InputError(f"option '{what}' expects {count} numbers, got {len(numbers)}: '{text}'")
    if any(not 0 <= n < float("inf") for n in numbers):
        raise InputError(f"option '{what}' expects numbers of at least 0, got '{text}'")
    return numbers


def speeds_of(text: str, devices: int) -> tuple[float, ...]:
    """Relative speeds of all devices: equal ones for an empty text; one at least is above zero."""
    speeds = number_list(text, "speeds", devices) if text.strip() else (1.0,) * devices
    if not any(speeds):
        raise InputError(f"option 'speeds' expects one speed above 0 at least, got '{text}'")
    return speeds


def check_rank(devices: int, rank: int) -> None:
    """Raise InputError unless there is a device and `rank` is one."""
    if devices < 1 or not 0 <= rank < devices:
        raise InputError(f"expected devices >= 1 and a rank in [0, devices), got {devices} and {rank}")
