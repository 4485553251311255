"""The problem of selection: variables with labels, tables of seconds, equal variables, copies at a price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tilewright.ir.errors import InputError

FloatArray = npt.NDArray[np.float64]
Phase = Literal["forward", "backward"]
#: of a copy that is not made
NO_COPY = "-"
#: shares of the total within which two sums of seconds are the same
TOLERANCE = 1e-6
#: share of the total that sums in another order may differ by
ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Table:
    """Seconds of one kernel, or of a part of it, by the labels of the variables that it touches.

    seconds: an axis per variable, as long as its domain; inf where the kernel cannot run so. A kernel may
    have several tables, whose seconds add up; a parameter of the kernel that separates them (a knob) is a
    variable like any other. reads, writes: the tensors among the variables; what is neither is a knob.
    """

    kernel: str
    variables: tuple[str, ...]
    seconds: FloatArray
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    phase: Phase = "forward"

    def __post_init__(self) -> None:
        if len(set(self.variables)) != len(self.variables) or self.seconds.ndim != len(self.variables):
            raise InputError(
                f"expected a table of kernel '{self.kernel}' with one axis per variable, each of them once, "
                f"got variables {self.variables} and {self.seconds.ndim} axes"
            )
        if np.isnan(self.seconds).any() or (self.seconds < 0).any():
            raise InputError(f"expected seconds >= 0 in the table of kernel '{self.kernel}'")


@dataclass(frozen=True, eq=False)
class Problem:
    """Choose one label for every variable so that the seconds of all tables add up to the least.

    domains: the labels of every variable. equal: pairs of variables that must have the same label (a weight
    and its gradient; input and output of a layer, so that layers can follow each other).
    Raises InputError for variables without domain, tables of another shape, or equal variables whose domains
    differ.
    """

    domains: Mapping[str, tuple[str, ...]]
    tables: tuple[Table, ...]
    equal: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for name, labels in self.domains.items():
            if not labels or len(set(labels)) != len(labels):
                raise InputError(f"expected one or more different labels of variable '{name}', got {labels}")
        for table in self.tables:
            unknown = [v for v in table.variables if v not in self.domains]
            if unknown:
                raise InputError(
                    f"kernel '{table.kernel}' names the variable '{unknown[0]}' without a domain"
                )
            shape = tuple(len(self.domains[v]) for v in table.variables)
            if table.seconds.shape != shape:
                got = table.seconds.shape
                raise InputError(f"expected a table of shape {shape} for kernel '{table.kernel}', got {got}")
        for a, b in self.equal:
            if a not in self.domains or b not in self.domains or self.domains[a] != self.domains[b]:
                raise InputError(f"expected equal variables '{a}' and '{b}' to have the same labels")

    @cached_property
    def leader(self) -> Mapping[str, str]:
        """The variable that stands for each one and for all that equal it: the first of them in `domains`."""
        parent = {v: v for v in self.domains}

        def root(v: str) -> str:
            while parent[v] != v:
                v = parent[v]
            return v

        rank = {v: i for i, v in enumerate(self.domains)}
        for a, b in self.equal:
            first, second = sorted((root(a), root(b)), key=rank.__getitem__)
            parent[second] = first
        return {v: root(v) for v in self.domains}

    @cached_property
    def merged(self) -> Problem:
        """The problem with one variable for all that are equal; tables that name two of them get a
        diagonal.
        """
        if not self.equal:
            return self
        tables = tuple(self._merged_table(t) for t in self.tables)
        domains = {v: labels for v, labels in self.domains.items() if self.leader[v] == v}
        return Problem(domains, tables)

    def _merged_table(self, table: Table) -> Table:
        names = [self.leader[v] for v in table.variables]
        axes = tuple(dict.fromkeys(names))
        where = np.indices([len(self.domains[v]) for v in axes], sparse=True)
        seconds = table.seconds[tuple(where[axes.index(v)] for v in names)]
        reads = tuple(dict.fromkeys(self.leader[v] for v in table.reads))
        writes = tuple(dict.fromkeys(self.leader[v] for v in table.writes))
        return replace(table, variables=axes, seconds=seconds, reads=reads, writes=writes)

    def whole(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The labels of all variables from those of the merged problem."""
        return {v: labels[self.leader[v]] for v in self.domains}

    def seconds(self, labels: Mapping[str, str]) -> float:
        """The sum of all tables for a choice of labels; inf where it breaks an equality.

        Raises InputError where a variable has no label of its domain.
        """
        place: dict[str, int] = {}
        for v, domain in self.domains.items():
            if labels.get(v) not in domain:
                raise InputError(f"expected a label of variable '{v}' among {domain}, got {labels.get(v)!r}")
            place[v] = domain.index(labels[v])
        if any(labels[a] != labels[b] for a, b in self.equal):
            return float("inf")
        return float(sum(t.seconds[tuple(place[v] for v in t.variables)] for t in self.tables))

    @property
    def free_s(self) -> float:
        """The sum of the least seconds of every table: what no choice goes below."""
        return float(sum(t.seconds.min(initial=np.inf) for t in self.tables))

    @property
    def choices(self) -> int:
        """How many choices there are."""
        count = 1
        for v, labels in self.domains.items():
            count *= len(labels) if self.leader[v] == v else 1
        return count


