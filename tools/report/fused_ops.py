"""The ops of the network that each launch computes, noted before equal kernels become one."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import Func, Level, Module, Ref
from tilewright.passes import Instrument, Step
from tilewright.runtime.plan.execution_plan import ExecutionPlan

SHARING = "share-kernels"


@dataclass(frozen=True)
class _Call:
    root: str
    locations: tuple[str, ...]


class FusedOps(Instrument):
    """Pass it to `compile`: it notes the locations of the ops in every kernel call of @main."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    def before(self, step: Step, module: Module) -> None:
        if step.configured.definition.name == SHARING and module.main.level is Level.TENSOR:
            self._calls = _calls(module)

    def of_launches(self, plan: ExecutionPlan) -> list[tuple[str, ...]] | None:
        """Locations per launch; None where the launches are no longer the calls that were noted."""
        roots = [launch.origin[:1] for launch in plan.launches]
        if [(c.root,) for c in self._calls] != roots:
            return None
        return [c.locations for c in self._calls]


def locations_in(kernel: Func) -> tuple[str, ...]:
    """Origins of a kernel's ops, in order and without repetition."""
    return tuple(dict.fromkeys(op.loc for op in kernel.body.ops if op.loc))


def _calls(module: Module) -> list[_Call]:
    kernels = {f.name: f for f in module.funcs}
    calls = [(op, op["callee"]) for op in module.main.body.ops if op.name == "tensor.call"]
    return [_Call(op.loc, locations_in(kernels[ref.name])) for op, ref in calls if isinstance(ref, Ref)]
