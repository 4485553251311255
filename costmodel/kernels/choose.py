"""Chooses implementation parameters by model: the best estimate, or a ranking in the order to measure."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, TypeVar

import numpy as np

from tilewright.costmodel.hardware.description import Hardware
from tilewright.costmodel.kernels.bound import Bound, BoundArrays, contract_bound
from tilewright.costmodel.kernels.bound_terms import GENERATED
from tilewright.costmodel.kernels.estimator import estimate_contract
from tilewright.costmodel.kernels.parameters import ContractParameters, ContractSpace
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.production_space import SpaceLimits, production_space
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.ir.errors import InputError
from tilewright.ir.typed_attributes import AttrRecord

P = TypeVar("P", bound=AttrRecord)


@dataclass(frozen=True)
class ParameterChoice(Generic[P]):
    """Chosen parameters with their sound bound, the estimated seconds, and how many legal points were
    compared.
    """

    parameters: P
    bound: Bound
    estimate_s: float
    candidates_considered: int


DEFAULT_LIMITS = SpaceLimits()


def likely_contract(
    problem: ContractProblem,
    hardware: Hardware,
    top: int,
    *,
    limits: SpaceLimits = DEFAULT_LIMITS,
) -> list[ParameterChoice[ContractParameters]]:
    """At most `top` points by estimate, each with another thread tile, thread count or number of stages.

    Neighbours that differ only in the shape of the block have nearly the same estimate; measuring one of them
    leaves room for different ones.
    """
    space, bounds, estimates = legal_points(problem, hardware, limits)
    chosen: list[ParameterChoice[ContractParameters]] = []
    seen: set[tuple[int, ...]] = set()
    for i in np.lexsort((bounds.seconds, estimates)):
        p = space.at(int(i))
        kind = (*p.thread.values(), p.threads, p.stages)
        if kind not in seen:
            seen.add(kind)
            chosen.append(_choice(space, bounds, estimates, int(i)))
        if len(chosen) == top:
            break
    return chosen


@lru_cache(maxsize=4096)
def choose_contract(
    problem: ContractProblem, hardware: Hardware, *, limits: SpaceLimits = DEFAULT_LIMITS
) -> ParameterChoice[ContractParameters]:
    """The legal point with the smallest estimate; the bound, then enumeration order, break ties. Memoised.

    Raises InputError where no point fits the device and the limits.
    """
    space, bounds, estimates = legal_points(problem, hardware, limits)
    fastest = np.flatnonzero(estimates == estimates.min())
    return _choice(space, bounds, estimates, int(fastest[np.argmin(bounds.seconds[fastest])]))


def legal_points(
    problem: ContractProblem, hardware: Hardware, limits: SpaceLimits = DEFAULT_LIMITS
) -> tuple[ContractSpace, BoundArrays, FloatArray]:
    """The legal part of the production space with bounds and estimates."""
    space = production_space(problem, hardware, limits)
    bounds = contract_bound(problem, space, hardware, GENERATED)
    estimates = estimate_contract(problem, space, hardware)
    legal: IntArray = np.flatnonzero((bounds.ub > 0) & np.isfinite(estimates))
    if not len(legal):
        raise InputError(
            f"no legal implementation parameters of {problem} on {hardware.name} within {limits}"
        )
    return space.take(legal), bounds.take(legal), estimates[legal]


def _choice(
    space: ContractSpace, bounds: BoundArrays, estimates: FloatArray, index: int
) -> ParameterChoice[ContractParameters]:
    return ParameterChoice(space.at(index), bounds.at(index), float(estimates[index]), len(space))
