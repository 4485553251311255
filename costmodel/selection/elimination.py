"""Exact selection by eliminating one variable after the other (min-plus), in the order of least fill.

Bertele and Brioschi, "Nonserial Dynamic Programming" (1972); the order is the min-fill rule. Labels that some
other label of the variable beats whatever its neighbours do are left out first (Goldstein, "Efficient rotamer
elimination applied to protein side-chains and related spin glasses", 1994).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod

import numpy as np

from tilewright.costmodel.selection.problem import FloatArray, Problem, Selection
from tilewright.ir.errors import WorkError

#: entries of the largest table that an elimination may make (8 bytes each)
MOST_ENTRIES = 1 << 24

Part = tuple[tuple[str, ...], FloatArray]


class TooWide(WorkError):
    """The tables of an elimination would be larger than allowed."""


@dataclass(frozen=True)
class Elimination:
    """An order in which variables are eliminated, and what it costs.

    width: the most neighbours that a variable has when it is eliminated. largest: entries of the largest
    table, that of a variable and its neighbours.
    """

    order: tuple[str, ...]
    width: int
    largest: int


def plan_elimination(sizes: Mapping[str, int], scopes: Iterable[Collection[str]]) -> Elimination:
    """The order of least fill: next is the variable whose neighbours lack the fewest edges among each other.

    sizes: labels of each variable. scopes: the variables of each table. Smaller tables break ties, then the
    order of `sizes`.
    """
    near: dict[str, set[str]] = {v: set() for v in sizes}
    for scope in scopes:
        for v in scope:
            near[v] |= set(scope) - {v}
    rank = {v: i for i, v in enumerate(sizes)}

    def cost(v: str) -> tuple[int, int, int]:
        around = near[v]
        lacking = sum(len(around) - 1 - len(near[u] & around) for u in around) // 2
        return lacking, prod(sizes[u] for u in around) * sizes[v], rank[v]

    costs = {v: cost(v) for v in sizes}
    order, width, largest = [], 0, 1
    while costs:
        v = min(costs, key=costs.__getitem__)
        around = near.pop(v)
        width, largest = max(width, len(around)), max(largest, costs[v][1])
        order.append(v)
        del costs[v]
        for u in around:
            near[u] |= around - {u}
            near[u].discard(v)
        for u in around.union(*(near[w] for w in around)):
            costs[u] = cost(u)
    return Elimination(tuple(order), width, largest)


def eliminate(problem: Problem, most_entries: int = MOST_ENTRIES) -> Selection:
    """The choice of least seconds, with the proof that lies in the method.

    Raises TooWide, which says how wide the graph is, where a table would have more than `most_entries`
    entries; nothing is computed then.
    """
    merged = problem.merged
    kept = undominated(merged)
    parts = [_restricted(t.variables, t.seconds, kept) for t in merged.tables]
    sizes = {v: len(kept[v]) for v in merged.domains}
    plan = plan_elimination(sizes, [names for names, _ in parts])
    if plan.largest > most_entries:
        raise TooWide(
            f"elimination would join {plan.width + 1} variables in a table of {plan.largest:.3g} entries, "
            f"more than the {most_entries:.3g} allowed"
        )
    places, seconds = _solved(parts, plan.order)
    labels = {v: merged.domains[v][kept[v][places[v]]] for v in merged.domains}
    whole = problem.whole(labels)
    left = sum(len(kept[v]) for v in kept)
    details = {"labels": sum(map(len, merged.domains.values())), "labels_left": left}
    total = problem.seconds(whole)
    return Selection(
        "elimination", whole, total, min(seconds, total), plan.width, plan.largest, details=details
    )


def projected(parts: Sequence[Part], keep: Sequence[str], sizes: Mapping[str, int]) -> FloatArray:
    """The least sum of tables by the labels of the variables `keep`, an axis for each in this order."""
    names = dict.fromkeys(v for scope, _ in parts for v in scope)
    inner = {v: sizes[v] for v in names if v not in keep}
    rest = list(parts)
    for v in plan_elimination(inner, [[u for u in scope if u in inner] for scope, _ in parts]).order:
        mine = [p for p in rest if v in p[0]]
        rest = [p for p in rest if v not in p[0]]
        scope, table = joined(mine, v)
        rest.append((scope, table.min(axis=-1)))
    shape = [sizes[v] for v in keep]
    out = np.zeros(shape)
    for scope, table in rest:
        out = out + _spread(table, scope, tuple(keep))
    return out


def undominated(problem: Problem) -> dict[str, list[int]]:
    """The labels of each variable that some choice may need.

    A label is left out where another one of the variable takes no longer whatever labels the neighbours have:
    the least difference of each table, summed, is not negative. Repeated until nothing changes.
    """
    kept = {v: list(range(len(labels))) for v, labels in problem.domains.items()}
    touching: dict[str, list[int]] = {v: [] for v in kept}
    for i, t in enumerate(problem.tables):
        for v in t.variables:
            touching[v].append(i)
    parts: list[Part] = [(t.variables, t.seconds) for t in problem.tables]
    open_ = dict.fromkeys(v for v in kept if len(kept[v]) > 1)
    while open_:
        v = next(iter(open_))
        del open_[v]
        dead = _dominated([parts[i] for i in touching[v]], v, len(kept[v]))
        if not dead:
            continue
        alive = [i for i in range(len(kept[v])) if i not in dead]
        kept[v] = [kept[v][i] for i in alive]
        for i in touching[v]:
            names, seconds = parts[i]
            parts[i] = names, np.take(seconds, alive, axis=names.index(v))
            open_.update(dict.fromkeys(u for u in (*names, v) if len(kept[u]) > 1))
    return kept


def _dominated(parts: Sequence[Part], v: str, count: int) -> set[int]:
    """The labels of `v` that another one beats or equals; of equal ones the first stays."""
    if count < 2:
        return set()
    more = np.zeros((count, count))  # what label a costs more than label b at least
    for names, seconds in parts:
        rows = np.moveaxis(seconds, names.index(v), 0).reshape(count, -1)
        with np.errstate(invalid="ignore"):
            for a in range(count):
                extra = rows[a] - rows  # nan where neither label is possible, which does not matter
                more[a] = _sum_of_least(more[a], np.where(np.isnan(extra), inf, extra).min(axis=1))
    dead: set[int] = set()
    for a in range(count):
        if any(b != a and b not in dead and more[a, b] >= 0 for b in range(count)):
            dead.add(a)
    return dead


def _sum_of_least(a: FloatArray, b: FloatArray) -> FloatArray:
    """Sums in which a label that may be impossible where the other one is not decides nothing."""
    return np.asarray(np.where((a == -inf) | (b == -inf), -inf, a + b))


def _restricted(names: tuple[str, ...], seconds: FloatArray, kept: Mapping[str, list[int]]) -> Part:
    """A table for the labels that are left; variables of one label are no axis."""
    for axis, v in enumerate(names):
        seconds = np.take(seconds, kept[v], axis=axis)
    wide = tuple(v for v in names if len(kept[v]) > 1)
    return wide, seconds.reshape([len(kept[v]) for v in wide])


def _solved(parts: Sequence[Part], order: Sequence[str]) -> tuple[dict[str, int], float]:
    """The place of the best label of each variable, and the least sum."""
    rest = list(parts)
    steps: list[tuple[str, tuple[str, ...], FloatArray]] = []
    for v in order:
        mine = [p for p in rest if v in p[0]]
        if not mine:
            steps.append((v, (), np.zeros(1)))
            continue
        rest = [p for p in rest if v not in p[0]]
        scope, table = joined(mine, v)
        steps.append((v, scope, table))
        rest.append((scope, table.min(axis=-1)))
    places: dict[str, int] = {}
    for v, scope, table in reversed(steps):
        places[v] = int(np.argmin(table[tuple(places[u] for u in scope)]))
    return places, float(sum(table for _, table in rest))


def joined(parts: Sequence[Part], last: str) -> Part:
    """The sum of tables over all their variables, of which `last` is the last axis, and the others' names."""
    others = tuple(dict.fromkeys(u for names, _ in parts for u in names if u != last))
    sizes = {u: n for names, seconds in parts for u, n in zip(names, seconds.shape, strict=True)}
    total = np.zeros([sizes[u] for u in (*others, last)])
    for names, seconds in parts:
        total += _spread(seconds, names, (*others, last))
    return others, total


def _spread(seconds: FloatArray, names: tuple[str, ...], axes: tuple[str, ...]) -> FloatArray:
    """A table as an array that broadcasts over these axes."""
    shape = dict(zip(names, seconds.shape, strict=True))
    turned = np.transpose(seconds, [names.index(u) for u in axes if u in shape])
    return turned.reshape([shape.get(u, 1) for u in axes])
