"""Whole-number variables with submodular costs of pairs: one minimum cut (Ishikawa's construction)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.partition.objective import FloatArray
from tilewright.ir.errors import InputError

#: what all finite capacities add up to, where they are not small whole numbers already
WHOLE = 1 << 28
#: a capacity no finite cut reaches, and two of which still fit 32 bits
FORBIDDEN = 1 << 29


class Labelling(NamedTuple):
    """Labels of least cost, and by how much rounding of capacities may have missed the least (0: exact)."""

    labels: tuple[int, ...]
    gap: float


@dataclass
class OrderedProblem:
    """Variables v with labels 0 to `largest[v]`, costs of single labels, of pairs of labels, and limits.

    A pair's table g[a, b] must be submodular: g[a, b] + g[a+1, b+1] <= g[a+1, b] + g[a, b+1].
    """

    largest: Sequence[int]
    slopes: list[FloatArray] = field(init=False)  # of v: cost of label k above that of k - 1
    arcs: list[tuple[NDArray[np.int64], NDArray[np.int64], FloatArray]] = field(init=False)

    def __post_init__(self) -> None:
        self.slopes = [np.zeros(top) for top in self.largest]
        self.arcs = []
        self._always: list[int] = []
        self._never: list[int] = []
        self._first = np.concatenate([[0], np.cumsum(self.largest)]).astype(np.int64)
        for v, top in enumerate(self.largest):
            self.limit(v, v, np.arange(top + 1) - 1)

    def add(self, v: int, costs: FloatArray) -> None:
        """Charge costs[label] for the label of `v`."""
        self.slopes[v] = self.slopes[v] + np.diff(costs)

    def add_pair(self, u: int, v: int, table: FloatArray) -> None:
        """Charge table[label of u, label of v]; InputError where the table is not submodular."""
        mixed = np.diff(np.diff(table, axis=0), axis=1)
        slack = 1e-9 * (1.0 + float(np.abs(table).max()))
        if mixed.size and float(mixed.max()) > slack:
            raise InputError(f"expected submodular costs, got a mixed difference of {float(mixed.max()):g}")
        self.add(u, table[:, 0])
        self.add(v, table[0])
        gain = np.where(mixed < -slack, -mixed, 0.0)
        # -gain [u >= k][v >= j] is -gain [u >= k] + gain [u >= k][v < j]
        self.slopes[u] = self.slopes[u] - gain.sum(axis=1)
        k, j = np.nonzero(gain)
        self.arcs.append((self._first[u] + k, self._first[v] + j, gain[k, j]))

    def limit(self, u: int, v: int, implied: NDArray[np.int64]) -> None:
        """Require label of v >= implied[label of u]; `implied` ascends, values below 1 require nothing.

        InputError where v has no such label.
        """
        labels = np.arange(1, len(implied))
        wanted = implied[labels]
        if wanted.size and int(wanted.max()) > self.largest[v]:
            raise InputError(f"expected a limit of at most {self.largest[v]}, got {int(wanted.max())}")
        keep = wanted >= 1
        source = self._first[u] + labels[keep] - 1
        self.arcs.append((source, self._first[v] + wanted[keep] - 1, np.full(len(source), np.inf)))

    def at_most(self, v: int, label: int) -> None:
        """Leave out the labels of v above this one."""
        if label < self.largest[v]:
            self._never.append(int(self._first[v]) + label)

    def at_least(self, v: int, label: int) -> None:
        """Leave out the labels of v below this one."""
        if label > 0:
            self._always.append(int(self._first[v]) + label - 1)

    def solve(self) -> Labelling:
        """Labels of least cost; where the limits leave none, labels that break some."""
        slopes = np.concatenate([*self.slopes, np.zeros(0)])
        if not len(slopes):
            return Labelling((0,) * len(self.largest), 0.0)
        source, sink = len(slopes), len(slopes) + 1
        numbers = np.arange(len(slopes))
        up, down = slopes < 0, slopes > 0  # label at least k: gained, or paid
        arcs = [
            *self.arcs,
            (np.full(up.sum(), source), numbers[up], -slopes[up]),
            (numbers[down], np.full(down.sum(), sink), slopes[down]),
            (np.full(len(self._always), source), _numbers(self._always), _forbidding(self._always)),
            (_numbers(self._never), np.full(len(self._never), sink), _forbidding(self._never)),
        ]
        rows, columns, costs = (np.concatenate(parts) for parts in zip(*arcs, strict=True))
        chosen, gap = _source_side(rows, columns, costs, source, sink)
        ends = zip(self._first[:-1], self._first[1:], strict=True)
        return Labelling(tuple(int(chosen[a:b].sum()) for a, b in ends), gap)


def _numbers(nodes: Sequence[int]) -> NDArray[np.int64]:
    return np.array(nodes, dtype=np.int64)


def _forbidding(nodes: Sequence[int]) -> FloatArray:
    return np.full(len(nodes), np.inf)


def _source_side(
    rows: NDArray[np.int64], columns: NDArray[np.int64], costs: FloatArray, source: int, sink: int
) -> tuple[NDArray[np.bool_], float]:
    # imported where it is used: this takes longer than a small search
    from scipy.sparse import coo_matrix, csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    finite = np.isfinite(costs)
    total = float(costs[finite].sum())
    whole = total < WHOLE and bool((costs[finite] == np.rint(costs[finite])).all())
    unit = 1.0 if whole else total / WHOLE
    wanted = np.full(len(costs), float(FORBIDDEN))
    wanted[finite] = np.rint(costs[finite] / unit) if unit else 0.0
    size = sink + 1
    summed = coo_matrix((wanted, (rows, columns)), shape=(size, size)).tocsr()
    summed.data = np.minimum(summed.data, FORBIDDEN)
    capacity = csr_matrix(summed.astype(np.int32))
    left = capacity - maximum_flow(capacity, source, sink).flow
    left.eliminate_zeros()
    left.data = np.maximum(left.data, 0)
    left.eliminate_zeros()
    reached = np.zeros(size, dtype=bool)
    reached[breadth_first_order(left, source, return_predecessors=False)] = True
    return reached[:source], 0.0 if whole else float(finite.sum()) * unit
