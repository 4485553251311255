"""All points of a contract kernel's production space with what a search needs: bounds, estimates, order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.costmodel.bound import BoundArrays, contract_bound
from tilewright.costmodel.bound_terms import MEASURED_LOOP, SKELETON
from tilewright.costmodel.choose import DEFAULT_LIMITS, Choice
from tilewright.costmodel.enumeration import Rule
from tilewright.costmodel.estimator import estimate_contract
from tilewright.costmodel.hardware import Hardware
from tilewright.costmodel.parameters import CONTRACT_COLUMNS, ContractParameters, ContractSpace
from tilewright.costmodel.problem import ContractProblem
from tilewright.costmodel.production_space import Limits, production_space
from tilewright.costmodel.windows import FloatArray, IntArray

#: what a further point with the same thread tile, thread count and stages must be ahead in its estimate
_NEIGHBOUR_PENALTY = 0.1


@dataclass(frozen=True, eq=False)
class ContractPoints:
    """The legal points of one problem on one device.

    `least_s` are sound lower bounds in seconds of a kernel that is timed in a loop with warm caches;
    `estimates_s` are estimates of the same kernels.
    """

    problem: ContractProblem
    space: ContractSpace
    cold: BoundArrays
    least_s: FloatArray
    estimates_s: FloatArray

    def __len__(self) -> int:
        return len(self.space)

    def choice(self, index: int) -> Choice[ContractParameters]:
        """One point as the cost model would hand it out, with the bound for cold caches."""
        estimate = float(self.estimates_s[index])
        return Choice(self.space.at(index), self.cold.at(index), estimate, len(self))

    def find(self, parameters: Mapping[str, object]) -> int | None:
        """The index of the point with these parameters by name, or None; nothing about them is trusted."""
        if set(parameters) != {*CONTRACT_COLUMNS, "staging"} or parameters["staging"] != self.space.staging:
            return None
        if any(type(parameters[name]) is not int for name in CONTRACT_COLUMNS):
            return None
        same = np.ones(len(self), dtype=bool)
        for name in CONTRACT_COLUMNS:
            same &= getattr(self.space, name) == parameters[name]
        found = np.flatnonzero(same)
        return int(found[0]) if len(found) else None

    def order(self) -> IntArray:
        """Indices in the order to measure: by estimate, but different kinds of points before neighbours.

        Points that differ only in the shape of the block have nearly the same estimate: each one more of a
        kind (thread tile, thread count, stages) counts as if it were a tenth slower than the one before it.
        """
        s = self.space
        by_estimate = np.lexsort((self.least_s, self.estimates_s))
        columns = (s.n_t, s.k_t, s.h_t, s.w_t, s.threads, s.stages)
        kinds = np.stack(columns, axis=1)[by_estimate]
        _, kind = np.unique(kinds, axis=0, return_inverse=True)
        kind = kind.reshape(-1)
        grouped = np.argsort(kind, kind="stable")
        starts = np.searchsorted(kind[grouped], np.arange(int(kind.max()) + 1))
        before = np.empty(len(kind), dtype=np.int64)
        before[grouped] = np.arange(len(kind)) - starts[kind[grouped]]
        penalised = self.estimates_s[by_estimate] * (1.0 + _NEIGHBOUR_PENALTY * before)
        return np.asarray(by_estimate[np.argsort(penalised, kind="stable")], dtype=np.int64)


def contract_points(
    problem: ContractProblem,
    hardware: Hardware,
    *,
    rule: Rule = "minimal_cover",
    limits: Limits = DEFAULT_LIMITS,
) -> ContractPoints:
    """Every legal point within `limits`, possibly none. Raises InputError where the limits admit none."""
    space = production_space(problem, hardware, rule, limits)
    cold = contract_bound(problem, space, hardware, SKELETON)
    estimates = estimate_contract(problem, space, hardware)
    legal: IntArray = np.flatnonzero((cold.ub > 0) & np.isfinite(estimates))
    kept = space.take(legal)
    terms = {name: column[legal] for name, column in cold.terms.items()}
    bounds = BoundArrays(cold.ub[legal], cold.seconds[legal], terms, cold.launch_floor_s)
    warm = contract_bound(problem, kept, hardware, MEASURED_LOOP)
    return ContractPoints(problem, kept, bounds, warm.seconds, estimates[legal])
