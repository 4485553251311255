"""The even split of one axis over devices, and the rows that a piece lacks or makes in vain.

All intervals are half-open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise

from tilewright.ir.errors import InputError
from tilewright.ir.windows import Interval, check_window, window_rows


def split_extent(extent: int, devices: int | Sequence[float]) -> list[Interval]:
    """One interval per device; together they cover [0, extent) in order, empty ones are [s, s).

    A number of devices: sizes floor(extent / N), the first `extent mod N` one larger (thesis Eq. 3.1).
    A sequence of speeds: the sizes that make max size / speed least; equal speeds give the even split.
    Raises InputError for a negative extent, no devices, or speeds that are not positive and finite.
    """
    if extent < 0:
        raise InputError(f"expected an extent of at least 0, got {extent}")
    speeds = [1] * devices if isinstance(devices, int) else list(devices)
    check_speeds(speeds)
    return list(apportioned(extent, speeds))


def apportioned(units: int, speeds: Sequence[float]) -> tuple[Interval, ...]:
    """`units` as consecutive intervals, one per speed: the slowest device (units / speed) is done first.

    Every device begins with the whole part of its share; each unit left over goes where it ends earliest, of
    equals to the first. That minimises the largest time, as it does when all units are given out so. A device
    of speed 0 gets none; one speed at least is above 0.
    """
    exact = [Fraction(v) for v in speeds]
    total = sum(exact)
    sizes = [math.floor(units * v / total) for v in exact]
    working = [i for i, v in enumerate(exact) if v]
    for _ in range(units - sum(sizes)):
        first = min(working, key=lambda i: ((sizes[i] + 1) / exact[i], i))
        sizes[first] += 1
    return tuple(pairwise(accumulate(sizes, initial=0)))


def check_speeds(speeds: Sequence[float]) -> None:
    """Raise InputError unless there is at least one speed and all are positive and finite."""
    if not speeds:
        raise InputError("expected at least 1 device, got 0")
    for index, speed in enumerate(speeds):
        if not (speed > 0 and math.isfinite(speed)):
            raise InputError(f"expected positive speeds, got {speed} for device {index}")


def output_extent(
    extent: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    pads: tuple[int, int] = (0, 0),
    ceil_mode: bool = False,
) -> int:
    """Rows a windowed op makes of `extent` rows; InputError where the padded input is below one window."""
    check_window((0, 0), extent, kernel, stride, dilation, pads[0])
    room = extent + sum(pads) - window_rows(1, kernel, stride, dilation)
    if room < 0:
        raise InputError(f"expected a padded input of at least one window, got {-room} rows too few")
    return (-(-room // stride) if ceil_mode else room // stride) + 1


def fetched_rows(own: Interval, required: Interval) -> int:
    """Rows that are required and not owned: what a device has to fetch."""
    return _length(required) - _common(own, required)


def cropped_rows(own: Interval, required: Interval) -> int:
    """Rows that are owned and not required: they were made and are not used."""
    return _length(own) - _common(own, required)


def _length(interval: Interval) -> int:
    return max(0, interval[1] - interval[0])


def _common(a: Interval, b: Interval) -> int:
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))
