"""The time of one partitioned layer in seconds: compute and fetching per device, the slowest counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.costmodel.partition.chain import Device, Link, fetch_tables
from tilewright.costmodel.partition.intervals import IntervalSpace
from tilewright.costmodel.partition.linked import Found, least_max, least_sum
from tilewright.costmodel.partition.naive import Interval
from tilewright.costmodel.partition.objective import FloatArray, ends_of
from tilewright.ir.errors import InputError


@dataclass(frozen=True)
class LayerTime:
    """Seconds of one layer: `macs_per_row` per output row, then fetching what `required` says is lacking.

    `overlap` lets a device fetch while it computes: the longer of the two counts instead of their sum.
    A device holds `fixed_bytes` (weights, inputs) and its own rows of `row_bytes` each. `required` is None
    where no layer follows.
    """

    devices: tuple[Device, ...]
    link: Link
    macs_per_row: float
    row_bytes: float
    required: tuple[Interval, ...] | None = None
    overlap: bool = False
    fixed_bytes: float = 0.0

    def __post_init__(self) -> None:
        if self.required is not None and len(self.required) != len(self.devices):
            raise InputError(
                f"expected one required interval per device, got {len(self.required)} for {len(self.devices)}"
            )

    def device_seconds(self, intervals: Sequence[Interval]) -> list[float]:
        """Seconds of each device; inf where its memory does not suffice."""
        if len(intervals) != len(self.devices):
            raise InputError(f"expected {len(self.devices)} intervals, got {len(intervals)}")
        return [
            float(self._seconds(n, np.array([[s]]), np.array([[e]]))[0, 0])
            for n, (s, e) in enumerate(intervals)
        ]

    def value(self, intervals: Sequence[Interval]) -> float:
        """Seconds until the last device is done."""
        return max(self.device_seconds(intervals))

    def tables(self, space: IntervalSpace) -> list[FloatArray]:
        """Seconds of every candidate of every device of `space`."""
        if len(space.nodes) != len(self.devices):
            raise InputError(f"expected {len(space.nodes)} devices, got {len(self.devices)}")
        return [self._seconds(n, *ends_of(node)) for n, node in enumerate(space.nodes)]

    def _seconds(self, n: int, starts: np.ndarray, ends: np.ndarray) -> FloatArray:
        rows, device = ends - starts, self.devices[n]
        computing = device.seconds(rows, self.macs_per_row)
        fetching = np.zeros_like(computing)
        if self.required is not None:
            low, high = self.required[n]
            wanted = np.full_like(starts, low), np.full_like(ends, high)
            fetched, messages = fetch_tables((starts, ends), wanted)
            fetching = self.link.seconds(messages, fetched * self.row_bytes)
        total = np.maximum(computing, fetching) if self.overlap else computing + fetching
        fits = self.fixed_bytes * (rows > 0) + rows * self.row_bytes <= device.memory_bytes
        return np.where(fits, total, np.inf)


def least_time(space: IntervalSpace, layer: LayerTime) -> Found:
    """The partition whose slowest device is fastest; InputError where none fits the memories."""
    return least_max(space, layer.tables(space))


def least_total_time(space: IntervalSpace, layer: LayerTime) -> Found:
    """The partition of least device seconds in all; InputError where none fits the memories."""
    return least_sum(space, layer.tables(space))
