"""Two labels per value at the least total cost: a minimum cut."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np

K = TypeVar("K", bound=Hashable)

#: capacities are whole numbers of this many seconds
UNIT_S = 1e-10
#: no capacity is larger; many of them still add up within 32 bits
MOST = 50_000_000


@dataclass
class Energy(Generic[K]):
    """Costs in seconds: per value and label, and per pair of values and pair of labels (0 or 1)."""

    alone: dict[K, list[float]] = field(default_factory=dict)
    pairs: dict[tuple[K, K], list[float]] = field(default_factory=dict)

    def add(self, v: K, label: int, seconds: float) -> None:
        """Charge `seconds` where `v` has this label."""
        self.alone.setdefault(v, [0.0, 0.0])[label] += seconds

    def add_pair(self, u: K, v: K, labels: tuple[int, int], seconds: float) -> None:
        """Charge `seconds` where `u` and `v` have these labels."""
        for x in (u, v):
            self.alone.setdefault(x, [0.0, 0.0])
        self.pairs.setdefault((u, v), [0.0] * 4)[2 * labels[0] + labels[1]] += seconds

    def of(self, ones: set[K]) -> float:
        """The total cost where exactly these values have label 1."""
        total = sum(costs[v in ones] for v, costs in self.alone.items())
        return total + sum(t[2 * (u in ones) + (v in ones)] for (u, v), t in self.pairs.items())


def least_cost(energy: Energy[K]) -> set[K]:
    """The values with label 1 in an assignment of least cost; the fewest of them where several are least.

    Exact where no pair costs more with equal labels than with different ones; else that pair's excess does
    not count.
    """
    names = list(energy.alone)
    number = {v: i for i, v in enumerate(names)}
    gain = {v: one - zero for v, (zero, one) in energy.alone.items()}  # what label 1 costs more
    edges: dict[tuple[int, int], float] = {}
    for (u, v), (a, b, c, d) in energy.pairs.items():
        # a + (c - a) u + (d - c) v + (b + c - a - d) (1 - u) v
        gain[u] += c - a
        gain[v] += d - c
        edges[number[u], number[v]] = edges.get((number[u], number[v]), 0.0) + max(0.0, b + c - a - d)
    source, sink = len(names), len(names) + 1
    for v, seconds in gain.items():
        if seconds > 0:
            edges[source, number[v]] = seconds
        elif seconds < 0:
            edges[number[v], sink] = -seconds
    return {names[i] for i in _sink_side(edges, source, sink)}


def _sink_side(edges: dict[tuple[int, int], float], source: int, sink: int) -> list[int]:
    """Nodes from which the sink can still be reached when the flow is the largest."""
    # imported where it is used: this takes longer than compiling a small network
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    rows = np.array([u for u, _ in edges], dtype=np.int32)
    columns = np.array([v for _, v in edges], dtype=np.int32)
    wanted = np.rint(np.array(list(edges.values()), dtype=np.float64) / UNIT_S)
    size = sink + 1
    capacity = csr_matrix(
        (np.minimum(wanted, MOST).astype(np.int32), (rows, columns)), shape=(size, size), dtype=np.int32
    )
    flow = maximum_flow(capacity, source, sink).flow
    left = capacity - flow
    left.eliminate_zeros()
    reached = breadth_first_order(left.T.tocsr(), sink, return_predecessors=False)
    return [int(i) for i in reached if i < source]
