"""What the cost model decides on a kernel: its template, parameters, and what the model says of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.costmodel.kernels.choose import Choice
from tilewright.ir import Attr, Func, InputError, Level, Module, Pairs
from tilewright.ir.tensor.ops import STRUCTURED
from tilewright.passes.framework.invariants import register_invariant
from tilewright.passes.kernels.registry import TEMPLATE, template_of
from tilewright.passes.kernels.schema import Fields, Number, Text, Whole

#: what the attribute `cost` of a kernel holds; kernels of libraries that were only measured have no limits
COST = Fields(
    {"estimate_s": Number()},
    {"bound_s": Number(), "fraction_of_peak": Number(), "limit": Text(), "considered": Whole(0)},
)


def cost_of(choice: Choice[Any]) -> Pairs:
    """What the cost model says of a choice, as the attribute `cost` of a kernel."""
    cost: dict[str, Attr] = {
        "estimate_s": choice.estimate_s,
        "bound_s": choice.bound.seconds,
        "fraction_of_peak": float(choice.bound.ub),
        "limit": choice.bound.limit,
        "considered": choice.candidates_considered,
    }
    return Pairs.of(cost)


def decided(kernel: Func, template: str, params: Pairs, choice: Choice[Any]) -> Func:
    """The kernel with a template, its parameters, and what the cost model says of them."""
    return kernel.with_attrs(**{TEMPLATE: template}, params=params, cost=cost_of(choice))


def decision_faults(kernel: Func) -> Iterator[str]:
    """What does not fit in the decision on a kernel, one sentence with its name each.

    Its template must be known, `params` must fit what the template states, and `cost` what the model writes.
    What is not decided yet is no fault.
    """
    try:
        template = template_of(kernel)
    except InputError as e:
        yield str(e)
        return
    params, cost = kernel.get("params"), kernel.get("cost")
    if template is not None and params is not None:
        named = f"params of {TEMPLATE} '{template.name}'"
        yield from (f"@{kernel.name}: {fault}" for fault in template.params.faults(params, named))
    if cost is not None:
        yield from (f"@{kernel.name}: {fault}" for fault in COST.faults(cost, "cost"))


def check_decision(kernel: Func) -> None:
    """Raise InputError, which names the kernel, for the first thing that does not fit in its decision."""
    for fault in decision_faults(kernel):
        raise InputError(fault)


def check_decisions(module: Module, where: str) -> None:
    """Raise InputError, which begins with `where`, for the first decision that does not fit its template."""
    for fault in (x for f in module.funcs if f.name != "main" for x in decision_faults(f)):
        raise InputError(fault, where=where)


@register_invariant("parameters-chosen")
def parameters_chosen(module: Module) -> list[str]:
    """Every tensor-level kernel names its template and its implementation parameters, which fit it."""
    kernels = [f for f in module.funcs if f.level is Level.TENSOR and f.name != "main"]
    missing = [
        f"@{f.name} has no attribute '{key}'"
        for f in kernels
        if any(op.name in STRUCTURED for op in f.body.ops)
        for key in (TEMPLATE, "params")
        if f.get(key) is None
    ]
    return [*missing, *(fault for f in kernels for fault in decision_faults(f))]
