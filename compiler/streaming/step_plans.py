"""Steps -> plans: equal steps are compiled once, and every step's constants as its plan needs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.api import compile as compile_module
from tilewright.compilation.lowering import lower_from
from tilewright.compilation.own_passes import OwnPasses
from tilewright.compilation.planning import constants_of
from tilewright.devices.targets import Target
from tilewright.ir import Level, Module
from tilewright.ir.modules.compare import equal
from tilewright.passes.pipelines import official_stages
from tilewright.running.executable import Artifact, Executable
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan
from tilewright.runtime.storage.layout import StepSpec, StoredStep, TensorSpec, plan_layout
from tilewright.streaming.parts.step_modules import NetworkStep, share_templates

#: options of `tilewright.compile` that choose the passes; the others decide nothing without measuring
PASS_OPTIONS = ("precision", "conv_algorithm", "workspace", "partitioner", "layouts")


@dataclass(frozen=True)
class StepPlan:
    """The common part of equal steps: a plan whose results are buffers of kind output, and what was compiled.

    tensor: the module at the tensor level, without data. constants: the plan's, in the order of the store.
    """

    plan: ExecutionPlan
    artifact: Artifact
    tensor: Module

    @cached_property
    def constants(self) -> tuple[Buffer, ...]:
        return tuple(b for b in self.plan.buffers if b.kind == "constant")

    @cached_property
    def stored(self) -> StoredStep:
        """The layout of the constants in a slot, and on storage."""
        (step,) = plan_layout([StepSpec("step", tuple(_tensors("", self)))]).steps
        return step

    @property
    def starts(self) -> Mapping[str, int]:
        """The byte where each constant begins in a slot."""
        return self.stored.start_of


class StepCompiler:
    """Compiles steps for a target with the given options of `tilewright.compile`."""

    def __init__(self, target: Target, options: Mapping[str, Any]) -> None:
        self._target, self._options = target, dict(options)
        self._compiled: list[tuple[Module, StepPlan]] = []

    def plans(self, steps: Sequence[NetworkStep]) -> tuple[list[StepPlan], list[int]]:
        """Plans, and per step the number of its plan.

        A plan is shared by steps that are equal modules but for their data. Passes read data as well (they
        fold it), so `constants` checks that this made no difference.
        """
        shared = share_templates(steps)
        firsts = list(dict.fromkeys(shared))
        new = [steps[first] for first in firsts if self._known(steps[first]) is None]
        if self._options.get("tune") == "measure":
            # All are measured before any is compiled: what is measured for one may change another.
            for step in new:
                compile_module(step.with_data(), self._target, **self._options)
        self._compiled += [(step.module, self.compile(step)) for step in new]
        plans = [plan for first in firsts if (plan := self._known(steps[first])) is not None]
        return plans, [firsts.index(first) for first in shared]

    def _known(self, step: NetworkStep) -> StepPlan | None:
        """The plan of an equal step that was compiled before, for these or other cuts."""
        plans = (plan for module, plan in self._compiled if equal(module, step.module, constants=False))
        return next(plans, None)

    def compile(self, step: NetworkStep) -> StepPlan:
        """One step, compiled like any network; with `tune="measure"` from what was measured before."""
        module = step.with_data()
        exe = self._compiled_again(module)
        artifact = replace(exe.artifact, constants={})
        return StepPlan(with_output_buffers(exe.plan), artifact, self._at_tensor_level(module))

    def constants(self, step: NetworkStep, plan: StepPlan) -> Mapping[str, np.ndarray] | None:
        """The step's data as the constants of `plan`; None where this data leads to another plan."""
        module = step.with_data()
        if self._options.get("tune") == "measure":
            # What was measured chooses how weights are packed: only the whole way gives the same.
            exe = self._compiled_again(module)
            found = exe.artifact.constants if with_output_buffers(exe.plan) == plan.plan else None
            return None if found is None else {b.name: found[b.name] for b in plan.constants}
        lowered = self._lowered(module)
        if not equal(_without_data(lowered), plan.tensor, constants=False):
            return None
        found = constants_of(plan.plan, lowered.constants)
        return {b.name: found[b.name] for b in plan.constants}

    def _compiled_again(self, module: Module) -> Executable:
        """Compile with nothing that differs between two times: known measurements, modelled streams."""
        options = dict(self._options)
        if options.get("tune") == "measure":
            options |= {"budget": 0, "streams": options.get("streams") or "model"}
        return compile_module(module, self._target, **options)

    def _at_tensor_level(self, module: Module) -> Module:
        return _without_data(self._lowered(module))

    def _lowered(self, module: Module) -> Module:
        chosen = (self._options.get(name) for name in PASS_OPTIONS)
        target = self._target
        options = {k: v for k, v in zip(PASS_OPTIONS, chosen, strict=True) if v is not None}
        stages = official_stages(module.main.level, target.language, **options).down_to(Level.TENSOR)
        own = OwnPasses.of(self._options.get("passes", ()))
        return lower_from(module, target, stages, own).tensor


def _without_data(module: Module) -> Module:
    return replace(module, constants=type(module.constants)())


def with_output_buffers(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan with results in buffers of their own, outside the arena, which is laid out anew."""
    results = set(plan.outputs)

    def moved(buffer: Buffer) -> Buffer:
        if buffer.name in results and buffer.kind == "arena":
            return replace(buffer, kind="output", offset=0)
        return buffer

    return validate(place_arena(plan.replace(buffers=tuple(map(moved, plan.buffers)))))


def store_specs(plans: Sequence[StepPlan], plan_of: Sequence[int]) -> list[StepSpec]:
    """Per step the tensors that its slot holds, in the slot's order."""
    return [
        StepSpec(f"step {k}", tuple(_tensors(tensor_name(k, ""), plans[number])))
        for k, number in enumerate(plan_of)
    ]


def _tensors(prefix: str, plan: StepPlan) -> Iterator[TensorSpec]:
    for buffer in plan.constants:
        yield TensorSpec(prefix + buffer.name, buffer.dtype, buffer.shape)


def tensor_name(step: int, constant: str) -> str:
    """The name in a store of a constant of a step."""
    return f"step{step}/{constant}"
