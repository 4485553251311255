"""Plans of steps bound to places: a slot with constants, a window with values, the arena that all share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.runtime.interface.placed import ARENA, Block, Lane, Place, PlacedPlan
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.streaming.step_plans import StepPlan
from tilewright.streaming.store_file import PlannedSteps
from tilewright.streaming.window import Window


@dataclass(frozen=True)
class Binding:
    """A plan on its places, and the results that no launch writes where they belong: they are copied."""

    plan: PlacedPlan
    copies: tuple[tuple[Place, Place, int], ...]

    def queue(self, lane: Lane) -> None:
        """Queue the plan and the copies."""
        self.plan.queue()
        for source, target, nbytes in self.copies:
            lane.copy(source, target, nbytes)


class Bindings:
    """Bindings by plan, slot and places of values; made when first asked for, and kept."""

    def __init__(self, lane: Lane, planned: PlannedSteps, window: Window, arena: Block | None) -> None:
        self._lane, self._planned, self._window, self._arena = lane, planned, window, arena
        self._made: dict[tuple[object, ...], Binding] = {}

    def of(self, step: int, slot: Block, window: Block) -> Binding:
        """The plan of a step with constants in `slot` and values in `window`."""
        own = self._planned.steps[step]
        number = self._planned.plan_of[step]
        offsets = tuple(self._window.offsets[v] for v in (*own.inputs, *own.outputs))
        key = (number, slot, window, offsets)
        if key not in self._made:
            inputs = [Place(window, at) for at in offsets[: len(own.inputs)]]
            outputs = [Place(window, at) for at in offsets[len(own.inputs) :]]
            self._made[key] = self._bind(self._planned.plans[number], slot, inputs, outputs)
        return self._made[key]

    def _bind(self, step: StepPlan, slot: Block, inputs: list[Place], outputs: list[Place]) -> Binding:
        plan = step.plan
        places = {name: Place(slot, start) for name, start in step.starts.items()}
        places |= dict(zip(plan.inputs, inputs, strict=True))
        if self._arena is not None:
            places[ARENA] = Place(self._arena)
        elsewhere: list[tuple[str, Place]] = []
        for name, place in zip(plan.outputs, outputs, strict=True):
            if plan.buffer_by_name[name].kind == "output" and name not in places:
                places[name] = place
            else:
                elsewhere.append((name, place))
        copies = [
            (_region(plan, name, places), place, plan.buffer_by_name[name].nbytes)
            for name, place in elsewhere
        ]
        return Binding(self._lane.place(plan, places), tuple(copies))


def _region(plan: ExecutionPlan, name: str, places: Mapping[str, Place]) -> Place:
    """Where a result lies that is an input, a constant, or the same as another result."""
    owner, offset = plan.locate(name)
    place = places[ARENA if owner.kind == "arena" else owner.name]
    return Place(place.block, place.offset + offset + (owner.offset if owner.kind == "arena" else 0))
