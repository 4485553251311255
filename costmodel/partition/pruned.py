"""The thesis' pruned search (Algorithm 5), a baseline: depth first, with two rules that are not lossless."""

from __future__ import annotations

import math
from typing import NamedTuple

from tilewright.costmodel.partition.intervals import IntervalSpace
from tilewright.costmodel.partition.naive import Interval
from tilewright.costmodel.partition.objective import LayerObjective
from tilewright.ir.errors import InputError


class PrunedFound(NamedTuple):
    """The partition it ends with, its value, and how many complete partitions it evaluated."""

    intervals: tuple[Interval, ...]
    value: float
    evaluated: int


def pruned_search(space: IntervalSpace, objective: LayerObjective) -> PrunedFound:
    """Search as the thesis does; its value is at least that of `exact.least_objective`.

    Candidates of a device are tried from the smallest, those nearest the end of the rows first. One that
    is no better than its best sibling is bad from then on, whatever comes before it; the first device stops
    at its first worse candidate. Both rules assume values that add up over devices, which a maximum and a
    harmonic mean do not. The number of evaluations is that of the thesis for two devices; with more the
    pseudo-code leaves the order open. Takes time exponential in devices. Raises InputError where it finds
    no partition.
    """
    orders = [sorted(node.intervals(), key=_smallest_first) for node in space.nodes]
    bad: list[set[Interval]] = [set() for _ in orders]
    evaluated = 0

    def visit(prefix: tuple[Interval, ...]) -> tuple[float, tuple[Interval, ...]]:
        nonlocal evaluated
        node = len(prefix)
        if node == len(orders):
            evaluated += 1
            return objective.value(prefix), prefix
        after = space.next_starts(prefix[-1]) if prefix else range(1)
        best: tuple[float, tuple[Interval, ...]] = (math.inf, ())
        for interval in orders[node]:
            if interval[0] not in after or interval in bad[node]:
                continue
            found = visit((*prefix, interval))
            if found[0] < best[0]:
                best = found
            elif found[1]:
                bad[node].add(interval)
                if node == 0:
                    break
        return best

    value, intervals = visit(())
    if not intervals:
        raise InputError(f"expected sizes that link {len(orders)} devices to a partition, found none")
    return PrunedFound(intervals, value, evaluated)


def _smallest_first(interval: Interval) -> tuple[int, int]:
    start, end = interval
    return end - start, -start
