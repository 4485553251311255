"""One layer cut in rows and columns: r x c grids by alternating exact searches.

Rectangles are the device's part of a height x width output; the slowest device counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilewright.costmodel.links import Link
from tilewright.costmodel.partition.intervals import FloatArray, free_space
from tilewright.costmodel.partition.linked import least_max
from tilewright.costmodel.partition.naive import check_speeds, split_extent
from tilewright.ir.errors import InputError
from tilewright.ir.windows import POINT, Interval, RowWindow


class DeviceGrid(NamedTuple):
    """Row and column intervals; device i * columns + j has (rows[i], columns[j])."""

    rows: tuple[Interval, ...]
    columns: tuple[Interval, ...]
    seconds: float


@dataclass(frozen=True)
class GridProblem:
    """An output of height x width elements, and what its elements cost.

    `macs` and `bytes` are those of one element of the plane (all channels). A part of the output reads the
    window's span of an input of the same layout as the output, so a device fetches the span without its
    own part; window strides must be 1.
    """

    height: int
    width: int
    flops_per_s: tuple[float, ...]
    link: Link
    macs: float = 1.0
    bytes: float = 1.0
    h: RowWindow = POINT
    w: RowWindow = POINT

    def __post_init__(self) -> None:
        check_speeds(self.flops_per_s)
        if min(self.height, self.width) < 1:
            raise InputError("expected a height and a width of at least 1")
        if (self.h.stride, self.w.stride) != (1, 1):
            raise InputError(f"expected window strides of 1, got {self.h.stride} and {self.w.stride}")

    def seconds(self, device: int, rows: Interval, columns: Interval) -> float:
        """Computing and fetching of one part."""
        size = (rows[1] - rows[0]) * (columns[1] - columns[0])
        if not size:
            return 0.0
        high, low = _span(rows, self.height, self.h), _span(columns, self.width, self.w)
        read = (high[1] - high[0]) * (low[1] - low[0])
        sides = sum((span[0] < own[0]) + (span[1] > own[1]) for span, own in ((high, rows), (low, columns)))
        halo = float(self.link.messages_s(sides, (read - size) * self.bytes))
        return 2 * self.macs * size / self.flops_per_s[device] + halo

    def value(self, rows: Sequence[Interval], columns: Sequence[Interval]) -> float:
        """Seconds of the slowest device of a grid."""
        return max(
            self.seconds(i * len(columns) + j, r, c)
            for i, r in enumerate(rows)
            for j, c in enumerate(columns)
        )


def alternating_grid(problem: GridProblem, rows: int, columns: int) -> DeviceGrid:
    """An r x c grid: best rows for given columns, best columns for these, until nothing is gained.

    Each step is exact, the end is a local optimum and no worse than where it began, the even grid. Raises
    InputError where devices do not make this grid.
    """
    if rows < 1 or columns < 1 or rows * columns != len(problem.flops_per_s):
        raise InputError(f"expected a grid of {len(problem.flops_per_s)} devices, got {rows} x {columns}")
    heights = tuple(split_extent(problem.height, rows))
    widths = tuple(split_extent(problem.width, columns))
    best = DeviceGrid(heights, widths, problem.value(heights, widths))
    while True:
        before = best.seconds
        for improved in (_other_rows, _other_columns):
            best = min(best, improved(problem, best), key=lambda grid: grid.seconds)
        if best.seconds >= before:
            return best


def best_grid(problem: GridProblem) -> DeviceGrid:
    """The best alternating grid over all r x c of the devices."""
    count = len(problem.flops_per_s)
    shapes = [(r, count // r) for r in range(1, count + 1) if count % r == 0]
    return min((alternating_grid(problem, *shape) for shape in shapes), key=lambda grid: grid.seconds)


def _line(extent: int, parts: int, seconds: Callable[[int, Interval], float]) -> tuple[Interval, ...]:
    """The best cut of one axis for given seconds of parts."""
    space = free_space(extent, [extent] * parts)
    tables: list[FloatArray] = []
    for part, node in enumerate(space.nodes):
        table = np.full(node.valid.shape, np.inf)
        for i, j in np.argwhere(node.valid):
            start = node.starts[i]
            table[i, j] = seconds(part, (start, start + node.sizes[j]))
        tables.append(table)
    return least_max(space, tables).intervals


def _other_rows(problem: GridProblem, grid: DeviceGrid) -> DeviceGrid:
    """The best rows for the grid's columns."""
    wide = len(grid.columns)
    rows = _line(
        problem.height,
        len(grid.rows),
        lambda i, cut: max(problem.seconds(i * wide + j, cut, c) for j, c in enumerate(grid.columns)),
    )
    return DeviceGrid(rows, grid.columns, problem.value(rows, grid.columns))


def _other_columns(problem: GridProblem, grid: DeviceGrid) -> DeviceGrid:
    """The best columns for the grid's rows."""
    wide = len(grid.columns)
    columns = _line(
        problem.width,
        wide,
        lambda j, cut: max(problem.seconds(i * wide + j, r, cut) for i, r in enumerate(grid.rows)),
    )
    return DeviceGrid(grid.rows, columns, problem.value(grid.rows, columns))


def _span(part: Interval, extent: int, window: RowWindow) -> Interval:
    start, end = window.reads(part, extent)
    return min(start, part[0]), max(end, part[1])
