"""Algorithm 1 of the paper as it is printed, a baseline: partitions reached by merging pairs that help.

From one kernel per op, every pair of kernels that may be merged and that costs less together than apart
leads to another partition; all that can be reached so are explored and the cheapest is taken. A set of three
is found only where a pair of it helps already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.passes.tensor.partition_exact import Cover, waiting
from tilewright.passes.tensor.partition_graph import OpGraph, members

#: partitions to explore; the number grows with two to the power of the ops
MAX_PARTITIONS = 3000


def algorithm1(graph: OpGraph, costs: Mapping[int, float], most: int = MAX_PARTITIONS) -> Cover:
    """The cheapest partition reached by merges that each help, among sets with `costs`.

    After `most` partitions only the cheapest merge of each is followed, as whole networks need. `exact` says
    whether all were explored, not whether the result is the cheapest partition.
    """
    start = frozenset(1 << i for i in range(len(graph.ops)))
    whole = sum(costs[s] for s in start)
    best, least = start, whole
    todo = [(start, whole)]
    seen = {start}
    complete = True
    while todo:
        sets, seconds = todo.pop()
        if seconds < least:
            best, least = sets, seconds
        if len(seen) > most:
            complete = False
            break
        for a, b, gain in _merges(graph, costs, sets):
            merged = sets - {a, b} | {a | b}
            if merged not in seen:
                seen.add(merged)
                todo.append((merged, seconds - gain))
    if not complete:
        best, least = _descend(graph, costs, best, least)
    return Cover(tuple(sorted(best)), least, complete)


def _merges(
    graph: OpGraph, costs: Mapping[int, float], sets: frozenset[int]
) -> Iterator[tuple[int, int, float]]:
    """Pairs whose kernel costs less than both apart, merged without kernels that wait in a cycle."""
    owner = {i: s for s in sets for i in members(s)}
    for a in sorted(sets):
        others = {owner[j] for i in members(a) for j in members(graph.succs[i])} - {a}
        for b in sorted(others):
            gain = costs[a] + costs[b] - costs[a | b] if a | b in costs else 0.0
            if gain > 0 and not waiting(graph, sets - {a, b} | {a | b}):
                yield a, b, gain


def _descend(
    graph: OpGraph, costs: Mapping[int, float], sets: frozenset[int], seconds: float
) -> tuple[frozenset[int], float]:
    """Follow the merge that gains most until none helps."""
    while True:
        found = max(_merges(graph, costs, sets), key=lambda m: m[2], default=None)
        if found is None:
            return sets, seconds
        a, b, gain = found
        sets, seconds = sets - {a, b} | {a | b}, seconds - gain
