"""Two labels per value at the least total cost: a minimum cut."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

K = TypeVar("K", bound=Hashable)

#: capacities are whole numbers of this many seconds
UNIT_S = 1e-10
#: no capacity is larger; many of them still add up within 32 bits
MOST = 50_000_000
#: edges up to which a graph is cut here in less time (0.05 s at worst) than SciPy takes to load (0.2 s)
FEW_EDGES = 2000


@dataclass
class Energy(Generic[K]):
    """Costs in seconds: per value and label, and per pair of values and pair of labels (0 or 1)."""

    single: dict[K, list[float]] = field(default_factory=dict)
    pairs: dict[tuple[K, K], list[float]] = field(default_factory=dict)

    def add(self, v: K, label: int, seconds: float) -> None:
        """Charge `seconds` where `v` has this label."""
        self.single.setdefault(v, [0.0, 0.0])[label] += seconds

    def add_pair(self, u: K, v: K, labels: tuple[int, int], seconds: float) -> None:
        """Charge `seconds` where `u` and `v` have these labels."""
        for x in (u, v):
            self.single.setdefault(x, [0.0, 0.0])
        self.pairs.setdefault((u, v), [0.0] * 4)[2 * labels[0] + labels[1]] += seconds

    def of(self, ones: set[K]) -> float:
        """The total cost where exactly these values have label 1."""
        total = sum(costs[v in ones] for v, costs in self.single.items())
        return total + sum(t[2 * (u in ones) + (v in ones)] for (u, v), t in self.pairs.items())


def least_cost(energy: Energy[K], unit_s: float = UNIT_S, most: int = MOST) -> set[K]:
    """The values with label 1 in an assignment of least cost; the fewest of them where several are least.

    Exact where no pair costs more with equal labels than with different ones; else that pair's excess does
    not count. Costs count in whole numbers of `unit_s` and as `most` of them at most, which is what an
    infinite cost of label 0 or of a pair with labels (0, 1) comes to.
    """
    names = list(energy.single)
    number = {v: i for i, v in enumerate(names)}
    gain = {v: one - zero for v, (zero, one) in energy.single.items()}  # what label 1 costs more
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
    capacity = {edge: round(min(seconds / unit_s, most)) for edge, seconds in edges.items()}
    return {names[i] for i in _sink_side(capacity, source, sink)}


def _sink_side(capacity: dict[tuple[int, int], int], source: int, sink: int) -> list[int]:
    """Nodes from which the sink can still be reached when the flow is the largest."""
    reached = _reached_here if len(capacity) <= FEW_EDGES else _reached_by_scipy
    return sorted(i for i in reached(capacity, source, sink) if i < source)


def _reached_here(capacity: dict[tuple[int, int], int], source: int, sink: int) -> Iterable[int]:
    """Dinic's algorithm (Soviet Math. Doklady 11, 1970)."""
    rest: list[dict[int, int]] = [{} for _ in range(sink + 1)]  # what may still flow, by tail and head
    for (u, v), most in capacity.items():
        rest[u][v] = rest[u].get(v, 0) + most
        rest[v].setdefault(u, 0)
    while source in (steps := _steps_to(rest, sink)):
        _fill_shortest(rest, steps, source, sink)
    return steps


def _steps_to(rest: list[dict[int, int]], sink: int) -> dict[int, int]:
    """The length of the shortest way to the sink, of all nodes that have one."""
    steps, line = {sink: 0}, [sink]
    for v in line:
        near = [u for u in rest[v] if u not in steps and rest[u][v]]
        steps.update(dict.fromkeys(near, steps[v] + 1))
        line += near
    return steps


def _fill_shortest(rest: list[dict[int, int]], steps: dict[int, int], source: int, sink: int) -> None:
    """Let flow all that fits on ways of the shortest length."""
    ahead = {u: [v for v in rest[u] if rest[u][v] and steps.get(v, steps[u]) < steps[u]] for u in steps}
    way = [source]
    while way:
        u = way[-1]
        if u == sink:
            legs = list(pairwise(way))
            flow = min(rest[a][b] for a, b in legs)
            for a, b in legs:
                rest[a][b] -= flow
                rest[b][a] += flow
            del way[1 + next(i for i, (a, b) in enumerate(legs) if not rest[a][b]) :]
        elif not ahead[u]:
            way.pop()
            if way:
                ahead[way[-1]].pop()
        elif rest[u][ahead[u][-1]]:
            way.append(ahead[u][-1])
        else:
            ahead[u].pop()


def _reached_by_scipy(capacity: dict[tuple[int, int], int], source: int, sink: int) -> Iterable[int]:
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow

    rows = np.array([u for u, _ in capacity], dtype=np.int32)
    columns = np.array([v for _, v in capacity], dtype=np.int32)
    most = np.array(list(capacity.values()), dtype=np.int32)
    size = sink + 1
    whole = csr_matrix((most, (rows, columns)), shape=(size, size), dtype=np.int32)
    left = whole - maximum_flow(whole, source, sink).flow
    left.eliminate_zeros()
    return map(int, breadth_first_order(left.T.tocsr(), sink, return_predecessors=False))
