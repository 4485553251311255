"""Algorithm 1 of the paper as it is printed, a baseline: partitions reached by merging pairs that help.

From one kernel per op, every pair of kernels that may be merged and that costs less together than apart
leads to another partition; all that can be reached so are explored and the cheapest is taken. A set of three
is found only where a pair of it helps already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tilewright.passes.tensor.fusion.partition_exact import Cover, components, without_cycles
from tilewright.passes.tensor.fusion.partition_graph import OpGraph, members

#: partitions of one component to explore; their number grows with two to the power of the ops
MAX_PARTITIONS = 200


def algorithm1(graph: OpGraph, costs: Mapping[int, float], most: int = MAX_PARTITIONS) -> Cover:
    """The cheapest partition reached by merges that each help, among sets with `costs`.

    Ops that no set joins are explored apart, which changes nothing. After `most` partitions of a component
    the merge that gains most is followed, as whole networks need. `exact` says whether all were explored, not
    whether the result is the cheapest partition.
    """
    found: list[int] = []
    complete = True
    for part in components(len(graph.ops), costs):
        sets, explored = _explore(graph, costs, part, most)
        found += sets
        complete = complete and explored
    best = Cover(tuple(sorted(found)), sum(costs[s] for s in found), complete)
    return without_cycles(graph, best, costs)


def _explore(graph: OpGraph, costs: Mapping[int, float], part: int, most: int) -> tuple[frozenset[int], bool]:
    start = frozenset(1 << i for i in members(part))
    best, least = start, sum(costs[s] for s in start)
    todo = [(best, least)]
    seen = {start}
    while todo:
        sets, seconds = todo.pop()
        if seconds < least:
            best, least = sets, seconds
        if len(seen) > most:
            return _descend(graph, costs, best), False
        for a, b, gain in _gains(graph, costs, sets):
            merged = sets - {a, b} | {a | b}
            if merged not in seen and not _tangled(graph, merged):
                seen.add(merged)
                todo.append((merged, seconds - gain))
    return best, True


def _gains(
    graph: OpGraph, costs: Mapping[int, float], sets: frozenset[int]
) -> Iterator[tuple[int, int, float]]:
    """Pairs of kernels, one of which reads the other, that cost less as one kernel; and by how much."""
    owner = {i: s for s in sets for i in members(s)}
    for a in sorted(sets):
        others = {owner[j] for i in members(a) for j in members(graph.succs[i]) if j in owner} - {a}
        for b in sorted(others):
            if a | b in costs and costs[a] + costs[b] > costs[a | b]:
                yield a, b, costs[a] + costs[b] - costs[a | b]


def _descend(graph: OpGraph, costs: Mapping[int, float], sets: frozenset[int]) -> frozenset[int]:
    """Follow the merge that gains most until none helps."""
    while True:
        for a, b, _ in sorted(_gains(graph, costs, sets), key=lambda m: -m[2]):
            merged = sets - {a, b} | {a | b}
            if not _tangled(graph, merged):
                sets = merged
                break
        else:
            return sets


def _tangled(graph: OpGraph, sets: Iterable[int]) -> bool:
    """Whether kernels of several ops wait for each other in a cycle, through whatever else."""
    left = {s: 0 for s in sets if s & (s - 1)}
    for s in left:
        for i in members(s):
            left[s] |= graph.before[i]
        left[s] &= ~s
    while left:
        free = [s for s, needs in left.items() if not any(needs & o for o in left if o != s)]
        if not free:
            return True
        for s in free:
            del left[s]
    return False
