"""Graphs for the tests of stream planning, and what brute force says about them, kept between tests."""

import random
from functools import lru_cache
from itertools import combinations, pairwise

from tilewright.runtime.streams import Dag


def all_graphs(n):
    """Every graph of n nodes whose edges ascend: all graphs there are, up to the names of nodes."""
    pairs = list(combinations(range(n), 2))
    for bits in range(1 << len(pairs)):
        yield Dag.of(n, [pair for i, pair in enumerate(pairs) if bits >> i & 1])


@lru_cache(maxsize=1)
def small_graphs():
    """All graphs of up to 5 nodes and 2,000 random ones of 6 to 8 nodes with shuffled names."""
    rng = random.Random(4)
    graphs = [dag for n in range(6) for dag in all_graphs(n)]
    for _ in range(2000):
        n, density = rng.choice([6, 7, 8]), rng.choice([0.15, 0.3, 0.45, 0.6])
        names = rng.sample(range(n), n)
        pairs = [(names[i], names[j]) for i, j in combinations(range(n), 2)]
        graphs.append(Dag.of(n, [pair for pair in pairs if rng.random() < density]))
    return graphs


def random_graph(rng, n, parents, span):
    """n nodes, each after up to `parents` of the `span` nodes before it."""
    edges = [
        (rng.randrange(max(0, v - span), v), v) for v in range(1, n) for _ in range(rng.randint(0, parents))
    ]
    return Dag.of(n, edges)


@lru_cache(maxsize=8192)
def closure(n, edges):
    """All pairs (u, v) such that a path leads from u to v, by Warshall's algorithm."""
    reach = [[(u, v) in edges for v in range(n)] for u in range(n)]
    for middle in range(n):
        for u in range(n):
            if reach[u][middle]:
                reach[u] = [a or b for a, b in zip(reach[u], reach[middle], strict=True)]
    return frozenset((u, v) for u in range(n) for v in range(n) if reach[u][v])


@lru_cache(maxsize=8192)
def reduction(n, edges):
    """The pairs of the closure between which there is no third node."""
    pairs = closure(n, edges)
    return frozenset(
        (u, v) for u, v in pairs if not any((u, w) in pairs and (w, v) in pairs for w in range(n))
    )


@lru_cache(maxsize=8192)
def best_covers(n, edges):
    """Per number of streams the fewest synchronisations of any partition into chains of the graph.

    Nodes are dealt in a topological order, each to the end of a chain that reaches it or to a new one, which
    yields each partition once. Equal positions (node, ends of chains) have equal futures and are met once.
    """
    pairs, reduced = closure(n, edges), reduction(n, edges)
    order = sorted(range(n), key=lambda v: sum((u, v) in pairs for u in range(n)))
    fewest = {frozenset(): 0}  # ends of chains -> most reduced edges inside chains
    for v in order:
        following = {}
        for ends, inside in fewest.items():
            options = [(ends | {v}, inside)]
            options += [((ends - {u}) | {v}, inside + ((u, v) in reduced)) for u in ends if (u, v) in pairs]
            for key, value in options:
                following[key] = max(value, following.get(key, 0))
        fewest = following
    best = {}
    for ends, inside in fewest.items():
        best[len(ends)] = min(len(reduced) - inside, best.get(len(ends), len(reduced)))
    return best


def enforced(plan):
    """The closure of streams and synchronisations, without the code under test."""
    pairs = {(u, v) for nodes in plan.streams for u, v in pairwise(nodes)}
    return closure(len(plan.order), frozenset(pairs | set(plan.syncs)))
