"""Simulation of nodes that start as they become ready and find room, in an order of preference."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tilewright.runtime.dag import Dag

LOOKAHEAD = 128  # waiting nodes that may overtake one without room; a GPU holds about as many grids at once


class Capacity(Protocol):
    """The resources that running nodes occupy."""

    @property
    def full(self) -> bool:
        """Can no further node start?"""

    def take(self, node: int) -> bool:
        """Start `node` if there is room for it."""

    def give_back(self, node: int) -> None:
        """`node` has ended."""


def simulate(
    dag: Dag,
    costs: Sequence[float],
    capacity: Capacity,
    priority: Callable[[int], Any],
    delay: Callable[[int, int], float] = lambda u, v: 0.0,
) -> tuple[dict[int, float], float]:
    """The starts of all nodes in order of time, and the time at which the last one ends.

    A node is ready `delay(u, v)` after the end of each u it depends on. Whenever something ends or becomes
    ready, ready nodes start by ascending priority as far as there is room. An empty device must
    hold any node.
    """
    missing = [len(p) for p in dag.predecessors]
    ready_at = [0.0] * dag.n
    ready = [(priority(v), v) for v in range(dag.n) if not missing[v]]
    heapq.heapify(ready)
    events: list[tuple[float, bool, int]] = []  # time, has ended (else is ready), node
    starts: dict[int, float] = {}
    now = 0.0
    while ready or events:
        for node in _start(ready, capacity):
            starts[node] = now
            heapq.heappush(events, (now + costs[node], True, node))
        now = events[0][0]
        while events and events[0][0] <= now:
            _, has_ended, node = heapq.heappop(events)
            if not has_ended:
                heapq.heappush(ready, (priority(node), node))
                continue
            capacity.give_back(node)
            for v in dag.successors[node]:
                missing[v] -= 1
                ready_at[v] = max(ready_at[v], now + delay(node, v))
                if not missing[v]:
                    heapq.heappush(events, (ready_at[v], False, v))
    return starts, now


def _start(ready: list[tuple[Any, int]], capacity: Capacity) -> list[int]:
    """Move the nodes that can start out of the heap `ready`."""
    started: list[int] = []
    refused: list[tuple[Any, int]] = []
    while ready and not capacity.full and len(refused) < LOOKAHEAD:
        entry = heapq.heappop(ready)
        if capacity.take(entry[1]):
            started.append(entry[1])
        else:
            refused.append(entry)
    for entry in refused:
        heapq.heappush(ready, entry)
    return started
