"""Steady time of programs that hand items to one another: the maximum cycle ratio of their marked graph.

Nodes are what happens once per item, edges say what must have happened before, and how long after. An edge
with k tokens is about k items earlier: a ring of slots is an edge back with as many tokens as it has slots.
The time per item is the largest ratio of time to tokens of all directed cycles (Cohen, Dubois, Quadrat, Viot
1985; Karp 1978), and a cycle without a token is a deadlock.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Edge:
    """`target` happens at least `clk` cycles after `source`, that of `tokens` items before."""

    source: Hashable
    target: Hashable
    clk: float
    tokens: int = 0


@dataclass(frozen=True)
class CycleRatio:
    """Cycles per item, and the edges of a cycle that has them; no edges where nothing goes around."""

    clk: float
    cycle: tuple[Edge, ...]


def deadlock(edges: Sequence[Edge]) -> tuple[Edge, ...]:
    """A cycle without a token: what waits for itself. Empty where there is none."""
    return _cycle([(e, 1.0) for e in edges if not e.tokens])


def maximum_cycle_ratio(edges: Sequence[Edge]) -> CycleRatio:
    """The largest clk / tokens of all cycles; raises ValueError for a cycle without tokens.

    Lawler's search by Newton's steps: at a ratio that some cycle exceeds, that cycle gives the next one.
    """
    if blocked := deadlock(edges):
        names = " -> ".join(str(e.source) for e in blocked)
        raise ValueError(f"expected a token on every cycle, got none on {names}")
    best = CycleRatio(0.0, ())
    while cycle := _cycle([(e, e.clk - best.clk * e.tokens) for e in edges], best.clk):
        ratio = sum(e.clk for e in cycle) / sum(e.tokens for e in cycle)
        if ratio <= best.clk * (1 + sys.float_info.epsilon):
            break
        best = CycleRatio(ratio, cycle)
    return best


def _cycle(weighted: Sequence[tuple[Edge, float]], scale: float = 1.0) -> tuple[Edge, ...]:
    """Edges of a cycle of positive weight, by the longest paths of Bellman and Ford; empty without one."""
    nodes = {n for e, _ in weighted for n in (e.source, e.target)}
    far: dict[Hashable, float] = dict.fromkeys(nodes, 0.0)
    into: dict[Hashable, Edge] = {}
    least = len(weighted) * sys.float_info.epsilon * max(1.0, scale, *(abs(w) for _, w in weighted))
    for _ in range(len(nodes) + 1):
        changed = None
        for e, weight in weighted:
            if far[e.source] + weight > far[e.target] + least:
                far[e.target], into[e.target], changed = far[e.source] + weight, e, e.target
        if changed is None:
            return ()
    return _around(into, changed, len(nodes))


def _around(into: Mapping[Hashable, Edge], node: Hashable, count: int) -> tuple[Edge, ...]:
    """The cycle that is met when edges are followed back from a node often enough."""
    for _ in range(count):
        node = into[node].source
    cycle = [into[node]]
    while cycle[-1].source != node:
        cycle.append(into[cycle[-1].source])
    return tuple(reversed(cycle))
