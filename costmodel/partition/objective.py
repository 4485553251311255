"""The thesis' objective of one partitioned layer (Eq. 3.7 to 3.12), printed and corrected.

Intervals and what the next layer requires in, a weighted sum of the slowest device, fetched rows, cropped
rows and imbalance out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.costmodel.partition.intervals import FloatArray, IntervalCandidates
from tilewright.costmodel.partition.naive import check_speeds, cropped_rows, fetched_rows
from tilewright.ir.errors import InputError
from tilewright.ir.windows import Interval


@dataclass(frozen=True)
class Weights:
    """Weights of the terms: slowest device, fetched rows, cropped rows, imbalance.

    `corrected` measures imbalance from max t_i instead of from w_o max t_i, as the thesis prints it.
    """

    slowest: float = 1.0
    fetched: float = 1.0
    cropped: float = 1.0
    imbalance: float = 1.0
    corrected: bool = False

    def __post_init__(self) -> None:
        values = (self.slowest, self.fetched, self.cropped, self.imbalance)
        if not all(math.isfinite(w) and w >= 0 for w in values):
            raise InputError(f"expected finite weights of at least 0, got {values}")

    @property
    def maximum_in_imbalance(self) -> float:
        """The factor of max t_i within the imbalance term."""
        return 1.0 if self.corrected else self.slowest


@dataclass(frozen=True)
class LayerObjective:
    """The objective of one layer whose rows devices own as intervals.

    `required[i]` is what device i reads of this layer's output, None where no layer follows; `speeds` are
    relative, t_i = rows_i / speeds_i extends the thesis' n_i to unequal devices.
    """

    speeds: tuple[float, ...]
    required: tuple[Interval, ...] | None = None
    weights: Weights = Weights()

    def __post_init__(self) -> None:
        check_speeds(self.speeds)
        if self.required is not None and len(self.required) != len(self.speeds):
            raise InputError(
                f"expected one required interval per device, got {len(self.required)} for {len(self.speeds)}"
            )

    def value(self, intervals: Sequence[Interval]) -> float:
        """The objective of a partition; a device without rows makes the harmonic mean 0."""
        if len(intervals) != len(self.speeds):
            raise InputError(f"expected {len(self.speeds)} intervals, got {len(intervals)}")
        w = self.weights
        times = [(end - start) / v for (start, end), v in zip(intervals, self.speeds, strict=True)]
        slowest, mean = max(times), harmonic_mean(times)
        imbalance = abs(w.maximum_in_imbalance * slowest - mean)
        moved = 0.0
        for own, wanted in zip(intervals, self.required or intervals, strict=True):
            moved += w.fetched * fetched_rows(own, wanted) + w.cropped * cropped_rows(own, wanted)
        return w.slowest * slowest + moved + w.imbalance * imbalance

    def moved(self, node: IntervalCandidates, device: int) -> FloatArray:
        """Weighted fetched and cropped rows of every candidate, inf where it is none."""
        starts, ends = node.ends
        if self.required is None:
            return np.where(node.valid, 0.0, np.inf)
        low, high = self.required[device]
        common = np.maximum(0, np.minimum(ends, high) - np.maximum(starts, low))
        w = self.weights
        rows = w.fetched * (high - low - common) + w.cropped * (ends - starts - common)
        return np.where(node.valid, rows, np.inf)

    def times(self, node: IntervalCandidates, device: int) -> FloatArray:
        """rows / speed of every candidate, of shape (starts, sizes)."""
        starts, ends = node.ends
        return np.asarray((ends - starts) / self.speeds[device], dtype=np.float64)


def harmonic_mean(times: Sequence[float]) -> float:
    """N / sum of 1 / t_i; 0 where a t_i is 0."""
    return len(times) / sum(1 / t for t in times) if all(times) else 0.0
