"""The intervals each device may own, how they link to partitions, and how many partitions there are.

Interval creation of the thesis (Eq. 3.13 to 3.25) and its linking rule (Algorithm 1), counted exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.partition.naive import check_speeds
from tilewright.ir.errors import InputError
from tilewright.ir.windows import Interval

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
Rounding = Literal["ceil", "floor"]


@dataclass(frozen=True, eq=False)
class IntervalCandidates:
    """The intervals of one device: [s, s + p) for s in `starts` and p in `sizes` where `valid[s, p]`.

    `valid` has shape (len(starts), len(sizes)).
    """

    starts: range
    sizes: range
    valid: BoolArray

    @property
    def ends(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Starts and ends of all candidates, both of shape (starts, sizes)."""
        starts = np.arange(self.starts.start, self.starts.stop, dtype=np.int64)[:, None]
        sizes = np.arange(self.sizes.start, self.sizes.stop, dtype=np.int64)[None, :]
        return np.broadcast_to(starts, self.valid.shape), starts + sizes

    def intervals(self) -> list[Interval]:
        """In the thesis' order: by start, then by size; those of the last device by size."""
        intervals = [(self.starts[i], self.starts[i] + self.sizes[j]) for i, j in np.argwhere(self.valid)]
        return intervals[::-1] if len({end for _, end in intervals}) == 1 < len(intervals) else intervals


@dataclass(frozen=True, eq=False)
class IntervalSpace:
    """The intervals of rows [0, output) that every device may own; neighbours may own rows in common or not.

    Linking: the next interval starts in (start, end] with overlap, at `end` without. An empty interval
    [s, s) passes its start on: the next one starts at s.
    """

    output: int
    nodes: tuple[IntervalCandidates, ...]
    overlap: bool

    @property
    def vertices(self) -> int:
        """Intervals of all devices together."""
        return sum(int(node.valid.sum()) for node in self.nodes)

    def next_starts(self, interval: Interval) -> range:
        """Return the rows at which the interval after this one may start."""
        start, end = interval
        return range(start + 1, end + 1) if self.overlap and end > start else range(end, end + 1)


def threshold_sizes(
    output: int,
    speeds: Sequence[float],
    threshold: float | Fraction,
    *,
    lower: Rounding = "ceil",
    upper: Rounding = "ceil",
) -> list[range]:
    """Sizes per device: from `size (100 - t) / 100` to `size (100 + t) / 100`, both ends included.

    `size` is floor(output speed / sum of speeds), `threshold` t is in percent (Eq. 3.13 to 3.15). The ends
    are rounded up, as in the thesis' Table 4.1; its Tables 3.6 to 3.8 round the lower one down. Sizes
    above `output` are left out. Raises InputError for a negative or infinite threshold or bad speeds.
    """
    check_speeds(speeds)
    if output < 1:
        raise InputError(f"expected an output of at least 1 row, got {output}")
    if not (math.isfinite(threshold) and threshold >= 0):
        raise InputError(f"expected a threshold of at least 0 percent, got {threshold}")
    rounds: dict[str, Callable[[Fraction], int]] = {"ceil": math.ceil, "floor": math.floor}
    exact = [Fraction(v) for v in speeds]
    total, percent = sum(exact), Fraction(threshold)
    sizes = [math.floor(output * v / total) for v in exact]
    return [
        range(
            max(0, rounds[lower](size * (100 - percent) / 100)),
            min(output, rounds[upper](size * (100 + percent) / 100)) + 1,
        )
        for size in sizes
    ]