@dataclass(frozen=True)
class Selection:
    """A label for every variable, and what is known about how good the choice is.

    bound_s: what no choice goes below, by the method. width: the most variables that a table of the
    elimination joins beside the one that it removes; largest: entries of its largest table. note: what did
    not go as asked (a graph that was too wide, a search that was stopped).
    """

    method: str
    labels: Mapping[str, str]
    seconds: float
    bound_s: float
    width: int | None = None
    largest: int | None = None
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """Share of the seconds by which a better choice might be better; 0 where there is none."""
        if not self.seconds < float("inf"):
            return 0.0 if self.bound_s == float("inf") else 1.0
        return max(0.0, self.seconds - self.bound_s) / self.seconds if self.seconds > 0 else 0.0

    @property
    def optimal(self) -> bool:
        """Return whether the method proved that no choice is better, up to rounding."""
        return self.gap <= TOLERANCE


def settled(problem: Problem, selection: Selection) -> Selection:
    """The choice with the first label of its domain for each variable that costs no more with it.

    Seconds that differ by rounding count as the same; so what makes no difference stays as it is.
    """
    merged = problem.merged
    touching: dict[str, list[Table]] = {v: [] for v in merged.domains}
    for t in merged.tables:
        for v in t.variables:
            touching[v].append(t)
    place = {v: labels.index(selection.labels[v]) for v, labels in merged.domains.items()}
    slack_s = selection.seconds * ROUNDING if selection.seconds < float("inf") else 0.0
    changed = True
    while changed:
        changed = False
        for v in merged.domains:
            if not place[v]:
                continue
            now, first = (
                sum(
                    t.seconds[tuple(0 if zero and u == v else place[u] for u in t.variables)]
                    for t in touching[v]
                )
                for zero in (False, True)
            )
            if first <= now + slack_s:
                place[v], changed = 0, True
    labels = problem.whole({v: labels[place[v]] for v, labels in merged.domains.items()})
    return replace(selection, labels=labels, seconds=min(selection.seconds, problem.seconds(labels)))


def add_copies(
    problem: Problem, tensor: str, price_s: Callable[[str, str], float], readers: Sequence[str] | None = None
) -> Problem:
    """The problem in which a tensor may also be stored a second time in another order, at a price.

    Every reader takes the copy that is cheaper for it; the copy is paid once, however many read it.
    price_s: seconds of the kernel that makes the copy, by the order of the tensor and that of the copy.
    readers: names of the kernels that may read it; all that read the tensor by default.
    Raises InputError where none reads it.
    """
    domain = problem.domains[tensor]
    users = [t for t in problem.tables if tensor in t.reads and (readers is None or t.kernel in readers)]
    if not users:
        raise InputError(f"expected kernels that read '{tensor}', of which there may be a copy")
    copy = f"{tensor}.copy"
    domains = {**problem.domains, copy: (NO_COPY, *domain)}
    price = np.array([[0.0, *(price_s(own, other) for other in domain)] for own in domain])
    tables = [t for t in problem.tables if t not in users]
    tables.append(Table(copy, (tensor, copy), price, (tensor,), (copy,), users[0].phase))
    same = np.eye(len(domain), dtype=bool)
    # [own order, order of the copy, order that is read]: one of both is in the order that is read
    open_ = same[:, None, :] | np.concatenate((np.zeros((1, len(domain)), bool), same))[None]
    for kernel in dict.fromkeys(t.kernel for t in users):
        read = f"{tensor}@{kernel}"
        domains[read] = domain
        link = np.where(open_, 0.0, np.inf)
        tables.append(Table(kernel, (tensor, copy, read), link, (tensor, copy), (), users[0].phase))
        for t in (t for t in users if t.kernel == kernel):
            names = tuple(read if v == tensor else v for v in t.variables)
            rest = tuple(v for v in t.reads if v != tensor)
            tables.append(replace(t, variables=names, reads=rest))
    order = {t.kernel: i for i, t in reversed(list(enumerate(problem.tables)))}
    first = min(order[t.kernel] for t in users)
    tables.sort(key=lambda t: order.get(t.kernel, first - 0.5))
    return Problem(domains, tuple(tables), problem.equal)
