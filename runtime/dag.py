"""A directed acyclic graph of work: nodes 0..n-1, edges, and what follows by closure and reduction."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import or_

from tilewright.runtime.errors import InputError

Edge = tuple[int, int]

MAX_NODES = 50_000  # the closure takes n^2 / 8 bytes: 300 MB


@dataclass(frozen=True)
class Dag:
    """`n` nodes and `edges` (u, v), sorted and without repetition: u must finish before v starts."""

    n: int
    edges: tuple[Edge, ...]

    @staticmethod
    def of(n: int, edges: Iterable[Edge]) -> Dag:
        """The graph; raises `InputError` on a node outside 0..n-1, a cycle, or too many nodes."""
        if not 0 <= n <= MAX_NODES:
            raise InputError(f"expected 0 to {MAX_NODES} nodes, got {n}")
        unique = tuple(sorted(set(edges)))
        for u, v in unique:
            if not (0 <= u < n and 0 <= v < n):
                raise InputError(f"edge [{u}, {v}]: expected nodes from 0 to {n - 1}")
        dag = Dag(n, unique)
        if len(dag.order) < n:
            cycle = " -> ".join(map(str, dag._some_cycle()))
            raise InputError(f"expected a graph without cycles, got {cycle}")
        return dag

    @staticmethod
    def of_launches(deps: Sequence[Collection[int]]) -> Dag:
        """Node i comes after the nodes `deps[i]`, which must be earlier ones; raises `InputError`."""
        for index, own in enumerate(deps):
            if any(not 0 <= dep < index for dep in own):
                raise InputError(f"expected launch {index} to depend on earlier launches, got {sorted(own)}")
        return Dag.of(len(deps), ((dep, index) for index, own in enumerate(deps) for dep in own))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Per node the heads of its edges, ascending."""
        return _neighbours(self.n, self.edges)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Per node the tails of the edges into it, ascending."""
        return _neighbours(self.n, ((v, u) for u, v in self.edges))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The topological order that always takes the smallest node it can."""
        missing = [len(p) for p in self.predecessors]
        ready = [v for v in range(self.n) if not missing[v]]
        order = []
        while ready:
            u = heapq.heappop(ready)
            order.append(u)
            for v in self.successors[u]:
                missing[v] -= 1
                if not missing[v]:
                    heapq.heappush(ready, v)
        return tuple(order)

    @cached_property
    def position(self) -> tuple[int, ...]:
        """Per node its index in `order`."""
        position = [0] * self.n
        for index, node in enumerate(self.order):
            position[node] = index
        return tuple(position)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """Per node the bit set of all nodes it reaches, itself excluded: the transitive closure."""
        return self._closure_and_reduction[0]

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Per node the bit set of all nodes that reach it, itself excluded."""
        before = [0] * self.n
        for v in self.order:
            before[v] = reduce(or_, (before[u] | 1 << u for u in self.reduced_predecessors[v]), 0)
        return tuple(before)

    @cached_property
    def reduced(self) -> tuple[Edge, ...]:
        """The transitive reduction, sorted: the edges that no longer path implies."""
        return self._closure_and_reduction[1]

    @cached_property
    def reduced_successors(self) -> tuple[tuple[int, ...], ...]:
        """Per node the heads of its reduced edges, ascending."""
        return _neighbours(self.n, self.reduced)

    @cached_property
    def reduced_predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Per node the tails of the reduced edges into it, ascending."""
        return _neighbours(self.n, ((v, u) for u, v in self.reduced))

    @cached_property
    def _closure_and_reduction(self) -> tuple[tuple[int, ...], tuple[Edge, ...]]:
        reach = [0] * self.n
        edges: list[Edge] = []
        for u in reversed(self.order):
            reached = 0
            # In topological order, a head that is reached already is reached through an earlier head.
            for v in sorted(self.successors[u], key=self.position.__getitem__):
                if not reached >> v & 1:
                    reached |= reach[v] | 1 << v
                    edges.append((u, v))
            reach[u] = reached
        return tuple(reach), tuple(sorted(edges))

    def reversed(self) -> Dag:
        """The same nodes with every edge turned round."""
        return Dag(self.n, tuple(sorted((v, u) for u, v in self.edges)))

    def ordered(self, u: int, v: int) -> bool:
        """Does u reach v?"""
        return bool(self.descendants[u] >> v & 1)

    def _some_cycle(self) -> list[int]:
        left = set(range(self.n)) - set(self.order)
        node = min(left)
        seen: dict[int, int] = {}
        while node not in seen:
            seen[node] = len(seen)
            node = next(p for p in self.predecessors[node] if p in left)
        cycle = [node, *list(seen)[: seen[node] : -1], node]
        return cycle if len(cycle) <= 12 else [*cycle[:11], cycle[-1]]


def members(bits: int) -> Iterator[int]:
    """The members of a bit set, ascending."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _neighbours(n: int, edges: Iterable[Edge]) -> tuple[tuple[int, ...], ...]:
    lists: list[list[int]] = [[] for _ in range(n)]
    for u, v in edges:
        lists[u].append(v)
    return tuple(map(tuple, lists))
