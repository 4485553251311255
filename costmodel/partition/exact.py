"""The partition of least objective, exactly and in polynomial time.

A cap on the slowest device is swept; below a cap the imbalance is concave in the sum of 1 / t_i, so its
least value lies on the lower convex hull, which dynamic programming with weighted costs enumerates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.costmodel.partition.intervals import FloatArray, IntervalSpace
from tilewright.costmodel.partition.linked import BestPartition, least_max, least_sum
from tilewright.costmodel.partition.objective import LayerObjective
from tilewright.ir.errors import InputError, UnsupportedError

#: relative difference below which two sums of floats count as equal
CLOSE = 1e-11


def least_objective(space: IntervalSpace, objective: LayerObjective) -> BestPartition:
    """A partition of `space` with the least `objective.value`.

    Speeds may differ and intervals may be ruled out (`limited`). Raises InputError where there is no
    partition, UnsupportedError for the printed imbalance with a weight of the slowest device below 1, where
    the imbalance may be negative before its absolute value is taken.
    """
    w = objective.weights
    if len(objective.speeds) != len(space.nodes):
        raise InputError(f"expected {len(space.nodes)} speeds, got {len(objective.speeds)}")
    if w.imbalance and w.maximum_in_imbalance < 1:
        raise UnsupportedError(
            f"expected a weight of the slowest device of at least 1 beside the printed imbalance, "
            f"got {w.slowest:g}: use the corrected objective"
        )
    moved = [objective.moved(node, n) for n, node in enumerate(space.nodes)]
    times = [objective.times(node, n) for n, node in enumerate(space.nodes)]
    best = _evaluated(objective, least_sum(space, moved))
    if not w.slowest and not w.imbalance:
        return best
    return _sweep(space, objective, moved, times, best)


def _sweep(
    space: IntervalSpace,
    objective: LayerObjective,
    moved: Sequence[FloatArray],
    times: Sequence[FloatArray],
    best: BestPartition,
) -> BestPartition:
    w, devices = objective.weights, len(times)
    allowed = [t[np.isfinite(c)] for t, c in zip(times, moved, strict=True)]
    lowest = least_max(space, times).value
    least_moved = least_sum(space, moved).value
    longest = [float(t.max()) for t in allowed]
    for cap in np.unique(np.concatenate(allowed)):
        if cap < lowest:
            continue
        reachable = [min(float(cap), t) for t in longest]
        most_even = devices / sum(1 / t for t in reachable) if all(reachable) else 0.0
        spread = w.imbalance * max(0.0, w.maximum_in_imbalance * cap - most_even)
        if w.slowest * cap + least_moved + spread >= best.value:
            continue
        capped = [np.where(t <= cap, c, np.inf) for c, t in zip(moved, times, strict=True)]
        least = least_sum(space, capped)
        best = min(best, _evaluated(objective, least), key=lambda f: f.value)
        bound = w.slowest * cap + least.value + spread
        if w.imbalance and bound < best.value:
            best = _under_cap(space, objective, capped, times, float(cap), best)
    return best


@dataclass(frozen=True)
class _Vertex:
    """A partition as a point: sum of 1 / t_i and moved rows; `slope` weighs the sum it is least for."""

    inverse: float
    moved: float
    slope: float
    found: BestPartition


def _under_cap(
    space: IntervalSpace,
    objective: LayerObjective,
    capped: Sequence[FloatArray],
    times: Sequence[FloatArray],
    cap: float,
    best: BestPartition,
) -> BestPartition:
    """The best partition whose devices all stay within the cap, or `best` where that is no worse."""
    w, devices = objective.weights, len(times)
    busy = [np.where(t > 0, c, np.inf) for c, t in zip(capped, times, strict=True)]
    finite = [1 / np.where(t > 0, t, np.inf) for t in times]
    inverse = [np.where(t > 0, z, np.inf) for t, z in zip(times, finite, strict=True)]

    def relaxed(z: float, moved: float) -> float:
        spread = w.imbalance * (w.maximum_in_imbalance * cap - devices / z)
        return w.slowest * cap + moved + spread

    def vertex(slope: float) -> _Vertex:
        weighted = (
            inverse if math.isinf(slope) else [c + slope * z for c, z in zip(busy, finite, strict=True)]
        )
        best_weighted = least_sum(
            space, [np.where(np.isfinite(c), z, np.inf) for c, z in zip(busy, weighted, strict=True)]
        )
        z = sum(v / (e - s) for (s, e), v in zip(best_weighted.intervals, objective.speeds, strict=True))
        moved = sum(
            float(c[s - node.starts.start, e - s - node.sizes.start])
            for c, node, (s, e) in zip(capped, space.nodes, best_weighted.intervals, strict=True)
        )
        return _Vertex(z, moved, slope, _evaluated(objective, best_weighted))

    try:
        ends = vertex(math.inf), vertex(0.0)
    except InputError:  # under this cap some device idles in every partition
        return best
    return _hull_minimum(ends, vertex, relaxed, best)


def _hull_minimum(
    ends: tuple[_Vertex, _Vertex],
    vertex: Callable[[float], _Vertex],
    relaxed: Callable[[float, float], float],
    best: BestPartition,
) -> BestPartition:
    """Divide and conquer over the hull; a piece is left out where its corner is no better than the best."""
    best = min(best, *(v.found for v in ends), key=lambda f: f.value)
    pieces = [ends]
    while pieces:
        left, right = pieces.pop()
        if right.inverse - left.inverse <= CLOSE * right.inverse or left.moved <= right.moved:
            continue
        if relaxed(*_corner(left, right)) >= best.value:
            continue
        slope = (left.moved - right.moved) / (right.inverse - left.inverse)
        middle = vertex(slope)
        line = left.moved + slope * left.inverse
        if middle.moved + slope * middle.inverse >= line - CLOSE * line:
            continue
        best = min(best, middle.found, key=lambda f: f.value)
        pieces += [(left, middle), (middle, right)]
    return best


def _corner(left: _Vertex, right: _Vertex) -> tuple[float, float]:
    """Return where the supporting lines of two vertices meet: no partition between them lies below."""
    if math.isinf(left.slope):
        return left.inverse, right.moved + right.slope * (right.inverse - left.inverse)
    gap = left.moved + left.slope * left.inverse - right.moved - right.slope * right.inverse
    if left.slope - right.slope <= CLOSE * left.slope:
        return left.inverse, right.moved
    z = gap / (left.slope - right.slope)
    return z, left.moved + left.slope * (left.inverse - z)


def _evaluated(objective: LayerObjective, partition: BestPartition) -> BestPartition:
    return BestPartition(partition.intervals, objective.value(partition.intervals))
