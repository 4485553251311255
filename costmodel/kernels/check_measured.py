"""Holds a measured time against the sound bound: a kernel faster than its bound is a bug in the bound."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.costmodel.hardware.description import Hardware
from tilewright.costmodel.kernels.bound import Bound, contract_bound_of, global_bound
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP, Assumptions
from tilewright.costmodel.kernels.parameters import ContractParameters
from tilewright.costmodel.kernels.problem import ContractProblem, Problem
from tilewright.ir.typed_attributes import AttrRecord

TIMER_NOISE = 0.02


@dataclass(frozen=True)
class Violation:
    """A measurement below its lower bound: both times in seconds and the term that claims too much."""

    problem: Problem
    parameters: AttrRecord
    measured_s: float
    bound: Bound

    def __str__(self) -> str:
        return (
            f"measured {1e6 * self.measured_s:.2f} us, but the bound says at least "
            f"{1e6 * self.bound.seconds:.2f} us ({self.bound.limit}) "
            f"for {self.parameters} on {self.problem}"
        )


def check_measured(
    problem: Problem,
    parameters: AttrRecord,
    hardware: Hardware,
    seconds: float,
    *,
    assumptions: Assumptions = MEASURED_LOOP,
    noise: float = TIMER_NOISE,
) -> Violation | None:
    """None if `seconds` (1 + noise) is not below the bound, else the violation.

    The default assumptions allow for warm caches, as in a timing loop. Raises ValueError if `seconds` is not
    positive or the parameters do not belong to the problem.
    """
    if not seconds > 0:
        raise ValueError(f"expected a positive time, got {seconds}")
    if isinstance(problem, ContractProblem):
        if not isinstance(parameters, ContractParameters):
            raise ValueError(f"expected contract parameters, got {type(parameters).__name__}")
        bound = contract_bound_of(problem, parameters, hardware, assumptions)
    else:
        bound = global_bound(problem, hardware, assumptions)
    if seconds * (1.0 + noise) >= bound.seconds:
        return None
    return Violation(problem, parameters, seconds, bound)
