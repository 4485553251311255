"""The heaviest set of buffers no two of which may share bytes: no layout under these dependencies is smaller.

"Every use of b happens before every use of c" is a partial order, so by Dilworth's theorem the heaviest such
set weighs as much as all buffers less a maximum flow between ordered pairs (each byte passed on once).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from operator import and_

import numpy as np

from tilewright.runtime.arena.lifetimes import Ints, Lifetimes
from tilewright.runtime.dag import members

Edge = tuple[int, int]

MAX_UNITS = 2**31 - 1  # capacities of scipy's flow are 32-bit


def heaviest_antichain(sizes: Ints, lifetimes: Lifetimes) -> int:
    """Bytes of the heaviest set of pairwise clashing buffers of `sizes` bytes, by one maximum flow.

    Exact where the sizes' sum is below 2**31 times their greatest common divisor (with sizes in blocks of 256
    bytes: 512 GiB); beyond, sizes are rounded down to a coarser unit, and the result is still a lower bound.
    """
    count, launches = len(sizes), lifetimes.order.n
    if count < 2:
        return int(sizes.sum())
    # Imported here: it takes a third of a second, and a program of one kernel has nothing to place.
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_flow

    unit = int(np.gcd.reduce(sizes))
    unit *= 1 + int(sizes.sum()) // unit // MAX_UNITS
    units = sizes // unit
    total = int(units.sum())
    source, sink = 2 * (count + launches), 2 * (count + launches) + 1
    free = np.array(list(_edges(lifetimes)), dtype=np.int64)
    buffers = np.arange(count)
    tails = np.concatenate((np.full(count, source), count + buffers, free[:, 0]))
    heads = np.concatenate((buffers, np.full(count, sink), free[:, 1]))
    capacities = np.concatenate((units, units, np.full(len(free), total))).astype(np.int32)
    graph = csr_matrix((capacities, (tails, heads)), shape=(sink + 1, sink + 1))
    return (total - int(maximum_flow(graph, source, sink).flow_value)) * unit


def _edges(lifetimes: Lifetimes) -> Iterator[Edge]:
    """Edges of a graph in which the end of b reaches the beginning of c just where b precedes c.

    Nodes: the end of each buffer, the beginning of each buffer, each launch before it runs and after it ran.
    Only pairs of buffers with several last and several first uses need edges of their own.
    """
    order, count = lifetimes.order, len(lifetimes.uses)
    waits, ran = 2 * count, 2 * count + order.n
    several = 0
    for buffer, (last, over) in enumerate(zip(lifetimes.last_uses, lifetimes.over, strict=True)):
        if len(last) == 1 and over:
            yield buffer, ran + last[0]
        else:
            several |= 1 << buffer if over else 0
            yield from ((buffer, waits + launch) for launch in lifetimes.earliest(over))
    for buffer, first in enumerate(lifetimes.first_uses):
        if len(first) == 1:
            yield waits + first[0], count + buffer
            continue
        ready = reduce(and_, (order.ancestors[use] for use in first))
        yield from ((ran + launch, count + buffer) for launch in lifetimes.latest(ready))
        yield from ((other, count + buffer) for other in members(lifetimes.predecessors[buffer] & several))
    for launch, edges in enumerate(order.reduced_predecessors):
        yield waits + launch, ran + launch
        yield from ((ran + dep, waits + launch) for dep in edges)
