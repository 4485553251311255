"""The smallest arena by integer programming, for plans whose greedy layouts stay above the lower bound."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.runtime.arena.lifetimes import Bytes, Ints

#: clashing pairs up to which the program is tried: each is one binary decision
MAX_PAIRS = 400
#: branch-and-bound nodes; a limit in seconds would give equal plans different layouts
NODES = 100


def clashing_pairs(clashes: Bytes, count: int) -> Any:
    """The pairs i < j of buffers that may not share bytes, as an array of shape [pairs, 2]."""
    dense = np.unpackbits(clashes, axis=1, bitorder="little", count=count).astype(np.bool_)
    return np.argwhere(np.triu(dense, 1))


def smallest_layout(sizes: Ints, pairs: Any, bound: int, below: int, tolerance: float) -> Ints | None:
    """Offsets that take fewer than `below` bytes, the fewest found; None where the search finds none.

    sizes: bytes of each buffer; pairs: those that clash; bound: what no layout goes below. Of each pair one
    lies above the other: a binary variable says which. The search ends at `bound` times (1 + tolerance), or
    after a number of nodes.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    count, decisions = len(sizes), len(pairs)
    unit = int(np.gcd.reduce(sizes))
    size, low, high = sizes / unit, -(-bound // unit), (below - 1) // unit  # tops are multiples of the unit
    if high < low:
        return None
    # variables: offsets, the decision of each pair, the arena; rows: per pair i below j, j below i; the tops
    first, second = pairs[:, 0], pairs[:, 1]
    choice, arena = count + np.arange(decisions), count + decisions
    upper, tops = np.arange(decisions), 2 * decisions + np.arange(count)
    rows = (upper, upper, upper, decisions + upper, decisions + upper, decisions + upper, tops, tops)
    columns = (first, second, choice, second, first, choice, np.arange(count), np.full(count, arena))
    ones, wide = np.ones(decisions), np.full(decisions, high)
    values = (ones, -ones, wide, ones, -ones, -wide, np.ones(count), -np.ones(count))
    matrix = coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(2 * decisions + count, arena + 1),
    ).tocsr()
    limits = np.concatenate((high - size[first], -size[second], -size))
    variables = Bounds(
        np.concatenate((np.zeros(arena), [low])), np.concatenate((high - size, np.ones(decisions), [high]))
    )
    solution = milp(
        np.eye(1, arena + 1, arena)[0],
        constraints=LinearConstraint(matrix, -np.inf, limits),
        integrality=np.concatenate((np.zeros(count), np.ones(decisions), [0.0])),
        bounds=variables,
        options={"node_limit": NODES, "mip_rel_gap": tolerance},
    )
    if solution.x is None:
        return None
    return _settled(sizes, pairs, solution.x[:count])


def _settled(sizes: Ints, pairs: Any, offsets: Any) -> Ints:
    """Whole offsets in the order of the real ones: every buffer as low as those below it allow."""
    under: list[list[int]] = [[] for _ in sizes]
    for i, j in pairs.tolist():
        low, high = (i, j) if offsets[i] < offsets[j] else (j, i)
        under[high].append(low)
    exact = np.zeros(len(sizes), dtype=np.int64)
    for row in np.argsort(offsets, kind="stable").tolist():
        exact[row] = max((int(exact[b] + sizes[b]) for b in under[row]), default=0)
    return exact
