"""Bipartite matchings between the nodes of a graph and themselves: maximum, minimum cover, augmentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int32]]
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
