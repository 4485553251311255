"""Covers of a graph by chains: streams that order no two independent nodes.

A matching pairs each node with the node that follows it on its stream, so a cover has n - |matching| chains,
and the matched reduced edges need no synchronisation.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.runtime.dag import Dag
from tilewright.runtime.streams.matching import (
    FREE,
    augmented,
    inverse,
    maximum_matching,
    maximum_reach_matching,
    minimum_cover,
)

Chains = list[list[int]]


def published_chains(dag: Dag) -> Chains:
    """Nimble's Algorithm 1 as published: a maximum matching of the reduced edges; fewest synchronisations."""
    return _chains(maximum_matching(dag.reduced_successors))


def merged_chains(dag: Dag) -> Chains:
    """Nimble's released code: chains of Algorithm 1, joined by a matching of ends that reach beginnings."""
    partner = maximum_matching(dag.reduced_successors)
    ends = [u for u, v in enumerate(partner) if v == FREE]
    starts = [v for v, u in enumerate(inverse(partner)) if u == FREE]
    for end, start in enumerate(maximum_reach_matching(dag, ends, starts)):
        if start != FREE:
            partner[end] = start
    return _chains(partner)


def optimal_chains(dag: Dag) -> Chains:
    """Among covers with the fewest synchronisations, one with the fewest chains."""
    return _chains(_optimal_matching(dag))


def limited_chains(dag: Dag, limit: int) -> Chains | None:
    """A cover of at most `limit` chains, or None where the graph is wider than that.

    It is the optimal cover where that is small enough; else links are added to the optimal one, those first
    that cost the fewest synchronisations.
    """
    partner = _optimal_matching(dag)
    surplus = partner.count(FREE) - limit
    if surplus > 0:
        everything = maximum_reach_matching(dag, range(dag.n), range(dag.n))
        if everything.count(FREE) > limit:
            return None
        direct = set(dag.reduced)
        partner = augmented(partner, everything, limit=surplus, loss=lambda u, v: (u, v) in direct)
    return _chains(partner)


def width(dag: Dag) -> int:
    """The largest number of pairwise independent nodes: the fewest chains of any cover (Dilworth)."""
    return maximum_reach_matching(dag, range(dag.n), range(dag.n)).count(FREE)


def _optimal_matching(dag: Dag) -> list[int]:
    """A matching of the closure with most reduced edges and, among those, of maximum size.

    It has maximum weight for reduced edges of weight 1 and other closure edges of weight 0. The minimum cover
    of the reduced edges is an optimal dual solution: by complementary slackness the matchings of maximum
    weight are those that use only edges whose weight is their number of covered ends and that leave no
    covered node free. Augmenting within these tight edges keeps matched nodes matched, so the largest
    matching is found there, without weights and on few of the closure's edges.
    """
    direct = dag.reduced_successors
    partner = maximum_matching(direct)
    left, right = minimum_cover(direct, partner)
    lefts = [u for u in range(dag.n) if not left[u]]
    rights = [v for v in range(dag.n) if not right[v]]
    tight = [(u, v) for u, v in dag.reduced if left[u] != right[v]]
    return augmented(partner, maximum_reach_matching(dag, lefts, rights, tight))


def _chains(partner: Sequence[int]) -> Chains:
    chains = []
    for start, before in enumerate(inverse(partner)):
        if before == FREE:
            chain = [start]
            while (following := partner[chain[-1]]) != FREE:
                chain.append(following)
            chains.append(chain)
    return chains
