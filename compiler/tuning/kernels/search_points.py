"""All points of a contraction's production spaces with what a search needs: bounds, estimates, an order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np

from tilewright.costmodel.hardware.description import GpuHardware, Hardware
from tilewright.costmodel.kernels.bound import BoundArrays, contract_bound
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP, SKELETON
from tilewright.costmodel.kernels.choose import DEFAULT_LIMITS, ParameterChoice
from tilewright.costmodel.kernels.estimator import estimate_contract
from tilewright.costmodel.kernels.parameters import ContractParameters, ContractSpace
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.production_space import SpaceLimits, production_space
from tilewright.costmodel.kernels.warp_reads import distinct_columns
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.passes.kernels.matrix.bound import matrix_bound
from tilewright.passes.kernels.matrix.choice import best_point
from tilewright.passes.kernels.matrix.estimator import estimate_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters
from tilewright.passes.kernels.matrix.space import MatrixProblem, MatrixSpace, matrix_space

P = TypeVar("P", ContractParameters, MatrixParameters)

#: what a further point with the same thread tile, thread count and stages must be ahead in its estimate
_NEIGHBOUR_PENALTY = 0.1


@dataclass(frozen=True, eq=False)
class EnginePoints(Generic[P]):
    """The legal points of one engine for one problem on one device.

    `least_s` are sound lower bounds in seconds of a kernel that is timed in a loop with warm caches but for
    its streamed bytes, `cold` those of the cost model; `estimates_s` are estimates of the same kernels.
    `kinds` are columns in which points agree that differ in little.
    """

    engine: str
    problem: ContractProblem | MatrixProblem
    space: ContractSpace | MatrixSpace
    cold: BoundArrays
    least_s: FloatArray
    estimates_s: FloatArray
    kinds: tuple[IntArray, ...]

    def __len__(self) -> int:
        return len(self.space)

    def parameters(self, index: int) -> P:
        """The parameters of one point."""
        return self.space.at(index)  # type: ignore[return-value]

    def choice(self, index: int) -> ParameterChoice[P]:
        """One point as the cost model would hand it out, with the bound for cold caches."""
        estimate = float(self.estimates_s[index])
        return ParameterChoice(self.parameters(index), self.cold.at(index), estimate, len(self))

    @property
    def likeliest(self) -> int:
        """The point that the cost model chooses among these."""
        if isinstance(self.space, MatrixSpace):
            return best_point(self.space, self.cold, self.estimates_s)
        return int(np.lexsort((self.cold.seconds, self.estimates_s))[0])

    def named(self, index: int) -> dict[str, Any]:
        """What names a point in a record."""
        return {"engine": self.engine, **self.space.named(index)}

    def find(self, name: Mapping[str, object]) -> int | None:
        """The point of such a name, or None; nothing about it is trusted."""
        mine = self.named(0)
        if set(name) != set(mine) or any(type(name[n]) is not type(v) for n, v in mine.items()):
            return None
        same = np.ones(len(self), dtype=bool)
        for column, value in name.items():
            if isinstance(value, str):
                same &= value == mine[column]
            else:
                same &= getattr(self.space, column) == value
        found = np.flatnonzero(same)
        return int(found[0]) if len(found) else None

    def scores(self) -> FloatArray:
        """Estimates in seconds to order points by, so that different kinds come before neighbours.

        Points that differ only in the shape of the block have nearly the same estimate: each one more of a
        kind counts as if it were a tenth slower than the one before it.
        """
        by_estimate = np.lexsort((self.least_s, self.estimates_s))
        _, kind = distinct_columns(np.stack(self.kinds)[:, by_estimate])
        grouped = np.argsort(kind, kind="stable")
        starts = np.searchsorted(kind[grouped], np.arange(int(kind.max()) + 1))
        before = np.empty(len(kind), dtype=np.int64)
        before[grouped] = np.arange(len(kind)) - starts[kind[grouped]]
        scores = np.empty(len(kind), dtype=np.float64)
        scores[by_estimate] = self.estimates_s[by_estimate] * (1.0 + _NEIGHBOUR_PENALTY * before)
        return scores


def contract_points(
    problem: ContractProblem,
    hardware: Hardware,
    *,
    limits: SpaceLimits = DEFAULT_LIMITS,
    streamed_bytes: float = 0.0,
) -> EnginePoints[ContractParameters]:
    """Every legal point of the lanes' engine within `limits`. Raises InputError where there is none.

    streamed_bytes: what of its operands comes from DRAM in every run of the timing loop.
    """
    space = production_space(problem, hardware, limits)
    cold = contract_bound(problem, space, hardware, SKELETON)
    estimates = estimate_contract(problem, space, hardware)
    legal: IntArray = np.flatnonzero((cold.ub > 0) & np.isfinite(estimates))
    s = space.take(legal)
    warm = contract_bound(problem, s, hardware, replace(MEASURED_LOOP, streamed_bytes=streamed_bytes))
    kinds = (s.n_t, s.k_t, s.h_t, s.w_t, s.threads, s.stages)
    kept = _taken(cold, legal)
    return EnginePoints("lanes", problem, s, kept, warm.seconds, estimates[legal], kinds)


def matrix_points(
    problem: MatrixProblem, hardware: GpuHardware, *, streamed_bytes: float = 0.0
) -> EnginePoints[MatrixParameters]:
    """Every legal point of the tensor cores' engine, as `contract_points`; raises InputError without any."""
    space = matrix_space(problem, hardware)
    cold = matrix_bound(problem, space, hardware)
    estimates = estimate_matrix(problem, space, hardware)
    legal: IntArray = np.flatnonzero((cold.ub > 0) & np.isfinite(estimates))
    s = space.take(legal)
    warm = matrix_bound(problem, s, hardware, replace(MEASURED_LOOP, streamed_bytes=streamed_bytes))
    kinds = (s.m, s.n, s.warps_m, s.warps_n, s.warps_k, s.groups)
    return EnginePoints(
        "tensor cores", problem, s, _taken(cold, legal), warm.seconds, estimates[legal], kinds
    )


def merged_order(engines: Sequence[EnginePoints[Any]]) -> IntArray:
    """(engine, point) rows of all points, in the order to measure."""
    scores = np.concatenate([p.scores() for p in engines])
    rows = np.concatenate(
        [np.stack([np.full(len(p), e), np.arange(len(p))], axis=1) for e, p in enumerate(engines)]
    )
    return np.asarray(rows[np.argsort(scores, kind="stable")], dtype=np.int64)


def _taken(bounds: BoundArrays, chosen: IntArray) -> BoundArrays:
    terms = {name: column[chosen] for name, column in bounds.terms.items()}
    return BoundArrays(bounds.ub[chosen], bounds.seconds[chosen], terms, bounds.launch_floor_s)
