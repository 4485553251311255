"""The even split of one axis over devices, and the input rows each piece reads.

Output intervals in, input intervals and each device's own padding out; all intervals are half-open.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from tilewright.ir.errors import InputError

Interval = tuple[int, int]


class InputInterval(NamedTuple):
    """Rows [start, end) that exist in the input, and the padding this piece alone adds on either side."""

    start: int
    end: int
    pad_before: int
    pad_after: int


class NaivePiece(NamedTuple):
    """What one device makes and reads along the axis."""

    output: Interval
    input: InputInterval


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
    exact = [Fraction(v) for v in speeds]
    total = sum(exact)
    sizes = [math.floor(extent * v / total) for v in exact]
    for _ in range(extent - sum(sizes)):
        first = min(range(len(sizes)), key=lambda i: ((sizes[i] + 1) / exact[i], i))
        sizes[first] += 1
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def check_speeds(speeds: Sequence[float]) -> None:
    """Raise InputError unless there is at least one speed and all are positive and finite."""
    if not speeds:
        raise InputError("expected at least 1 device, got 0")
    for index, speed in enumerate(speeds):
        if not (speed > 0 and math.isfinite(speed)):
            raise InputError(f"expected positive speeds, got {speed} for device {index}")


def window_rows(rows: int, kernel: int, stride: int = 1, dilation: int = 1) -> int:
    """Input rows under `rows` successive windows: (rows - 1) S + (K - 1) D + 1 (Eq. 3.2, 3.3), 0 for none."""
    return (rows - 1) * stride + (kernel - 1) * dilation + 1 if rows else 0


def input_interval(
    out_interval: Interval, extent: int, kernel: int, stride: int = 1, dilation: int = 1, pad_before: int = 0
) -> InputInterval:
    """What rows `out_interval` of a windowed op read of an input of `extent` rows.

    `pad_before` is the whole op's padding before row 0; the padding after its end follows from the windows,
    so ceil mode and a remainder of the stride need no case of their own. Running the op on rows
    [start, end) padded by exactly (pad_before, pad_after) gives exactly `out_interval`. An empty output
    reads [s, s) and pads nothing. Corrected Eq. 3.4 and 3.5. Raises InputError for a bad window.
    """
    _check_window(out_interval, extent, kernel, stride, dilation, pad_before)
    first, last = out_interval
    rows = window_rows(last - first, kernel, stride, dilation)
    begin = first * stride - pad_before
    end = begin + rows
    start, stop = _clip(begin, extent), _clip(end, extent)
    # a window wholly inside the padding reads no row, and no more padding than it is long
    return InputInterval(start, stop, min(rows, max(0, -begin)), min(rows, max(0, end - extent)))


def naive_pieces(
    output: int,
    devices: int | Sequence[float],
    extent: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    pad_before: int = 0,
) -> list[NaivePiece]:
    """Every device's output rows of an even (or weighted) split, and the input it reads for them."""
    return [
        NaivePiece(out, input_interval(out, extent, kernel, stride, dilation, pad_before))
        for out in split_extent(output, devices)
    ]


def output_extent(
    extent: int,
    kernel: int,
    stride: int = 1,
    dilation: int = 1,
    pads: tuple[int, int] = (0, 0),
    ceil_mode: bool = False,
) -> int:
    """Rows a windowed op makes of `extent` rows; InputError where the padded input is below one window."""
    _check_window((0, 0), extent, kernel, stride, dilation, pads[0])
    room = extent + sum(pads) - window_rows(1, kernel, stride, dilation)
    if room < 0:
        raise InputError(f"expected a padded input of at least one window, got {-room} rows too few")
    return (-(-room // stride) if ceil_mode else room // stride) + 1


def _clip(row: int, extent: int) -> int:
    return min(extent, max(0, row))


def _check_window(out: Interval, extent: int, kernel: int, stride: int, dilation: int, pad: int) -> None:
    if not 0 <= out[0] <= out[1]:
        raise InputError(f"expected an output interval 0 <= start <= end, got {list(out)}")
    if extent < 0 or pad < 0:
        raise InputError(f"expected an extent and padding of at least 0, got {extent} and {pad}")
    if min(kernel, stride, dilation) < 1:
        raise InputError(
            f"expected kernel, stride and dilation of at least 1, got {kernel}, {stride} and {dilation}"
        )
