"""Dynamic programming over linked intervals: the partition of least sum, or least maximum, of node costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.costmodel.partition.intervals import FloatArray, IntervalCandidates, IntervalSpace
from tilewright.ir.errors import InputError
from tilewright.ir.windows import Interval


class BestPartition(NamedTuple):
    """A partition and its value."""

    intervals: tuple[Interval, ...]
    value: float


def least_sum(space: IntervalSpace, costs: Sequence[FloatArray]) -> BestPartition:
    """The partition whose nodes' costs add up to the least.

    `costs[n]` has the shape of `space.nodes[n].valid`; inf forbids an interval. Exact in O(vertices times
    largest size) without enumerating partitions. Raises InputError where no partition is allowed.
    """
    return _least(space, costs, np.add)


def least_max(space: IntervalSpace, costs: Sequence[FloatArray]) -> BestPartition:
    """The partition whose most expensive node costs least; otherwise as `least_sum`."""
    return _least(space, costs, np.maximum)


def _least(
    space: IntervalSpace, costs: Sequence[FloatArray], combine: Callable[[FloatArray, FloatArray], Any]
) -> BestPartition:
    if len(costs) != len(space.nodes):
        raise InputError(f"expected costs of {len(space.nodes)} devices, got {len(costs)}")
    by_start = np.full(space.output + 1, np.inf)  # least cost of the nodes after, by where they start
    best: list[tuple[FloatArray, FloatArray]] = []
    for n in reversed(range(len(costs))):
        node = space.nodes[n]
        total = np.where(node.valid, costs[n], np.inf)
        if n < len(costs) - 1:
            total = np.asarray(combine(total, _least_linked(space, node, by_start)))
        by_start = np.full(space.output + 1, np.inf)
        if total.size:
            by_start[node.starts.start : node.starts.stop] = total.min(axis=1)
        best.append((total, by_start))
    value = float(by_start[0])
    if not np.isfinite(value):
        raise InputError(
            f"expected sizes and memory that allow {len(costs)} devices to share {space.output} rows, "
            "got no partition"
        )
    return BestPartition(_trace(space, best[::-1]), value)


def _least_linked(space: IntervalSpace, node: IntervalCandidates, by_start: FloatArray) -> FloatArray:
    """For every candidate the least of `by_start` over where the next interval may start."""
    starts = np.arange(node.starts.start, node.starts.stop)
    sizes = np.arange(node.sizes.start, node.sizes.stop)
    longest = node.sizes.stop
    room = np.concatenate([by_start, np.full(longest, np.inf)])
    if not space.overlap:
        return np.asarray(room[starts[:, None] + sizes])
    windows = np.lib.stride_tricks.sliding_window_view(room[1:], longest)[starts]
    running = np.minimum.accumulate(windows, axis=1)
    linked = running[:, np.maximum(sizes, 1) - 1]
    if sizes[0] == 0:
        linked[:, 0] = room[starts]
    return np.asarray(linked)


def _trace(space: IntervalSpace, best: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[Interval, ...]:
    intervals: list[Interval] = []
    start = 0
    for n, (total, by_start) in enumerate(best):
        if intervals:
            after = space.next_starts(intervals[-1])
            start = after.start + int(np.argmin(by_start[after.start : after.stop]))
        node = space.nodes[n]
        size = node.sizes.start + int(np.argmin(total[start - node.starts.start]))
        intervals.append((start, start + size))
    return tuple(intervals)
