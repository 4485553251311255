"""Selection as the paper has it: a shortest path through the operators of one pass after the other.

Ivanov et al., "Data Movement Is All You Need" (MLSys 2021), section 6: nodes are an operator and the orders
of what it hands to the next one, edges cost the least time of the operator with these orders; residual edges
are dropped, and one pass is chosen before the other one, which takes over its orders. It is the baseline of
the exact methods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal

import numpy as np

from tilewright.costmodel.selection.elimination import Part, projected
from tilewright.costmodel.selection.problem import FloatArray, Phase, Problem, Selection, Table

#: kernels that leftover variables may couple and still be chosen together, not one after the other
MOST_COUPLED = 3

Order = Literal["forward-first", "backward-first", "combined"]


@dataclass(frozen=True)
class _Kernel:
    name: str
    tables: tuple[Table, ...]

    @property
    def phase(self) -> Phase:
        return self.tables[0].phase

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(v for t in self.tables for v in t.variables))

    @property
    def reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(v for t in self.tables for v in t.reads))

    @property
    def writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(v for t in self.tables for v in t.writes))


class _Search:
    """Bound variables, as places in their domains, which grow from one pass to the next."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        by_name: dict[str, list[Table]] = {}
        for t in problem.tables:
            by_name.setdefault(t.kernel, []).append(t)
        self.kernels = [_Kernel(name, tuple(tables)) for name, tables in by_name.items()]
        self.sizes = {v: len(labels) for v, labels in problem.domains.items()}
        self.bound: dict[str, int] = {}

    def path(self, kernels: Sequence[_Kernel]) -> tuple[float, dict[str, int]]:
        """The least sum along the kernels in order, and the places of what each hands to the next one.

        Whatever is not handed to the next kernel may have another label in each.
        """
        if not kernels:
            return 0.0, {}
        handed = [[v for v in a.writes if v in b.reads] for a, b in pairwise(kernels)]
        taken = set(self.bound)  # variables that equal an earlier one are nodes of the path once
        for vs in handed:
            vs[:] = [v for v in vs if v not in taken]
            taken.update(vs)
        line = np.zeros(1)
        came: list[tuple[FloatArray, list[str], list[str]]] = []
        for kernel, before, after in zip(kernels, [[], *handed], [*handed, []], strict=True):
            table = self._least(kernel, [*before, *after])
            rows = int(np.prod([self.sizes[v] for v in before], dtype=int))
            step = line[:, None] + table.reshape(rows, -1)
            came.append((step.argmin(axis=0), before, after))
            line = step.min(axis=0)
        places: dict[str, int] = {}
        at = int(line.argmin())
        total = float(line.min())
        for back, before, _ in reversed(came):
            at = int(back[at])
            shape = [self.sizes[v] for v in before]
            if before:
                for v, i in zip(before, np.unravel_index(at, shape), strict=True):
                    places.setdefault(v, int(i))
        return total, places

    def bind_rest(self) -> None:
        """Bind what no path bound: together where few kernels share it, else kernel after kernel."""
        for group in self._coupled():
            if len(group) <= MOST_COUPLED:
                self._bind(group)
            else:
                for kernel in group:
                    self._bind([kernel])
        for v in self.sizes:
            self.bound.setdefault(v, 0)

    def _least(self, kernel: _Kernel, keep: Sequence[str]) -> FloatArray:
        return projected([self._given(t) for t in kernel.tables], keep, self.sizes)

    def _given(self, table: Table) -> Part:
        """A table for what is bound already."""
        places = tuple(self.bound.get(v, slice(None)) for v in table.variables)
        return tuple(v for v in table.variables if v not in self.bound), table.seconds[places]

    def _bind(self, kernels: Sequence[_Kernel]) -> None:
        """Bind the open variables of kernels, one by one, each with all others still free."""
        parts = [self._given(t) for k in kernels for t in k.tables]
        for v in dict.fromkeys(v for k in kernels for v in k.variables if v not in self.bound):
            self.bound[v] = int(projected(parts, [v], self.sizes).argmin())
            parts = [self._given(t) for k in kernels for t in k.tables]

    def _coupled(self) -> list[list[_Kernel]]:
        """Kernels with open variables, in groups that share some."""
        groups: list[tuple[set[str], list[int]]] = []
        for i, kernel in enumerate(self.kernels):
            names = {v for v in kernel.variables if v not in self.bound}
            if not names:
                continue
            mine: tuple[set[str], list[int]] = (names, [i])
            for other in [g for g in groups if g[0] & names]:
                groups.remove(other)
                mine = (mine[0] | other[0], sorted([*mine[1], *other[1]]))
            groups.append(mine)
        return [[self.kernels[i] for i in members] for _, members in groups]


def shortest_path(problem: Problem, order: Order = "forward-first", split: Sequence[str] = ()) -> Selection:
    """A choice by shortest paths, which need not be the best; no bound beyond the sum of least entries.

    order: which pass is chosen first, or both as one path. split: with `combined`, variables whose labels
    are fixed in turn, the path searched for each of them and the shortest taken. Of a choice that a kernel
    cannot run the seconds are inf.
    """
    merged = problem.merged
    search = _Search(merged)
    split = tuple(dict.fromkeys(problem.leader[v] for v in split))
    passes = {phase: _spine([k for k in search.kernels if k.phase == phase]) for phase in _PHASES}
    forward, backward = passes["forward"], passes["backward"]
    if order == "combined":
        _bind_split(search, [*forward, *backward], split)
    else:
        for kernels in (forward, backward) if order == "forward-first" else (backward, forward):
            search.bound.update(search.path(kernels)[1])
    search.bind_rest()
    labels = problem.whole({v: merged.domains[v][i] for v, i in search.bound.items()})
    return Selection("shortest path", labels, problem.seconds(labels), problem.free_s)


_PHASES: tuple[Phase, ...] = ("forward", "backward")


def _bind_split(search: _Search, kernels: Sequence[_Kernel], split: Sequence[str]) -> None:
    """Bind what is split on and what lies on the path, as in the shortest of all paths."""
    best: tuple[float, Mapping[str, int]] = (float("inf"), {})
    for places in product(*(range(search.sizes[v]) for v in split)):
        fixed = dict(zip(split, places, strict=True))
        search.bound = dict(fixed)
        seconds, on_path = search.path(kernels)
        if seconds < best[0] or not best[1]:
            best = seconds, {**fixed, **on_path}
    search.bound = dict(best[1])


def _spine(kernels: Sequence[_Kernel]) -> list[_Kernel]:
    """Kernels in depth-first order: a kernel, then those that read what it writes."""
    out: list[_Kernel] = []
    seen: set[str] = set()
    for start in kernels:
        stack = [start]
        while stack:
            kernel = stack.pop()
            if kernel.name in seen:
                continue
            seen.add(kernel.name)
            out.append(kernel)
            stack += [k for k in reversed(kernels) if set(k.reads) & set(kernel.writes)]
    return out
