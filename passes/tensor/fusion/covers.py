"""Partitions of a graph into sets that can be one kernel each: the cheapest one by dynamic programming, and
Algorithm 1 of the paper as it is printed, a baseline.

Sets that cost no less than a split of them into two are dropped. What remains decomposes the graph into
components of ops that some set joins. In each, ops are covered in order; a state is which later ops are
covered already. If the cheapest covers together make kernels wait for each other, one set of that cycle is
forbidden in turn, best cost first.

Algorithm 1 starts from one kernel per op: every pair of kernels that may be merged and that costs less as one
kernel leads to another partition; all that can be reached so are explored and the cheapest is taken. A set of
three is found only where a pair of it helps already.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush, nsmallest
from itertools import count

from tilewright.passes.tensor.fusion.op_graph import OpGraph, members

#: sets chosen so far, the last one first
_Chain = tuple[int, "_Chain"] | None

#: states of one position that are kept; beyond, the cheapest (a beam)
MAX_STATES = 20_000
#: partitions with cycles to look at
MAX_ROUNDS = 200
#: partitions of one component to explore; their number grows with two to the power of the ops
MAX_PARTITIONS = 200


@dataclass(frozen=True)
class Cover:
    """A partition into kernels, its cost, and whether none is cheaper."""

    sets: tuple[int, ...]
    seconds: float
    exact: bool


def cheapest_partition(graph: OpGraph, costs: Mapping[int, float], *, max_states: int = MAX_STATES) -> Cover:
    """The cheapest partition of all ops into sets among `costs`, whose kernels do not wait for each other.

    costs: seconds of each set, every single op included. Not exact where a component has more states than
    `max_states`, or too many cheap partitions have cycles.
    """
    useful = undominated(graph, costs)
    parts = components(len(graph.ops), useful)
    by_part = {p: [s for s in useful if s & p] for p in parts}
    solved: dict[tuple[int, frozenset[int]], Cover] = {}

    def solve(forbidden: frozenset[int]) -> Cover:
        covers = []
        for p in parts:
            mine = frozenset(s for s in forbidden if s & p)
            if (p, mine) not in solved:
                allowed = {s: costs[s] for s in by_part[p] if s not in mine}
                solved[p, mine] = cover(p, allowed, max_states)
            covers.append(solved[p, mine])
        sets = tuple(s for c in covers for s in c.sets)
        return Cover(sets, sum(c.seconds for c in covers), all(c.exact for c in covers))

    order = count()
    first = solve(frozenset())
    queue = [(first.seconds, next(order), frozenset[int](), first)]
    seen = {frozenset[int]()}
    exact = True
    while True:
        _, _, forbidden, best = heappop(queue)
        exact = exact and best.exact
        cycle = [s for s in waiting(graph, best.sets) if s & (s - 1)]
        if not cycle:
            return Cover(best.sets, best.seconds, exact)
        if len(seen) > MAX_ROUNDS:
            return without_cycles(graph, best, costs)
        for s in cycle:
            more = forbidden | {s}
            if more not in seen:
                seen.add(more)
                following = solve(more)
                heappush(queue, (following.seconds, next(order), more, following))


def undominated(graph: OpGraph, costs: Mapping[int, float]) -> list[int]:
    """Sets that are cheaper than every way to split them into two that do not wait for each other.

    A partition stays free of cycles when one of its sets is split so.
    """
    best: dict[int, float] = {}
    useful: list[int] = []
    starting: dict[int, list[int]] = {}
    for s in sorted(costs, key=int.bit_count):
        low = s & -s
        least = costs[s]
        split = False
        for a in starting.get(low, ()):
            b = s ^ a
            if a & ~s or b not in best:
                continue
            parts = best[a] + best[b]
            if parts <= least and not (_reads(graph, a, b) and _reads(graph, b, a)):
                least, split = parts, True
        best[s] = least
        starting.setdefault(low, []).append(s)
        if not split:
            useful.append(s)
    return useful


def _reads(graph: OpGraph, a: int, b: int) -> bool:
    """Return whether some op of `a` must run after one of `b`."""
    return any(graph.before[i] & b for i in members(a))


def components(ops: int, sets: Iterable[int]) -> list[int]:
    """The ops that overlapping sets join, as disjoint sets."""
    parts = [1 << i for i in range(ops)]
    owner = list(range(ops))
    for s in sets:
        roots = {owner[i] for i in members(s)}
        if len(roots) > 1:
            first, *others = roots
            for r in others:
                for i in members(parts[r]):
                    owner[i] = first
                parts[first] |= parts[r]
                parts[r] = 0
    return [p for p in parts if p]


def cover(part: int, costs: Mapping[int, float], max_states: int = MAX_STATES) -> Cover:
    """The cheapest cover of the ops `part` by disjoint sets among `costs`.

    The lowest op not covered yet belongs to a set that starts with it; a state is the set of later ops that
    are covered. With more than `max_states` states the cheapest per op are kept.
    """
    starting: dict[int, list[tuple[int, float]]] = {}
    for s, seconds in costs.items():
        starting.setdefault((s & -s).bit_length() - 1, []).append((s, seconds))
    chains: dict[int, tuple[float, _Chain]] = {0: (0.0, None)}
    exact = True
    for i in members(part):
        bit = 1 << i
        following: dict[int, tuple[float, _Chain]] = {}
        for covered, (spent, chain) in chains.items():
            if covered & bit:
                key = covered ^ bit
                if key not in following or spent < following[key][0]:
                    following[key] = (spent, chain)
                continue
            for s, seconds in starting.get(i, ()):
                if s & covered:
                    continue
                key = (covered | s) ^ bit
                total = spent + seconds
                if key not in following or total < following[key][0]:
                    following[key] = (total, (s, chain))
        if len(following) > max_states:
            exact = False
            # what is covered ahead has been paid for already
            cheapest = nsmallest(max_states, following.items(), key=lambda x: (x[1][0], -x[0].bit_count()))
            following = dict(cheapest)
        chains = following
    total, chain = chains[0]
    sets: list[int] = []
    while chain is not None:
        s, chain = chain
        sets.append(s)
    return Cover(tuple(reversed(sets)), total, exact)


def waiting(graph: OpGraph, sets: Iterable[int]) -> list[int]:
    """Sets of a cycle of kernels that wait for each other; empty where there is none."""
    owner: dict[int, int] = {}
    for s in sets:
        for i in members(s):
            owner[i] = s
    after: dict[int, set[int]] = {}
    for s in owner.values():
        if s not in after:
            after[s] = {owner[j] for i in members(s) for j in members(graph.preds[i])} - {s}
    state: dict[int, int] = {}
    for root in after:
        if root in state:
            continue
        path = [(root, iter(after[root]))]
        state[root] = 1
        while path:
            s, rest = path[-1]
            nxt = next(rest, None)
            if nxt is None:
                state[s] = 2
                path.pop()
            elif state.get(nxt) == 1:
                names = [p for p, _ in path]
                return names[names.index(nxt) :]
            elif nxt not in state:
                state[nxt] = 1
                path.append((nxt, iter(after[nxt])))
    return []


def without_cycles(graph: OpGraph, best: Cover, costs: Mapping[int, float]) -> Cover:
    """The partition with the sets of every cycle split into single ops; the same one where there is none."""
    sets = list(best.sets)
    if not waiting(graph, sets):
        return best
    while cycle := waiting(graph, sets):
        sets = [s for s in sets if s not in cycle] + [1 << i for s in cycle for i in members(s)]
    return Cover(tuple(sets), sum(costs[s] for s in sets), False)


def algorithm1(graph: OpGraph, costs: Mapping[int, float], most: int = MAX_PARTITIONS) -> Cover:
    """The cheapest partition reached by merges that each help, among sets with `costs`.

    Ops that no set joins are explored separately, which changes nothing. After `most` partitions of a
    component the merge that gains most is followed, as whole networks need. `exact` says whether all were
    explored, not whether the result is the cheapest partition.
    """
    sets_of_parts: list[int] = []
    complete = True
    for part in components(len(graph.ops), costs):
        sets, explored = _explore(graph, costs, part, most)
        sets_of_parts += sets
        complete = complete and explored
    best = Cover(tuple(sorted(sets_of_parts)), sum(costs[s] for s in sets_of_parts), complete)
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
    """Return whether kernels of several ops wait for each other in a cycle, through whatever else."""
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
