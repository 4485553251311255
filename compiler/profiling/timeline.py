"""Timelines of launches: when nothing runs, which launches decide the length, and the cost of gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

Interval = tuple[float, float]


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """The same points of time as disjoint intervals in order; touching ones are joined."""
    out: list[Interval] = []
    for start, end in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def covered(intervals: Sequence[Interval]) -> float:
    """Length of the union."""
    return sum(end - start for start, end in union(intervals))


def lanes(intervals: Sequence[Interval]) -> list[int]:
    """A lane for each interval, so that those of one lane do not overlap; the first free one, by start."""
    out = [0] * len(intervals)
    free_at: list[float] = []
    for index in sorted(range(len(intervals)), key=lambda i: (*intervals[i], i)):
        start, end = intervals[index]
        lane = next((i for i, at in enumerate(free_at) if at <= start), len(free_at))
        free_at[lane : lane + 1] = [end]
        out[index] = lane
    return out


def longest_path(durations: Sequence[float], deps: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The chain of launches, each in the `deps` of the next, whose durations add up to most.

    deps: earlier launches each launch waits for. Of equally long chains the one through smaller indices.
    """
    length: list[float] = []
    before: list[int] = []
    for index, own in enumerate(deps):
        best = max(own, key=lambda dep: (length[dep], -dep), default=-1)
        before.append(best)
        length.append(durations[index] + (length[best] if best >= 0 else 0.0))
    if not length:
        return ()
    at = max(range(len(length)), key=lambda i: (length[i], -i))
    path = [at]
    while (at := before[at]) >= 0:
        path.append(at)
    return tuple(reversed(path))


@dataclass(frozen=True)
class Timeline:
    """Start and end of every launch in seconds, and the earlier launches each one waits for.

    bounded: launches whose spans are known to hold them and the boundaries around them, and no better.
    """

    spans: tuple[Interval, ...]
    deps: tuple[tuple[int, ...], ...]
    bounded: frozenset[int] = frozenset()

    @property
    def span_s(self) -> float:
        """From the first start to the last end."""
        return max((end for _, end in self.spans), default=0.0) - min((s for s, _ in self.spans), default=0.0)

    @property
    def busy_s(self) -> float:
        """Time in which at least one launch runs."""
        return covered(self.spans)

    @property
    def idle_s(self) -> float:
        """Time between the first start and the last end in which no launch runs."""
        return self.span_s - self.busy_s

    @property
    def idle_gaps(self) -> tuple[float, ...]:
        """Lengths of the pauses in which no launch runs, in order of time."""
        return tuple(after[0] - before[1] for before, after in pairwise(union(self.spans)))

    @property
    def concurrency(self) -> float:
        """Mean number of launches that run, pauses included."""
        return sum(end - start for start, end in self.spans) / self.span_s if self.span_s else 0.0

    @cached_property
    def critical_path(self) -> tuple[int, ...]:
        """The longest way through the dependencies, by duration of launches."""
        return longest_path([end - start for start, end in self.spans], self.deps)

    @property
    def critical_s(self) -> float:
        """Seconds the launches of the critical path run: no replay of these kernels can take less."""
        return sum(self.spans[i][1] - self.spans[i][0] for i in self.critical_path)

    @property
    def boundary_gaps(self) -> tuple[float, ...]:
        """From the end of each launch of the critical path to the start of the next, at least 0; none next
        to a bounded launch, whose span holds it."""
        return tuple(
            max(0.0, self.spans[after][0] - self.spans[before][1])
            for before, after in pairwise(self.critical_path)
            if self.bounded.isdisjoint((before, after))
        )