def interval_space(output: int, sizes: Sequence[range], *, overlap: bool = True) -> IntervalSpace:
    """All intervals of the thesis for these sizes (Eq. 3.16 to 3.25).

    The first device starts at 0, the last ends at `output`; one between starts where the largest and the
    smallest sizes of it and of those after it leave it, and touches neither border. Raises InputError for
    sizes that are no ascending ranges within [0, output].
    """
    check_sizes(output, sizes)
    if len(sizes) == 1:
        return IntervalSpace(output, (_masked(output, range(1), sizes[0], ends_at=output),), overlap)
    nodes = [_masked(output, range(1), sizes[0])]
    for n in range(1, len(sizes) - 1):
        most = sum(r[-1] for r in sizes[n:])
        least = sum(r[0] for r in sizes[n:])
        starts = range(max(1, output - most), max(1, output - least + 1))
        nodes.append(_masked(output, starts, sizes[n], inner=True))
    last = range(output - sizes[-1][-1], output - sizes[-1][0] + 1)
    nodes.append(_masked(output, last, sizes[-1], ends_at=output))
    return IntervalSpace(output, tuple(nodes), overlap)


def free_space(output: int, max_rows: Sequence[int], *, overlap: bool = False) -> IntervalSpace:
    """Every interval of at most `max_rows[i]` rows for device i, empty ones included."""
    sizes = [range(min(output, rows) + 1) for rows in max_rows]
    check_sizes(output, sizes)
    whole = range(output + 1)
    nodes = [
        _masked(
            output,
            whole if n else range(1),
            rows,
            ends_at=output if n == len(sizes) - 1 else None,
        )
        for n, rows in enumerate(sizes)
    ]
    return IntervalSpace(output, tuple(nodes), overlap)


def limited(space: IntervalSpace, max_rows: Sequence[float]) -> IntervalSpace:
    """The same space without intervals of more rows than a device has memory for."""
    if len(max_rows) != len(space.nodes):
        raise InputError(f"expected one memory limit per device, got {len(max_rows)}")
    nodes = []
    for node, most in zip(space.nodes, max_rows, strict=True):
        starts, ends = node.ends
        nodes.append(IntervalCandidates(node.starts, node.sizes, node.valid & (ends - starts <= most)))
    return IntervalSpace(space.output, tuple(nodes), space.overlap)


def count_partitions(space: IntervalSpace) -> int:
    """Count the partitions that the links make, exactly: dynamic programming with integers of any size."""
    ways = [0] * (space.output + 2)  # completions from the interval after, by its start
    ways[space.output] = 1
    for position, node in reversed(list(enumerate(space.nodes))):
        final = position == len(space.nodes) - 1
        sums = list(accumulate(ways, initial=0))
        ways = [0] * (space.output + 2)
        for start, end in node.intervals():
            after = space.next_starts((start, end))
            ways[start] += 1 if final else sums[after.stop] - sums[after.start]
    return ways[0]


def partitions(space: IntervalSpace) -> Iterator[tuple[Interval, ...]]:
    """Every partition in the thesis' order, for small cases: their number is exponential in devices."""
    by_node = [node.intervals() for node in space.nodes]

    def extend(prefix: tuple[Interval, ...]) -> Iterator[tuple[Interval, ...]]:
        if len(prefix) == len(by_node):
            yield prefix
            return
        after = space.next_starts(prefix[-1]) if prefix else range(space.output + 1)
        for interval in by_node[len(prefix)]:
            if interval[0] in after:
                yield from extend((*prefix, interval))

    return extend(())


def check_sizes(output: int, sizes: Sequence[range]) -> None:
    """Raise InputError unless every device has an ascending, gapless range of sizes within [0, output]."""
    if not sizes:
        raise InputError("expected sizes of at least 1 device, got none")
    for n, rows in enumerate(sizes):
        if not rows or rows.step != 1 or rows[0] < 0 or rows[-1] > output:
            raise InputError(f"expected sizes within 0 to {output}, got {rows} for device {n}")


def _masked(
    output: int, starts: range, sizes: range, *, inner: bool = False, ends_at: int | None = None
) -> IntervalCandidates:
    s = np.arange(starts.start, starts.stop)[:, None]
    ends = s + np.arange(sizes.start, sizes.stop)[None, :]
    valid = ends < output if inner else ends <= output
    if ends_at is not None:
        valid = ends == ends_at
    return IntervalCandidates(starts, sizes, valid)
