"""Selection by integer programming: one variable of 0 or 1 per label, with the solver's proof (HiGHS)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tilewright.costmodel.selection.elimination import undominated
from tilewright.costmodel.selection.problem import FloatArray, Problem, Selection
from tilewright.ir.errors import WorkError

#: seconds that the solver may take
LIMIT_S = 60.0
#: what the largest cost is scaled to; the solver compares objectives up to 1e-6
_LARGEST_COST = 1e4


class NoChoiceFound(WorkError):
    """The solver was stopped, or failed, before it had any choice."""


@dataclass
class _Program:
    """Rows of equalities over columns of 0 or 1, column by column."""

    cost: list[float] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    entries: list[tuple[int, int, float]] = field(default_factory=list)
    right: list[float] = field(default_factory=list)

    def columns(self, costs: FloatArray, whole: bool) -> list[int]:
        first = len(self.cost)
        self.cost += [float(c) for c in costs]
        self.whole += [int(whole)] * len(costs)
        return list(range(first, len(self.cost)))

    def row(self, ones: list[int], others: list[int], right: float) -> None:
        at = len(self.right)
        self.entries += [(at, c, 1.0) for c in ones] + [(at, c, -1.0) for c in others]
        self.right.append(right)


def integer(problem: Problem, limit_s: float = LIMIT_S) -> Selection:
    """The choice of least seconds, or, after `limit_s` seconds, the best that was found, with its gap.

    Each variable takes one of its labels. Each table of several variables takes one of its entries, and the
    entry's labels are those of the variables (the local marginal polytope), so that only the labels need be
    whole numbers. Raises NoChoiceFound where the solver has no choice to offer.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix

    merged = problem.merged
    kept = undominated(merged)
    program = _Program()
    finite = [t.seconds[np.isfinite(t.seconds)] for t in merged.tables]
    scale = max((float(f.max()) for f in finite if f.size), default=1.0) or 1.0
    scale /= _LARGEST_COST
    column: dict[str, list[int]] = {}
    for v in merged.domains:
        column[v] = program.columns(np.zeros(len(kept[v])), True)
        program.row(column[v], [], 1.0)
    fixed_s = 0.0
    possible = np.ones(len(program.cost))
    for t in merged.tables:
        seconds = t.seconds
        for axis, v in enumerate(t.variables):
            seconds = np.take(seconds, kept[v], axis=axis)
        if not np.isfinite(seconds).any():
            raise NoChoiceFound(f"no labels are possible for kernel '{t.kernel}'")
        least = float(seconds.min())
        fixed_s += least
        extra = (seconds - least) / scale
        wide = [v for v in t.variables if len(kept[v]) > 1]
        extra = extra.reshape([len(kept[v]) for v in wide])
        if len(wide) == 1:
            for c, cost in zip(column[wide[0]], extra, strict=True):
                if np.isfinite(cost):
                    program.cost[c] += float(cost)
                else:
                    possible[c] = 0.0
        elif len(wide) > 1 and extra.any():
            _add_table(program, extra, [column[v] for v in wide])
    upper = np.ones(len(program.cost))
    upper[: len(possible)] = possible
    rows, columns, values = (np.array(e) for e in zip(*program.entries, strict=True))
    matrix = csr_matrix((values, (rows, columns)), shape=(len(program.right), len(program.cost)))
    solution = milp(
        np.array(program.cost),
        integrality=np.array(program.whole),
        bounds=Bounds(np.zeros(len(upper)), upper),
        constraints=LinearConstraint(matrix, np.array(program.right), np.array(program.right)),
        options={"time_limit": limit_s, "mip_rel_gap": 0.0},
    )
    if solution.x is None:
        raise NoChoiceFound(f"the integer program has no solution after {limit_s:g} s: {solution.message}")
    labels = {v: merged.domains[v][kept[v][int(np.argmax(solution.x[column[v]]))]] for v in merged.domains}
    whole = problem.whole(labels)
    total = problem.seconds(whole)
    proven = 0.0 if solution.mip_dual_bound is None else float(solution.mip_dual_bound)
    bound_s = min(fixed_s + max(0.0, proven) * scale, total)
    note = "" if solution.status == 0 else f"the integer program was stopped after {limit_s:g} s"
    details = {"columns": len(program.cost), "rows": len(program.right)}
    return Selection("integer program", whole, total, bound_s, note=note, details=details)


def _add_table(program: _Program, extra: FloatArray, columns: list[list[int]]) -> None:
    """A column for each entry that is possible; along each variable they add up to its labels."""
    where = np.argwhere(np.isfinite(extra))
    entries = np.array(program.columns(extra[tuple(where.T)], False))
    for axis, labels in enumerate(columns):
        for i, label in enumerate(labels):
            program.row(entries[where[:, axis] == i].tolist(), [label], 0.0)
