"""The points a search may measure of one outlined kernel, each with a bound, an estimate and a variant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import numpy as np

from tilewright.costmodel import Hardware, global_bound
from tilewright.costmodel.bound_terms import MEASURED_LOOP
from tilewright.costmodel.parameters import Parameters
from tilewright.costmodel.problem import Problem
from tilewright.costmodel.search_points import contract_points
from tilewright.costmodel.windows import FloatArray, IntArray
from tilewright.ir import Func, InputError, Pairs
from tilewright.passes.tensor.choose_parameters import contract_variant
from tilewright.passes.tensor.kernel_problem import contract_problem

#: parameters of a point by name, as records keep them
Named = Mapping[str, object]


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Points 0 to `len`: point 0 is the kernel as the model left it, the others come in the order to measure.

    least_s: no kernel of a point can be faster when timed in a loop (seconds). variant: the kernel of a
    point. named: what names a point in a record. found: the point of such a name, None for anything else.
    """

    kernel: Func
    problem: Problem
    least_s: FloatArray
    estimates_s: FloatArray
    variant: Callable[[int], Func]
    named: Callable[[int], Named]
    found: Callable[[Named], int | None]
    parameters: Callable[[int], Parameters | None]

    def __len__(self) -> int:
        return len(self.least_s)


def search_space(kernel: Func, hardware: Hardware) -> SearchSpace | None:
    """The space of a kernel with chosen parameters; None where nothing but the model's choice is known."""
    if kernel.get("skeleton") != "contract" or not isinstance(kernel.get("params"), Pairs):
        return None
    return _contract_space(kernel, hardware)


def _contract_space(kernel: Func, hardware: Hardware) -> SearchSpace | None:
    op = next(o for o in kernel.body.ops if o.name == "tensor.contract")
    problem = contract_problem(kernel, op)
    try:
        points = contract_points(problem, hardware)
    except InputError:  # a kernel whose parameters somebody gave, on a device that fits no others
        return None
    order = points.order()
    # The model's choice is a point as any other, unless somebody gave the parameters.
    best = np.lexsort((points.cold.seconds, points.estimates_s))[:1]
    given = kernel["params"]
    start = [int(i) for i in best if contract_variant(kernel, op, points.choice(int(i)))["params"] == given]
    first: IntArray = np.array(start or [-1], dtype=np.int64)
    index = np.concatenate([first, order[order != first[0]]])
    least = np.where(index < 0, global_bound(problem, hardware, MEASURED_LOOP).seconds, points.least_s[index])
    estimates = np.where(index < 0, _estimate(kernel), points.estimates_s[index])

    def variant(i: int) -> Func:
        return kernel if index[i] < 0 else contract_variant(kernel, op, points.choice(int(index[i])))

    def parameters(i: int) -> Parameters | None:
        return None if index[i] < 0 else points.space.at(int(index[i]))

    def named(i: int) -> Named:
        found = parameters(i)
        return {} if found is None else asdict(found)

    def found(name: Named) -> int | None:
        at = (-1 if not start else None) if not name else points.find(name)
        return None if at is None else int(np.flatnonzero(index == at)[0])

    return SearchSpace(kernel, problem, least, estimates, variant, named, found, parameters)


def _estimate(kernel: Func) -> float:
    cost = kernel.get("cost")
    seconds = cost["estimate_s"] if isinstance(cost, Pairs) and "estimate_s" in cost else None
    return seconds if isinstance(seconds, float) else 0.0
