"""Save or compute again: the problem in seconds and bytes, and its exact solutions.

A choice is a set of ops that the backward pass computes again. What it reads and what these ops read is then
available there: as their result, or saved. A choice costs

    the sum of `again_s` of its ops
    + for every saved value: `save_s`, `direct_s` where the backward pass reads it itself, and `read_s` where
      an op of the choice reads it.

All terms are single costs and costs of pairs that grow with different labels, so the cheapest choice is one
minimum cut. With a price per byte of what is saved it stays one: the cuts of all prices are the corners of
the convex hull of (bytes, seconds). Choices between the corners come from an integer program.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Generic, TypeVar

import numpy as np

from tilewright.passes.analysis.minimum_cut import Energy, least_cost

V = TypeVar("V", bound=Hashable)
#: whole units that the seconds of saving everything are divided into for the cut: twice that fits 32 bits
UNITS = 2**29
#: corners of the hull that are looked for at most
MOST_CORNERS = 32
#: seconds after which the integer program gives the best choice it has
MILP_S = 20.0


@dataclass(frozen=True)
class Recomputable(Generic[V]):
    """An op of the forward pass: the activations it reads, what it makes, its seconds when computed again.

    again_s is infinite for an op that cannot be, or must not be, computed again.
    """

    reads: tuple[V, ...]
    results: tuple[V, ...]
    again_s: float


@dataclass(frozen=True)
class Saving:
    """The costs of keeping a value for the backward pass.

    save_s: of keeping it, nothing where the forward pass stores it for its own readers. direct_s: of the
    backward readers that it has itself. read_s: of one more reader.
    """

    nbytes: int
    save_s: float
    read_s: float
    direct_s: float = 0.0


@dataclass(frozen=True)
class SavingProblem(Generic[V]):
    """The ops of a forward pass in order, the costs of what they make, and what the backward pass reads."""

    ops: tuple[Recomputable[V], ...]
    values: Mapping[V, Saving]
    needed: frozenset[V]
    maker: Mapping[V, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        makers = {v: i for i, op in enumerate(self.ops) for v in op.results}
        object.__setattr__(self, "maker", makers)

    def saved(self, again: Collection[int]) -> list[V]:
        """What is saved where these ops are computed again, in the order of the forward pass."""
        read = self.needed | {v for i in again for v in self.ops[i].reads}
        return [v for v in self.values if v in read and self.maker[v] not in again]

    def nbytes(self, again: Collection[int]) -> int:
        """Bytes of what is saved."""
        return sum(self.values[v].nbytes for v in self.saved(again))

    def seconds(self, again: Collection[int]) -> float:
        """The cost of a choice."""
        read = {v for i in again for v in self.ops[i].reads}
        total = sum(self.ops[i].again_s for i in again)
        for v in self.saved(again):
            cost = self.values[v]
            total += cost.save_s + (v in self.needed) * cost.direct_s + (v in read) * cost.read_s
        return total

    def useful(self, again: Collection[int]) -> frozenset[int]:
        """The ops of a choice that what the backward pass reads depends on."""
        wanted = set(self.needed)
        for i in sorted(again, reverse=True):
            if any(v in wanted for v in self.ops[i].results):
                wanted.update(self.ops[i].reads)
        return frozenset(i for i in again if any(v in wanted for v in self.ops[i].results))


def cheapest(problem: SavingProblem[V], byte_s: float = 0.0) -> frozenset[int]:
    """The choice of the least seconds where each saved byte costs `byte_s` besides: one minimum cut.

    Of several such choices it is the one that computes the least again.
    """
    energy: Energy[tuple[str, Hashable]] = Energy()
    for i, op in enumerate(problem.ops):
        energy.add(("op", i), 1, op.again_s)
        for v in op.reads:
            energy.add_pair(("read", v), ("op", i), (0, 1), inf)
    for v, cost in problem.values.items():
        again = ("op", problem.maker[v])
        kept_s = cost.save_s + byte_s * cost.nbytes
        if v in problem.needed:
            energy.add(again, 0, kept_s + cost.direct_s)
            kept_s = 0.0
        energy.add_pair(again, ("read", v), (0, 1), kept_s + cost.read_s)
    scale = sum(max(0.0, costs[0]) for costs in energy.single.values() if costs[0] < inf)
    ones = least_cost(energy, max(scale, 1e-30) / UNITS, 2 * UNITS - 1)
    return problem.useful([i for i in range(len(problem.ops)) if ("op", i) in ones])


def fewest_bytes(problem: SavingProblem[V]) -> frozenset[int]:
    """The choice that saves the fewest bytes; of several the one of the least seconds."""
    most = sum(op.again_s for op in problem.ops if op.again_s < inf)
    most += sum(c.save_s + c.direct_s + c.read_s for c in problem.values.values())
    return cheapest(problem, max(most, 1e-12))


def hull(problem: SavingProblem[V]) -> list[frozenset[int]]:
    """Choices at the corners of the lower convex hull of (bytes, seconds), by falling bytes.

    The first is the cheapest, the last saves the fewest bytes that any price leads to.
    """
    first, last = cheapest(problem), fewest_bytes(problem)
    corners = {first, last}

    def between(a: frozenset[int], b: frozenset[int]) -> None:
        bytes_less = problem.nbytes(a) - problem.nbytes(b)
        if bytes_less <= 0 or len(corners) >= MOST_CORNERS:
            return
        price = (problem.seconds(b) - problem.seconds(a)) / bytes_less
        c = cheapest(problem, price)
        cost = problem.seconds(c) + price * problem.nbytes(c)
        line = problem.seconds(a) + price * problem.nbytes(a)
        if c not in corners and cost < line * (1 - 1e-7):
            corners.add(c)
            between(a, c)
            between(c, b)

    between(first, last)
    return sorted(corners, key=lambda c: (-problem.nbytes(c), problem.seconds(c)))


def cheapest_within(
    problem: SavingProblem[V], nbytes: int, corners: Sequence[frozenset[int]] | None = None
) -> frozenset[int] | None:
    """The choice of the least seconds that saves at most so many bytes; none where no choice does.

    corners: those of the hull, where they are known.
    An integer program; a choice at a corner of the hull that fits is the answer where the program, stopped
    after `MILP_S`, has none that is better.
    """
    corners = hull(problem) if corners is None else corners
    fitting = [c for c in corners if problem.nbytes(c) <= nbytes]
    if corners[0] in fitting:
        return corners[0]
    exact = _by_integer_program(problem, nbytes)
    choices = [*fitting, *([] if exact is None else [exact])]
    return min(choices, key=lambda c: (problem.seconds(c), problem.nbytes(c)), default=None)


def _by_integer_program(problem: SavingProblem[V], nbytes: int) -> frozenset[int] | None:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    ops, values = len(problem.ops), list(problem.values)
    size = ops + 2 * len(values)  # computed again; saved; read by what is computed again
    cost = np.zeros(size)
    upper = np.ones(size)
    integral = np.zeros(size)
    integral[:ops] = 1
    rows: list[dict[int, float]] = []
    low: list[float] = []
    for i, op in enumerate(problem.ops):
        if op.again_s < inf:
            cost[i] = op.again_s
        else:
            upper[i] = 0
    for k, v in enumerate(values):
        saving, maker, kept, read = problem.values[v], problem.maker[v], ops + k, ops + len(values) + k
        cost[kept] = saving.save_s + (saving.direct_s if v in problem.needed else 0.0)
        cost[read] = saving.read_s
        if v in problem.needed:
            rows.append({kept: 1.0, maker: 1.0})  # saved or computed again
            low.append(1.0)
        for i, op in enumerate(problem.ops):
            if v in op.reads:
                rows += [{kept: 1.0, maker: 1.0, i: -1.0}, {read: 1.0, maker: 1.0, i: -1.0}]
                low += [0.0, 0.0]
    rows.append({ops + k: -float(problem.values[v].nbytes) for k, v in enumerate(values)})
    low.append(-float(nbytes))
    entries = [(r, c, x) for r, row in enumerate(rows) for c, x in row.items()]
    at, column, x = (np.array(e) for e in zip(*entries, strict=True))
    matrix = csr_matrix((x, (at, column)), shape=(len(rows), size))
    scale = cost.max() or 1.0
    found = milp(
        cost / scale,
        integrality=integral,
        bounds=Bounds(np.zeros(size), upper),
        constraints=LinearConstraint(matrix, np.array(low), np.inf),
        options={"time_limit": MILP_S, "mip_rel_gap": 0.0},
    )
    if found.x is None:
        return None
    again = problem.useful([i for i in range(ops) if found.x[i] > 0.5])
    return again if problem.nbytes(again) <= nbytes else None
