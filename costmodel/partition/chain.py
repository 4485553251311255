"""Layers along the axis that is cut, and the devices and links they run on, as plain data.

Rows of one layer in, input rows, multiply-adds, bytes and seconds out; whole tables of intervals at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.partition.naive import Interval, input_interval
from tilewright.costmodel.partition.objective import FloatArray
from tilewright.ir.errors import InputError

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ChainLayer:
    """One layer along the cut axis: its rows, its window, and what a row of output costs.

    `macs_per_row` are the multiply-adds of one output row, `input_row_bytes` and `output_row_bytes` the
    bytes of one row, `weight_bytes` those of all parameters, which every device holds.
    """

    input_rows: int
    output_rows: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pad_before: int = 0
    macs_per_row: float = 1.0
    input_row_bytes: float = 1.0
    output_row_bytes: float = 1.0
    weight_bytes: float = 0.0

    def reads(self, rows: Interval) -> Interval:
        """Input rows that output rows `rows` need."""
        found = input_interval(
            rows, self.input_rows, self.kernel, self.stride, self.dilation, self.pad_before
        )
        return found.start, found.end

    def reads_all(self, starts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
        """`reads` of many intervals at once, elementwise; empty ones read nothing."""
        first = starts * self.stride - self.pad_before
        stop = (ends - 1) * self.stride - self.pad_before + (self.kernel - 1) * self.dilation + 1
        low = np.clip(first, 0, self.input_rows)
        return low, np.where(ends > starts, np.clip(stop, low, self.input_rows), low)


@dataclass(frozen=True)
class Device:
    """What one device does in a second and holds.

    `flops_per_s` counts two per multiply-add. `measured_s`, pairs of rows and seconds in ascending order,
    replaces it for one layer: interpolated between, proportional beyond the ends.
    """

    flops_per_s: float = 1.0
    memory_bytes: float = math.inf
    measured_s: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        if not (self.flops_per_s > 0 and math.isfinite(self.flops_per_s)):
            raise InputError(f"expected a positive number of FLOP/s, got {self.flops_per_s}")
        if not self.memory_bytes >= 0:
            raise InputError(f"expected a memory of at least 0 bytes, got {self.memory_bytes}")
        rows = [r for r, _ in self.measured_s]
        if rows and (rows[0] <= 0 or rows != sorted(set(rows)) or min(s for _, s in self.measured_s) < 0):
            raise InputError(
                "expected measured seconds of at least 0 at ascending rows above 0, "
                f"got {list(self.measured_s)}"
            )

    def seconds(self, rows: NDArray[Any], macs_per_row: float) -> FloatArray:
        """Seconds that these rows take, by the measured table where there is one."""
        wanted = np.asarray(rows, dtype=np.float64)
        if not self.measured_s:
            return 2 * macs_per_row * wanted / self.flops_per_s
        at, took = np.array(self.measured_s, dtype=np.float64).T
        inside = np.interp(wanted, np.append(0.0, at), np.append(0.0, took))
        return np.where(wanted > at[-1], took[-1] * wanted / at[-1], inside)


@dataclass(frozen=True)
class Link:
    """What connects two devices; both directions at once."""

    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or not (self.latency_s >= 0 and math.isfinite(self.latency_s)):
            raise InputError(
                "expected positive bytes per second and a latency of at least 0 seconds, "
                f"got {self.bytes_per_s} and {self.latency_s}"
            )

    def seconds(self, messages: NDArray[Any], size: NDArray[Any]) -> FloatArray:
        """Seconds of so many messages with so many bytes in all."""
        return np.asarray(messages * self.latency_s + size / self.bytes_per_s, dtype=np.float64)


def fetch_tables(
    own: tuple[IntArray, IntArray], required: tuple[IntArray, IntArray]
) -> tuple[IntArray, IntArray]:
    """Rows fetched, and messages: one for each side of the own rows from which rows are fetched.

    Elementwise over intervals (start, end); a device without own rows that needs some gets one message.
    Neighbours are taken to own the rows beside, so a halo wider than a neighbour's rows counts too few.
    """
    (start, end), (low, high) = own, required
    needs, has = high > low, end > start
    common = np.maximum(0, np.minimum(end, high) - np.maximum(start, low))
    sides = ((low < start).astype(np.int64) + (high > end)).astype(np.int64)
    apart = needs & ~has
    return np.maximum(0, high - low - common), np.where(apart, 1, np.where(needs, sides, 0))


def check_chain(layers: Sequence[ChainLayer]) -> None:
    """Raise InputError unless each layer reads as many rows as the one before makes."""
    if not layers:
        raise InputError("expected at least 1 layer, got none")
    for n, (before, after) in enumerate(pairwise(layers)):
        if before.output_rows != after.input_rows:
            raise InputError(
                f"expected layer {n + 1} to read the {before.output_rows} rows of layer {n}, "
                f"got {after.input_rows}"
            )
