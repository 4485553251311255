"""Contenders of a comparison: each runs a network on data that lies on its device already."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


@dataclass(frozen=True)
class TimeSpread:
    """Median of `count` times with the 10th and 90th percentile, all in seconds."""

    median_s: float
    p10_s: float
    p90_s: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> TimeSpread:
        """The spread of at least one time."""
        low, median, high = (float(q) for q in np.percentile(np.asarray(seconds), (10, 50, 90)))
        return cls(median, low, high, len(seconds))


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """The n-th root of the product of positive ratios; None of none."""
    logs = [math.log(r) for r in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else None


def repeats_within(budget_s: float, once_s: float, *, least: int, most: int) -> int:
    """The number of runs of `once_s` that fit into `budget_s`, between `least` and `most`."""
    return most if once_s <= 0 else max(least, min(most, math.ceil(budget_s / once_s)))


#: what a contender may take of one round, in seconds
ROUND_S = 0.05
WALL_REPEATS = 3


class Contender(Protocol):
    """`peer` is the kind, `variant` how it was set up, `prepare_s` what compiling or capturing took."""

    peer: str
    variant: str
    prepare_s: float
    facts: dict[str, Any]

    def outputs(self) -> list[np.ndarray]:
        """Results of one run."""
        ...

    def device_times(self, repeats: int) -> list[float]:
        """Seconds of runs on the device's clock."""
        ...

    def wall_times(self, repeats: int) -> list[float]:
        """Seconds on the host from the call to the end of the work."""
        ...

    def close(self) -> None:
        """Free what it holds."""
        ...


@dataclass
class TimedContender:
    """One contender's times, in seconds, over all rounds."""

    contender: Contender
    device: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)

    def spread(self) -> TimeSpread:
        """Median and spread of the device times."""
        return TimeSpread.of(self.device)


def interleaved(contenders: Sequence[Contender], rounds: int, most: int) -> list[TimedContender]:
    """Times of all contenders, one after the other in every round, so that drifts meet all of them.

    Per round and contender at most `most` runs, at least 3, within about 50 ms.
    """
    timed = [TimedContender(c) for c in contenders]
    counts = [repeats_within(ROUND_S, min(c.device_times(2)), least=3, most=most) for c in contenders]
    for _ in range(rounds):
        for row, count in zip(timed, counts, strict=True):
            row.device += row.contender.device_times(count)
            row.wall += row.contender.wall_times(WALL_REPEATS)
    return timed
