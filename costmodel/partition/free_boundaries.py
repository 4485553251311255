"""Own boundaries in every layer of a chain: all of them at once by one minimum cut.

Costs of rows per layer and device, and of rows that cross boundaries between layers, in; boundaries and
their total cost out. Exact for any number of devices, layers and strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tilewright.costmodel.partition.chain import ChainLayer, check_chain
from tilewright.costmodel.partition.naive import Interval
from tilewright.costmodel.partition.objective import FloatArray
from tilewright.costmodel.partition.ordered_cut import OrderedProblem
from tilewright.ir.errors import InputError


class FreeBoundaries(NamedTuple):
    """Per layer every device's rows, their total cost, and what rounding may have missed (0: exact)."""

    intervals: tuple[tuple[Interval, ...], ...]
    value: float
    gap: float


@dataclass(frozen=True, eq=False)
class BoundaryProblem:
    """A chain whose layers may each be cut elsewhere.

    `computing[l][i][n]` is the cost of n rows of layer l on device i, of length output_rows + 1 and convex
    in n; inf at the end of a table caps the rows (the slowest device, or its memory). `crossing[l]` is the
    cost of one row of layer l's output that crosses a boundary to be read by layer l + 1: rows below the
    boundary that devices above it need, and rows above that devices below it need. A row that is read two
    devices away crosses two boundaries.
    """

    layers: tuple[ChainLayer, ...]
    computing: tuple[tuple[FloatArray, ...], ...]
    crossing: tuple[float, ...]

    def __post_init__(self) -> None:
        check_chain(self.layers)
        if len(self.computing) != len(self.layers) or len({len(c) for c in self.computing}) != 1:
            raise InputError("expected computing costs of every layer, for equally many devices")
        if len(self.crossing) != len(self.layers) - 1 or not all(c >= 0 for c in self.crossing):
            raise InputError(f"expected {len(self.layers) - 1} crossing costs of at least 0")
        for n, (layer, tables) in enumerate(zip(self.layers, self.computing, strict=True)):
            for table in tables:
                _check_convex(table, layer.output_rows, n)

    @property
    def devices(self) -> int:
        """How many devices share each layer."""
        return len(self.computing[0])

    def crossing_rows(self, layer: int) -> FloatArray:
        """Rows that cross, for boundary b of `layer` and b' of the next one, as table [b, b'].

        The devices below b' need input rows [0, stop(b')), those above need [start(b'), all); both ascend
        in b', so the table is submodular.
        """
        after = self.layers[layer + 1]
        boundaries = np.arange(after.output_rows + 1)
        zeros, ends = np.zeros_like(boundaries), np.full_like(boundaries, after.output_rows)
        stop = after.reads_all(zeros, boundaries)[1]
        start = np.where(boundaries < ends, after.reads_all(boundaries, ends)[0], after.input_rows)
        own = np.arange(self.layers[layer].output_rows + 1)[:, None]
        rows = np.maximum(0, np.where(boundaries > 0, stop, 0) - own) + np.maximum(0, own - start)
        return np.asarray(rows, dtype=np.float64)

    def value(self, intervals: Sequence[Sequence[Interval]]) -> float:
        """The cost of one choice of boundaries, inf above a cap."""
        total = 0.0
        for n, cut in enumerate(intervals):
            total += sum(float(t[e - s]) for t, (s, e) in zip(self.computing[n], cut, strict=True))
            if n + 1 < len(intervals):
                rows = self.crossing_rows(n)
                pairs = zip(cut[:-1], intervals[n + 1][:-1], strict=True)
                total += self.crossing[n] * sum(float(rows[a[1], b[1]]) for a, b in pairs)
        return total


def linear_costs(rows: int, seconds_per_row: float, cap: float = np.inf) -> FloatArray:
    """A computing table: so many seconds for each row, inf where they exceed `cap` seconds."""
    seconds = np.arange(rows + 1) * seconds_per_row
    return np.where(seconds <= cap, seconds, np.inf)


def least_boundaries(problem: BoundaryProblem) -> FreeBoundaries:
    """The boundaries of least cost, exact up to `gap`; InputError where the caps leave none.

    Costs that are whole numbers, below about 2.7e8 in all, are solved exactly; others are rounded to a
    fraction of their sum. To bound the slowest device of each layer, put the bound into the tables.
    """
    inner = problem.devices - 1
    tops = [layer.output_rows for layer in problem.layers]
    cut = OrderedProblem([top for top in tops for _ in range(inner)])
    for n, top in enumerate(tops):
        _add_computing(cut, problem.computing[n], range(n * inner, (n + 1) * inner), top)
        if n + 1 < len(tops):
            rows = problem.crossing[n] * problem.crossing_rows(n)
            for i in range(inner):
                cut.add_pair(n * inner + i, (n + 1) * inner + i, rows)
    found = cut.solve()
    intervals = []
    for n, top in enumerate(tops):
        borders = (0, *found.labels[n * inner : (n + 1) * inner], top)
        intervals.append(tuple(pairwise(borders)))
    chosen = tuple(intervals)
    value = problem.value(chosen) if all(s <= e for layer in chosen for s, e in layer) else np.inf
    if not np.isfinite(value):
        raise InputError("expected caps that leave some boundaries in every layer, got none")
    return FreeBoundaries(chosen, value, found.gap)


def _add_computing(cut: OrderedProblem, tables: Sequence[FloatArray], boundaries: range, rows: int) -> None:
    """Charge every device of one layer for the rows between its two boundaries."""
    labels = np.arange(rows + 1)
    for device, table in enumerate(tables):
        low = boundaries[device - 1] if device else None
        high = boundaries[device] if device < len(boundaries) else None
        most = int(np.isfinite(table).sum()) - 1
        costs = _extended(table, most, rows)
        if low is None and high is None:
            if most < rows:
                raise InputError(f"expected a cap of at least {rows} rows for the only device, got {most}")
        elif low is None and high is not None:
            cut.add(high, costs[rows + labels])
            cut.at_most(high, most)
        elif high is None and low is not None:
            cut.add(low, costs[2 * rows - labels])
            cut.at_least(low, rows - most)
        elif low is not None and high is not None:
            cut.add_pair(low, high, costs[rows + labels[None, :] - labels[:, None]])
            cut.limit(low, high, labels)  # boundaries ascend
            cut.limit(high, low, labels - most)


def _extended(table: FloatArray, most: int, rows: int) -> FloatArray:
    """The table for -rows to rows, continued linearly where limits rule a number of rows out."""
    steps = np.diff(table[: most + 1])
    first, last = (steps[0], steps[-1]) if len(steps) else (0.0, 0.0)
    below = table[0] - first * np.arange(rows, 0, -1)
    above = table[most] + last * np.arange(1, rows - most + 1)
    return np.concatenate([below, table[: most + 1], above])


def _check_convex(table: FloatArray, rows: int, layer: int) -> None:
    finite = np.isfinite(table)
    if table.shape != (rows + 1,) or not finite[0] or (np.diff(finite.astype(int)) > 0).any():
        raise InputError(
            f"expected {rows + 1} computing costs for layer {layer}, finite from 0 rows up to a cap"
        )
    bends = np.diff(table[finite], n=2)
    if bends.size and float(bends.min()) < -1e-9 * (1.0 + float(np.abs(table[finite]).max())):
        raise InputError(f"expected computing costs of layer {layer} that are convex in the rows")
