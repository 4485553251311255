"""Holds plans of training steps to the budget of memory that the pass choose-saved kept to by its model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, TypeVar

from tilewright.codegen import KernelSource
from tilewright.compilation.planning import plan_module
from tilewright.devices.targets import Target
from tilewright.ir import InputError, Module
from tilewright.passes.analysis.memory_headroom import MEMORY_BUDGET
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.plan.execution_plan import ExecutionPlan

#: times that a network is lowered for a budget at most, each time with what the plan before took too much
ROUNDS = 4


class _Lowered(Protocol):
    @property
    def thread(self) -> Module: ...
    @property
    def target(self) -> Target: ...
    @property
    def sources(self) -> Mapping[str, KernelSource]: ...


L = TypeVar("L", bound=_Lowered)


def within_memory_budget(module: Module, lowered: Callable[[Module], L]) -> L:
    """The module lowered so that its plan keeps to the attribute `memory_budget` of @main, where it has one.

    The pass knows kernels without parameters; scratch arrays, copies and alignment come later. Where the plan
    takes more, the pass gets so much less, and twice as much less each time that this was not enough; where
    it has no choice for what is left, the middle between that and the least that was too much. Raises
    InputError with what the smallest plan takes.
    """
    budget = module.main.get(MEMORY_BUDGET)
    if type(budget) is not int:
        return lowered(module)
    asked, least, exceeded, refused = budget, 0, budget, 0
    for i in range(ROUNDS):
        try:
            out = lowered(_asked(module, asked))
        except InputError:
            if asked == budget:
                raise
            refused = asked
        else:
            taken = device_bytes(one_stream_plan(out))
            if taken <= budget:
                return out
            least, exceeded = min(least or taken, taken), asked
            asked -= (taken - budget) << i
        if asked <= refused:
            asked = (refused + exceeded) // 2
    raise InputError(
        f"expected a memory budget of at least {least} bytes ({least / 2**20:.1f} MiB), which the smallest "
        f"plan of this step takes on the device, got {budget}",
        where=f"@{module.main.name}",
    )


def exceeds_memory_budget(module: Module, plan: ExecutionPlan) -> bool:
    """Return whether a placed plan takes more than the budget of its module; several streams may make it."""
    budget = module.main.get(MEMORY_BUDGET)
    return type(budget) is int and device_bytes(plan) > budget


def _asked(module: Module, nbytes: int) -> Module:
    main = module.main.with_attrs(**{MEMORY_BUDGET: max(1, nbytes)})
    return module.with_funcs(tuple(main if f.name == main.name else f for f in module.funcs))


def one_stream_plan(lowered: _Lowered) -> ExecutionPlan:
    """The plan with buffers in the arena as on one stream, without the code of its kernels."""
    plan = plan_module(lowered.thread, lowered.sources, {}, str(lowered.target), placed=False)
    one_stream = enumerate(plan.launches)
    return place_arena(
        plan.replace(launches=tuple(replace(x, deps=(i - 1,) if i else ()) for i, x in one_stream))
    )


def device_bytes(plan: ExecutionPlan) -> int:
    """Bytes of a plan on the device: inputs, constants, state and the arena."""
    return plan.arena_bytes + sum(
        b.nbytes for b in plan.buffers if b.kind not in ("arena", "alias", "output")
    )
