"""Cuts a row of ops into stages: exact dynamic programming on the slowest stage, then bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tilewright.ir.errors import InputError, UnsupportedError

Floats = NDArray[np.float64]
#: how much slower than the fastest a cut may be that sends fewer bytes
SLACK = 1e-9


@dataclass(frozen=True)
class OpRow:
    """Ops in topological order, and the values between them.

    costs: of every op. made: place of the op that makes each value, -1 for one that every device has (a
    constant, an input). used: places of the ops that use it, rising. value_bytes: its size. kept: places up
    to which a value stays needed although no op uses it (an output); -1 for others.
    """

    costs: Sequence[float]
    made: Sequence[int]
    used: Sequence[Sequence[int]]
    value_bytes: Sequence[int]
    kept: Sequence[int]


@dataclass(frozen=True)
class StageLimits:
    """The limits of the devices: relative speeds, bytes of memory (inf: any), cost of a received byte."""

    speeds: Sequence[float]
    memory_bytes: Sequence[float]
    cost_per_byte: float = 0.0


@dataclass(frozen=True)
class _Stages:
    """All stages that begin at op `start`: entry k ends before op start + k."""

    start: int
    costs: Floats
    received: Floats
    memory: Floats


def best_cuts(row: OpRow, limits: StageLimits) -> tuple[int, ...]:
    """Places of the ops with which stages 1, 2, ... begin; a stage may be empty.

    The time of a stage is the larger of its ops' cost over its device's speed and of the bytes it receives
    times `cost_per_byte` (both go on at once). The slowest stage is as fast as any contiguous cut allows; of
    such cuts, one that receives the fewest bytes in all. A stage's memory is its constants, each once, and
    the largest sum of values that are alive at one of its ops.
    Raises UnsupportedError where no cut keeps to the memory limits.
    """
    slowest = _search(row, limits, None)[0]
    if not np.isfinite(slowest):
        total = sum(n for n, m in zip(row.value_bytes, row.made, strict=True) if m < 0)
        room = ", ".join(f"{m:g}" for m in limits.memory_bytes)
        raise UnsupportedError(
            f"expected a cut into {len(limits.speeds)} stages whose devices have {room} bytes of memory, "
            f"got none (constants alone take {total} bytes)"
        )
    return _search(row, limits, slowest * (1 + SLACK))[1]


def _search(row: OpRow, limits: StageLimits, allowed: float | None) -> tuple[float, tuple[int, ...]]:
    """The slowest stage's time and the cuts; with `allowed`, least bytes among cuts no slower than it."""
    count, devices = len(row.costs), len(limits.speeds)
    best = np.full((devices + 1, count + 1), np.inf)
    best[devices, count] = 0.0
    ends = np.zeros((devices, count + 1), dtype=np.int64)
    for stages in _stages(row):
        i = stages.start
        for d in reversed(range(devices)):
            time = _times(stages, limits, d)
            rest = best[d + 1, i:]
            if allowed is None:
                score = np.maximum(time, rest)
            else:
                score = np.where(time <= allowed, stages.received + rest, np.inf)
            k = int(np.argmin(score))
            best[d, i], ends[d, i] = score[k], i + k
    cuts, at = [], 0
    for d in range(devices - 1):
        at = int(ends[d, at])
        cuts.append(at)
    return float(best[0, 0]), tuple(cuts)


def _times(stages: _Stages, limits: StageLimits, device: int) -> Floats:
    """The time of each stage on a device; infinite where it does not fit, or a device without speed works."""
    speed = limits.speeds[device]
    working = stages.costs / speed if speed else np.where(np.arange(stages.costs.size), np.inf, 0.0)
    time = np.maximum(working, stages.received * limits.cost_per_byte)
    return np.where(stages.memory <= limits.memory_bytes[device], time, np.inf)


def _stages(row: OpRow) -> Iterator[_Stages]:
    """Stages by their first op, from the last op to the first (and the empty one behind the last)."""
    count = len(row.costs)
    made, size = np.asarray(row.made, np.int64), np.asarray(row.value_bytes, np.float64)
    uses: list[list[int]] = [[] for _ in range(count)]
    for v, places in enumerate(row.used):
        for p in places:
            uses[p].append(v)
    alive = _alive(row)
    following = np.full(made.size, count, np.int64)  # the next use of each value
    for i in range(count, -1, -1):
        if i < count:
            following[uses[i]] = i
        needed = following < count
        costs = np.concatenate([[0.0], np.cumsum(row.costs[i:])])
        sums = []
        for mask in (needed & (made >= 0) & (made < i), needed & (made < 0)):
            at = np.bincount(following[mask] - i, weights=size[mask], minlength=count - i)
            sums.append(np.concatenate([[0.0], np.cumsum(at)]))
        peak = np.concatenate([[0.0], np.maximum.accumulate(alive[i:])])
        yield _Stages(i, costs, sums[0], sums[1] + peak)


def _alive(row: OpRow) -> Floats:
    """Bytes of the values that exist while each op runs, constants and inputs apart."""
    steps = np.zeros(len(row.costs) + 1)
    for made, used, size, kept in zip(row.made, row.used, row.value_bytes, row.kept, strict=True):
        if made >= 0:
            steps[made] += size
            steps[max([made, kept, *used]) + 1] -= size
    return np.asarray(np.cumsum(steps)[:-1])


def checked_cuts(cuts: Sequence[float], devices: int, count: int) -> tuple[int, ...]:
    """Given cuts; raises InputError unless they are devices - 1 whole numbers, rising and in the row."""
    whole = tuple(int(c) for c in cuts)
    good = len(whole) == devices - 1 and list(whole) == sorted(cuts) and all(0 <= c <= count for c in whole)
    if not good:
        raise InputError(
            f"option 'cuts' expects {devices - 1} rising places among {count} ops, got {list(cuts)}"
        )
    return whole
