"""Matchings between nodes of a graph: bipartite ones, and ones of nodes with nodes they reach, as flows.

The closure of a graph may have n^2 / 2 pairs; the flow network has only its nodes and reduced edges.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.dag import Dag, Edge

Ints = np.ndarray[Any, np.dtype[np.int32]]
Ints64 = np.ndarray[Any, np.dtype[np.int64]]
FREE = -1


def maximum_matching(rows: Sequence[Ints | Sequence[int]]) -> list[int]:
    """Per left node its right partner or `FREE`, in a matching of maximum size; rows[u]: whom u may take."""
    n = len(rows)
    if not any(map(len, rows)):
        return [FREE] * n
    # Imported here: it takes a third of a second, and few programs have streams to plan.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    starts = np.zeros(n + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    columns = np.concatenate([np.asarray(row, dtype=np.int32) for row in rows])
    graph = csr_matrix((np.ones(len(columns), dtype=np.int8), columns, starts), shape=(n, n))
    return maximum_bipartite_matching(graph, perm_type="column").tolist()


def inverse(partner: Sequence[int]) -> list[int]:
    """Per right node its left partner or `FREE`."""
    left = [FREE] * len(partner)
    for u, v in enumerate(partner):
        if v != FREE:
            left[v] = u
    return left


def minimum_cover(rows: Sequence[Sequence[int]], partner: Sequence[int]) -> tuple[list[bool], list[bool]]:
    """The left and the right nodes of a minimum vertex cover, from a maximum matching (König's theorem)."""
    back = inverse(partner)
    left_reached = [v == FREE for v in partner]
    right_reached = [False] * len(partner)
    stack = [u for u, reached in enumerate(left_reached) if reached]
    while stack:
        for v in rows[stack.pop()]:
            if not right_reached[v]:
                right_reached[v] = True
                if not left_reached[back[v]]:
                    left_reached[back[v]] = True
                    stack.append(back[v])
    return [not reached for reached in left_reached], right_reached


def augmented(
    partner: Sequence[int],
    other: Sequence[int],
    *,
    limit: int | None = None,
    loss: Callable[[int, int], int] = lambda u, v: 0,
) -> list[int]:
    """Enlarge the matching `partner` along its augmenting paths in the union with the matching `other`.

    Nodes that were matched stay matched, and if `other` is maximum, so is the result. With a `limit`, at most
    so many paths are taken, those first whose dropped and added pairs have the smallest difference of `loss`.
    """
    back = inverse(partner)
    paths = []
    for start, own in enumerate(partner):
        path = _augmenting_path(start, partner, other, back) if own == FREE else []
        if path:
            change = sum(loss(u, partner[u]) for u in path if partner[u] != FREE)
            paths.append((change - sum(loss(u, other[u]) for u in path), path))
    paths.sort()
    result = list(partner)
    for _, path in paths[:limit]:
        for u in path:
            result[u] = other[u]
    return result


def _augmenting_path(
    start: int, partner: Sequence[int], other: Sequence[int], back: Sequence[int]
) -> list[int]:
    """The left nodes of the alternating path from the free node `start`; empty where it ends matched."""
    path = [start]
    while (v := other[path[-1]]) != FREE:
        if back[v] == FREE:
            return path
        path.append(back[v])
    return []


def maximum_reach_matching(
    dag: Dag, lefts: Collection[int], rights: Collection[int], pairs: Iterable[Edge] = ()
) -> list[int]:
    """Per node its partner or `FREE` in a matching of maximum size.

    A node of `lefts` may take any node of `rights` that it reaches; `pairs` are allowed as well.
    """
    n = dag.n
    if n == 0 or not dag.reduced:
        return [FREE] * n
    # Imported here: it takes a third of a second, and few programs have streams to plan.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_flow

    # A unit of flow goes left copy -> (some passing copies ->) right copy; passing copies hold any number.
    left, passing, right, source, sink = 0, n, 2 * n, 3 * n, 3 * n + 1
    nodes, edges = np.arange(n), np.array(dag.reduced)
    direct = np.array(tuple(pairs), dtype=np.int64).reshape(-1, 2)
    starts = edges[_mask(n, lefts)[edges[:, 0]]]
    ends = np.flatnonzero(_mask(n, rights))
    parts = (
        (np.full(n, source), left + nodes, 1),
        (left + starts[:, 0], passing + starts[:, 1], 1),
        (passing + edges[:, 0], passing + edges[:, 1], n),
        (passing + ends, right + ends, 1),
        (left + direct[:, 0], right + direct[:, 1], 1),
        (right + nodes, np.full(n, sink), 1),
    )
    tails, heads = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
    capacity = np.concatenate([np.full(len(part[0]), part[2], dtype=np.int32) for part in parts])
    network = csr_matrix((capacity, (tails, heads)), shape=(3 * n + 2, 3 * n + 2))
    flow = maximum_flow(network, source, sink, method="dinic").flow.tocoo()
    used = flow.data > 0
    return _partners(dag, flow.row[used], flow.col[used], flow.data[used])


def _partners(dag: Dag, tails: Ints64, heads: Ints64, amounts: Ints64) -> list[int]:
    """Follow each unit of flow from its left node to its right node."""
    n = dag.n
    partner = [FREE] * n
    waiting: list[list[int]] = [[] for _ in range(n)]  # per passing copy, the left nodes of its units
    onward: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    absorbed = [False] * n
    for tail, head, amount in zip(tails.tolist(), heads.tolist(), amounts.tolist(), strict=True):
        if tail < n:
            if head < 2 * n:
                waiting[head - n].append(tail)
            else:
                partner[tail] = head - 2 * n
        elif tail < 2 * n:
            if head < 2 * n:
                onward[tail - n].append((head - n, amount))
            else:
                absorbed[tail - n] = True
    for v in dag.order:
        units, waiting[v] = waiting[v], []
        if absorbed[v]:
            partner[units.pop()] = v
        for head, amount in onward[v]:
            waiting[head] += units[-amount:]
            del units[-amount:]
    return partner


def _mask(n: int, nodes: Collection[int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    mask = np.zeros(n, dtype=np.bool_)
    mask[list(nodes)] = True
    return mask
