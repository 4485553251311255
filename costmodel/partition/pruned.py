"""The thesis' pruned search (Algorithm 5), a baseline: depth first, with two rules that are not lossless."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tilewright.costmodel.partition.intervals import IntervalSpace
from tilewright.costmodel.partition.objective import LayerObjective
from tilewright.ir.errors import InputError
from tilewright.ir.windows import Interval

#: visited beginnings of partitions between two calls of `progress`
PROGRESS_EVERY = 1 << 12


class PrunedPartition(NamedTuple):
    """The partition it ends with, its value, and how many complete partitions it evaluated."""

    intervals: tuple[Interval, ...]
    value: float
    evaluated: int


def pruned_search(
    space: IntervalSpace, objective: LayerObjective, progress: Callable[[float, int], None] | None = None
) -> PrunedPartition:
    """Search as the thesis does; its value is at least that of `exact.least_objective`.

    Candidates of a device are tried from the smallest, those nearest the end of the rows first. One that
    is no better than its best sibling is bad from then on, whatever comes before it; the first device stops
    at its first worse candidate. Both rules assume values that add up over devices, which a maximum and a
    harmonic mean do not. The number of evaluations is that of the thesis for two devices; with more the
    pseudo-code leaves the order open. Takes time exponential in devices. `progress` hears now and then which
    share of the first two devices' candidates is done at least, and the number of evaluations. Raises
    InputError where it finds no partition.
    """
    orders = [sorted(node.intervals(), key=_smallest_first) for node in space.nodes]
    bad: list[set[Interval]] = [set() for _ in orders]
    evaluated = visited = 0

    def visit(prefix: tuple[Interval, ...]) -> tuple[float, tuple[Interval, ...]]:
        nonlocal evaluated, visited
        visited += 1
        if progress is not None and visited % PROGRESS_EVERY == 0:
            progress(_share(orders, prefix), evaluated)
        node = len(prefix)
        if node == len(orders):
            evaluated += 1
            return objective.value(prefix), prefix
        after = space.next_starts(prefix[-1]) if prefix else range(1)
        best: tuple[float, tuple[Interval, ...]] = (math.inf, ())
        for interval in orders[node]:
            if interval[0] not in after or interval in bad[node]:
                continue
            completion = visit((*prefix, interval))
            if completion[0] < best[0]:
                best = completion
            elif completion[1]:
                bad[node].add(interval)
                if node == 0:
                    break
        return best

    value, intervals = visit(())
    if not intervals:
        raise InputError(f"expected sizes that link {len(orders)} devices to a partition, found none")
    return PrunedPartition(intervals, value, evaluated)


def _share(orders: Sequence[Sequence[Interval]], prefix: Sequence[Interval]) -> float:
    """Return the share of the search before `prefix`, were all candidates of a device equally long."""
    share, width = 0.0, 1.0
    for order, interval in zip(orders[:2], prefix, strict=False):
        width /= len(order)
        share += width * order.index(interval)
    return share


def _smallest_first(interval: Interval) -> tuple[int, int]:
    start, end = interval
    return end - start, -start
