"""Maximum matchings of nodes with nodes they reach, as flows along the reduced edges.

The closure of a graph may have n^2 / 2 pairs; the flow network has only its nodes and reduced edges.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from tilewright.runtime.dag import Dag, Edge
from tilewright.runtime.streams.matching import FREE

Ints = np.ndarray[Any, np.dtype[np.int64]]


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


def _partners(dag: Dag, tails: Ints, heads: Ints, amounts: Ints) -> list[int]:
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
