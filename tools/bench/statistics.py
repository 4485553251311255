"""Medians with their spread, ratios to the better peer and geometric means, as plain numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Spread:
    """Median of `count` times with the 10th and 90th percentile, all in seconds."""

    median_s: float
    p10_s: float
    p90_s: float
    count: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """The spread of at least one time."""
        low, median, high = (float(q) for q in np.percentile(np.asarray(seconds), (10, 50, 90)))
        return cls(median, low, high, len(seconds))


def geometric_mean(ratios: Iterable[float]) -> float | None:
    """The n-th root of the product of positive ratios; None of none."""
    logs = [math.log(r) for r in ratios]
    return math.exp(sum(logs) / len(logs)) if logs else None


def repeats_within(budget_s: float, once_s: float, *, least: int, most: int) -> int:
    """How many runs of `once_s` fit into `budget_s`, between `least` and `most`."""
    return most if once_s <= 0 else max(least, min(most, math.ceil(budget_s / once_s)))
