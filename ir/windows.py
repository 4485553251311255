"""Rows of an image that windows read: output rows in, input rows and each piece's own padding out.

All intervals are half-open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tilewright.ir.errors import InputError

Interval = tuple[int, int]


class InputInterval(NamedTuple):
    """Rows [start, end) that exist in the input, and the padding this piece alone adds on either side."""

    start: int
    end: int
    pad_before: int
    pad_after: int


def window_rows(rows: int, kernel: int, stride: int = 1, dilation: int = 1) -> int:
    """Input rows under `rows` successive windows: (rows - 1) S + (K - 1) D + 1 (Eq. 3.2, 3.3), 0 for none."""
    return (rows - 1) * stride + (kernel - 1) * dilation + 1 if rows else 0


def input_interval(
    out_interval: Interval, extent: int, kernel: int, stride: int = 1, dilation: int = 1, pad_before: int = 0
) -> InputInterval:
    """Return what rows `out_interval` of a windowed op read of an input of `extent` rows.

    `pad_before` is the whole op's padding before row 0; the padding after its end follows from the windows,
    so ceil mode and a remainder of the stride need no case of their own. Running the op on rows
    [start, end) padded by exactly (pad_before, pad_after) gives exactly `out_interval`. An empty output
    reads [s, s) and pads nothing. Corrected Eq. 3.4 and 3.5. Raises InputError for a bad window.
    """
    check_window(out_interval, extent, kernel, stride, dilation, pad_before)
    first, last = out_interval
    rows = window_rows(last - first, kernel, stride, dilation)
    begin = first * stride - pad_before
    end = begin + rows
    start, stop = _clip(begin, extent), _clip(end, extent)
    # a window wholly inside the padding reads no row, and no more padding than it is long
    return InputInterval(start, stop, min(rows, max(0, -begin)), min(rows, max(0, end - extent)))


def _clip(row: int, extent: int) -> int:
    return min(extent, max(0, row))


def check_window(out: Interval, extent: int, kernel: int, stride: int, dilation: int, pad: int) -> None:
    """Raise InputError for an interval, an extent or a window that cannot be."""
    if not 0 <= out[0] <= out[1]:
        raise InputError(f"expected an output interval 0 <= start <= end, got {list(out)}")
    if extent < 0 or pad < 0:
        raise InputError(f"expected an extent and padding of at least 0, got {extent} and {pad}")
    if min(kernel, stride, dilation) < 1:
        raise InputError(
            f"expected kernel, stride and dilation of at least 1, got {kernel}, {stride} and {dilation}"
        )


@dataclass(frozen=True, slots=True)
class RowWindow:
    """A window along one dimension of an image; padding is that before row 0."""

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pad_before: int = 0

    def reads(self, rows: Interval, extent: int) -> Interval:
        """Rows of an input of `extent` rows that output rows `rows` need."""
        interval = input_interval(rows, extent, self.kernel, self.stride, self.dilation, self.pad_before)
        return interval.start, interval.end


#: the window of an op that reads one row per row
POINT = RowWindow()
