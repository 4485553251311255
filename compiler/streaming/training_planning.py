"""The cut of a training step into layers whose state fits under a memory cap beside what kernels need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tilewright.ir import Module, Op, UnsupportedError, Value, WorkError
from tilewright.ir.types import array_type
from tilewright.passes.graph.distribute.pipeline.step_places import StepFlow, layers_of_cuts, place_step
from tilewright.runtime.storage.generations import Kept
from tilewright.runtime.storage.layout import PAGE_BYTES, TensorSpec, round_up
from tilewright.streaming.memory_size import shown_bytes
from tilewright.streaming.parts.schedule import SCHEDULES, Schedule
from tilewright.streaming.parts.step_modules import ValueWindow, window_of
from tilewright.streaming.parts.training_forms import Form, HostState
from tilewright.streaming.parts.training_parts import FormParts, Part, parts_of_form
from tilewright.streaming.parts.training_visits import (
    SlotLayout,
    TrainingVisit,
    passing_window,
    slot_layout,
    training_visits,
)
from tilewright.streaming.step_planning import ATTEMPTS, FINER, choose_cuts, weight_limit
from tilewright.streaming.step_plans import StepCompiler, StepPlan


@dataclass(frozen=True)
class ForwardLine:
    """The forward pass as a line that can be cut (as `streaming.line.Line`): what counts as the constants of
    an op is all state that belongs to what it reads, moments and sums of gradients included."""

    flow: StepFlow

    @cached_property
    def ops(self) -> tuple[Op, ...]:
        return self.flow.forward

    @cached_property
    def constant_bytes(self) -> tuple[Mapping[str, int], ...]:
        """Per op the state that goes with it, by name, and its bytes."""
        out: list[dict[str, int]] = [{} for _ in self.ops]
        for s, places in self.flow.owners({op: i for i, op in enumerate(self.ops)}).states.items():
            for i in places:
                out[i][s.hint] = round_up(s.tensor.nbytes, PAGE_BYTES)
        for i, op in enumerate(self.ops):
            for f in self.flow.fixed_ops([v for v in op.operands if v in self.flow.fixed]):
                if f.name == "graph.constant":
                    out[i][f"%{f['name']}"] = f.result.tensor.nbytes
        return tuple(out)

    @cached_property
    def cut_bytes(self) -> np.ndarray:
        """Entry i: bytes of the values that live between forward ops i - 1 and i."""
        made = dict.fromkeys(self.flow.inputs, -1)
        last: dict[Value, int] = {}
        for place, op in enumerate(self.ops):
            made |= dict.fromkeys(op.results, place)
            last |= {v: place for v in op.operands if v in made}
        steps = np.zeros(len(self.ops) + 2, np.int64)
        for v, begin in made.items():
            steps[begin + 1] += v.tensor.nbytes
            steps[last.get(v, begin) + 1] -= v.tensor.nbytes
        return np.cumsum(steps)[:-1]


@dataclass(frozen=True)
class CutStep:
    """A step cut into layers, in every form that its runs take."""

    module: Module
    host: HostState
    layers: int
    forms: Mapping[Form, int]
    parts: tuple[FormParts, ...]

    @cached_property
    def tensors(self) -> tuple[Kept, ...]:
        """What goes to storage: the state in the order of the step, which no cut changes, then scratch."""
        local = frozenset[str]().union(*(f.local for f in self.parts)) if self.resets else frozenset()
        known = set(self.host.names)
        updated = [self.module.main.params[i] for i, _ in self.module.main.updates]
        out = [Kept(_spec(p.hint, p), p.hint in local) for p in updated if p.hint not in known]
        kept: dict[str, Value] = {}
        for form in self.parts:
            for name, v in form.kept.items():
                if name not in kept or kept[name].tensor.nbytes < v.tensor.nbytes:
                    kept[name] = v
        return (*out, *(Kept(_spec(n, v), True) for n, v in kept.items()))

    @property
    def resets(self) -> bool:
        return any(f.local for f in self.parts)


def _spec(name: str, value: Value) -> TensorSpec:
    t = array_type(value.tensor)
    return TensorSpec(name, t.dtype, t.shape)


def cut_step(module: Module, host: HostState, forms: Sequence[Form], starts: Sequence[int]) -> CutStep:
    """Cut a step: layer k + 1 begins at op `starts[k]` of the forward pass."""
    whole = StepFlow(module.main, host.names)
    layer_of = layers_of_cuts(whole, starts)
    owners = whole.owners(layer_of)
    by_result = {op.results[0]: layer for op, layer in layer_of.items()}
    parts: list[FormParts] = []
    numbers = {form: i for i, form in enumerate(dict.fromkeys(forms))}
    for form in numbers:
        flow = StepFlow(host.decided(form), host.names)
        layers = {op: by_result[op.results[0]] for op in flow.forward}
        parts.append(parts_of_form(module, flow, place_step(flow, layers, owners)))
    return CutStep(module, host, len(starts) + 1, numbers, tuple(parts))


@dataclass(frozen=True)
class TrainingMemory:
    """Device memory in bytes: slots for state, the arena that parts share, a window of values.

    window_bytes: for the values of one part; resident_bytes: for all values of a micro-batch that wait.
    """

    slots: int
    slot_bytes: int
    arena_bytes: int
    window_bytes: int
    resident_bytes: int

    @property
    def device_bytes(self) -> int:
        """The least that a run takes."""
        return self.slots * self.slot_bytes + self.arena_bytes + self.window_bytes


@dataclass(frozen=True)
class PlannedTraining:
    """A cut step with its plans. visits, layouts: per schedule that it can take, for `batches` micro-batches.

    plan_of: by form and number of the part.
    """

    cut: CutStep
    form_of: tuple[int, ...]
    plans: tuple[StepPlan, ...]
    plan_of: Mapping[tuple[int, int], int]
    visits: Mapping[Schedule, Sequence[TrainingVisit]]
    layouts: Mapping[Schedule, Sequence[SlotLayout]]
    passing: tuple[ValueWindow, ...]
    resident: tuple[ValueWindow, ...]
    memory: TrainingMemory
    refused: str = ""

    def plan(self, form: int, part: int) -> StepPlan:
        """The plan of a part."""
        return self.plans[self.plan_of[form, part]]

    def with_plans(self, plans: Sequence[StepPlan], plan_of: Sequence[int]) -> PlannedTraining:
        """The same with these plans of the parts, in their order: those that their constants lead to."""
        return replace(self, plans=tuple(plans), plan_of=dict(zip(self.plan_of, plan_of, strict=True)))


def plan_training(
    module: Module, host: HostState, forms: Sequence[Form], cap_bytes: int, compiler: StepCompiler
) -> PlannedTraining:
    """Few layers under the cap: estimated on the graph, compiled, and cut finer where that was too little.

    forms: of the runs of one group, in order. Raises WorkError naming the least cap found to do.
    """
    line = ForwardLine(StepFlow(module.main, host.names))
    if not line.ops:
        raise UnsupportedError(
            "expected a training step with a loss that depends on inputs", where=f"@{module.name}"
        )
    least = max(sum(needed.values()) for needed in line.constant_bytes)
    total = sum({k: n for needed in line.constant_bytes for k, n in needed.items()}.values())
    working, inflation, share = 2.0 * float(line.cut_bytes.max()), 1.0, 1.0
    tried: dict[tuple[tuple[int, int], ...], TrainingMemory] = {}
    while len(tried) < ATTEMPTS:
        limit = weight_limit(total, least, share * (cap_bytes - working) / inflation)
        cuts = choose_cuts(line, limit)  # type: ignore[arg-type]
        assert cuts is not None  # every op alone is within the limit
        if tuple(cuts) in tried:
            if limit == least:
                break
            share *= FINER
            continue
        planned = _planned(cut_step(module, host, forms, [begin for begin, _ in cuts[1:]]), forms, compiler)
        memory = planned.memory
        if memory.device_bytes <= cap_bytes:
            return planned
        tried[tuple(cuts)] = memory
        working = memory.arena_bytes + memory.window_bytes
        largest = max(
            sum({k: n for needed in line.constant_bytes[a:b] for k, n in needed.items()}.values())
            for a, b in cuts
        )
        inflation = max(1.0, memory.slot_bytes / max(1, largest))
    found = min(tried.values(), key=lambda m: m.device_bytes)
    raise WorkError(
        f"@{module.name} does not fit under a memory cap of {shown_bytes(cap_bytes)}: the least that "
        f"would do is {shown_bytes(found.device_bytes)} ({found.slots} slots of "
        f"{shown_bytes(found.slot_bytes)} for state, {shown_bytes(found.arena_bytes)} for kernels, "
        f"{shown_bytes(found.window_bytes)} for values between parts)"
    )


def _planned(cut: CutStep, forms: Sequence[Form], compiler: StepCompiler) -> PlannedTraining:
    keys = [(f, i) for f, form in enumerate(cut.parts) for i in range(len(form.parts))]
    parts: list[Part] = [cut.parts[f].parts[i] for f, i in keys]
    plans, shared = compiler.plans(parts)  # type: ignore[arg-type]
    plan_of = dict(zip(keys, shared, strict=True))
    form_of = tuple(cut.forms[f] for f in forms)
    constant_bytes = {key: plans[plan_of[key]].stored.nbytes for key in keys}
    nbytes_of = {t.spec.name: t.nbytes for t in cut.tensors}
    order = [t.spec.name for t in cut.tensors]
    visits: dict[Schedule, Sequence[TrainingVisit]] = {}
    layouts: dict[Schedule, Sequence[SlotLayout]] = {}
    refused = ""
    for schedule in SCHEDULES.values():
        try:
            made = training_visits(schedule, cut.parts, form_of, order)
        except UnsupportedError as error:
            refused = str(error)
            continue
        visits[schedule] = made
        layouts[schedule] = [slot_layout(v, nbytes_of, constant_bytes) for v in made]
    passing = tuple(passing_window(form.parts) for form in cut.parts)
    resident = tuple(window_of(form.parts) for form in cut.parts)  # type: ignore[arg-type]
    memory = TrainingMemory(
        slots=1 if cut.layers == 1 else 2,
        slot_bytes=max(x.nbytes for own in layouts.values() for x in own),
        arena_bytes=max(plan.plan.arena_bytes for plan in plans),
        window_bytes=max(w.nbytes for w in passing),
        resident_bytes=max(w.nbytes for w in (*resident, *passing)),
    )
    return PlannedTraining(
        cut, form_of, tuple(plans), plan_of, visits, layouts, passing, resident, memory, refused
    )
