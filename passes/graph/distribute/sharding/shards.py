"""A tensor cut along one row-major factor of one dimension: which elements each device holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, prod

from tilewright.ir.windows import Interval

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


def scaled(parts: Iterable[Interval], factor: int) -> tuple[Interval, ...]:
    """Intervals of units of `factor` elements as intervals of elements."""
    return tuple((a * factor, b * factor) for a, b in parts)


def reshaped(shard: Shard, old: Shape, new: Shape) -> Shard | None:
    """The cut of a row-major reshape from `old` to `new`; None where the pieces are not one."""
    if 0 in old or 0 in new:
        return None
    before, inner = prod(old[: shard.axis]) * shard.outer, prod(old[shard.axis + 1 :])
    cuts = []
    for d, extent in enumerate(new):
        lead, tail = prod(new[:d]), prod(new[d + 1 :])
        outer = before // lead
        if before % lead or extent % outer or extent // outer * tail != shard.block * inner:
            continue
        if any(n * inner % tail for part in shard.parts for n in part):
            continue
        parts = tuple((a * inner // tail, b * inner // tail) for a, b in shard.parts)
        cuts.append(replace(shard, axis=d, outer=outer, parts=parts))
    return min(cuts, key=lambda s: (s.block != shard.block, s.axis != shard.axis), default=None)


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
