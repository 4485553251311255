"""One streamed run: reads of the next step go on while a step computes; times of every part are kept.

Plans of steps are bound to places: a slot with constants, a window with values, the arena that all share.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.queue import (
    ARENA,
    Allocation,
    DeviceQueue,
    Location,
    Mark,
    PlacedPlan,
    Slot,
)
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.storage.buffers import HostBuffer
from tilewright.runtime.storage.prefetch import LoadedStep, OverlapFacts, Prefetcher
from tilewright.runtime.storage.source import StepSource
from tilewright.streaming.activations import Activations
from tilewright.streaming.parts.schedule import Prediction, Visit
from tilewright.streaming.parts.step_modules import ValueWindow
from tilewright.streaming.step_plans import StepPlan
from tilewright.streaming.store_file import PlannedSteps


@dataclass(frozen=True)
class BoundPlan:
    """A plan on its places, and the results that no launch writes where they belong: they are copied."""

    plan: PlacedPlan
    copies: tuple[tuple[Location, Location, int], ...]

    def submit(self, queue: DeviceQueue) -> None:
        """Queue the plan and the copies."""
        self.plan.submit()
        for source, target, nbytes in self.copies:
            queue.copy(source, target, nbytes)


class BoundPlans:
    """BoundPlans by plan, slot and places of values; made when first asked for, and kept."""

    def __init__(
        self, queue: DeviceQueue, planned: PlannedSteps, window: ValueWindow, arena: Allocation | None
    ) -> None:
        self._queue, self._planned, self._window, self._arena = queue, planned, window, arena
        self._made: dict[tuple[object, ...], BoundPlan] = {}

    def of(self, step: int, slot: Allocation, window: Allocation) -> BoundPlan:
        """The plan of a step with constants in `slot` and values in `window`."""
        own = self._planned.steps[step]
        number = self._planned.plan_of[step]
        offsets = tuple(self._window.offsets[v] for v in (*own.inputs, *own.outputs))
        key = (number, slot, window, offsets)
        if key not in self._made:
            inputs = [Location(window, at) for at in offsets[: len(own.inputs)]]
            outputs = [Location(window, at) for at in offsets[len(own.inputs) :]]
            self._made[key] = self._bind(self._planned.plans[number], slot, inputs, outputs)
        return self._made[key]

    def _bind(
        self, step: StepPlan, slot: Allocation, inputs: list[Location], outputs: list[Location]
    ) -> BoundPlan:
        plan = step.plan
        places = {name: Location(slot, start) for name, start in step.starts.items()}
        places |= dict(zip(plan.inputs, inputs, strict=True))
        if self._arena is not None:
            places[ARENA] = Location(self._arena)
        elsewhere: list[tuple[str, Location]] = []
        for name, place in zip(plan.outputs, outputs, strict=True):
            if plan.buffer_by_name[name].kind == "output" and name not in places:
                places[name] = place
            else:
                elsewhere.append((name, place))
        copies = [
            (region_of(plan, name, places), place, plan.buffer_by_name[name].nbytes)
            for name, place in elsewhere
        ]
        return BoundPlan(self._queue.place(plan, places), tuple(copies))


def region_of(plan: ExecutionPlan, name: str, places: Mapping[str, Location]) -> Location:
    """Return the place of a result that is an input, a constant, or the same as another result."""
    owner, offset = plan.locate(name)
    place = places[ARENA if owner.kind == "arena" else owner.name]
    return Location(place.allocation, place.offset + offset + (owner.offset if owner.kind == "arena" else 0))


class SlotBuffers:
    """The host side of the slots, handed to a prefetcher as its buffers; they outlive it."""

    pinned = False

    def __init__(self, slots: Sequence[Slot]) -> None:
        self._free = [slot.buffer for slot in slots]

    def allocate(self, nbytes: int) -> HostBuffer:
        """The next slot's buffer."""
        buffer = self._free.pop(0)
        assert buffer.nbytes >= nbytes
        return buffer

    def free(self, buffer: HostBuffer) -> None:
        """The slot can be handed out again."""
        self._free.append(buffer)


@dataclass
class RunRecord:
    """Seconds of one run.

    total_s: from the first read to the last result, on the host's clock. compute_s: per visit, on the
    device's. copy_s: per visit, from host to device memory. storage: of the reads; None where none were made.
    """

    total_s: float = 0.0
    compute_s: list[float] = field(default_factory=list)
    copy_s: list[float] = field(default_factory=list)
    storage: OverlapFacts | None = None

    @property
    def read_bytes(self) -> int:
        """Bytes that came from storage."""
        return self.storage.nbytes if self.storage is not None else 0


@dataclass
class StreamMachine:
    """The parts that a run works with: the queue and its slots, plans on their places, the store."""

    queue: DeviceQueue
    slots: Sequence[Slot]
    bindings: BoundPlans
    source: StepSource


def run_visits(
    machine: StreamMachine, order: Sequence[Visit], activations: Activations, last_step: int
) -> tuple[list[list[np.ndarray]], RunRecord]:
    """Results per micro-batch, in order, and times.

    One slot: its step is there already, and nothing is read. Raises `DeviceError` (of storage as well); then
    nothing uses the slots any more.
    """
    record = RunRecord()
    began_s = time.perf_counter()
    try:
        if len(machine.slots) == 1:
            results = _resident(machine, order, activations, record)
        else:
            results = _streamed(machine, order, activations, record, last_step)
        machine.queue.finish()
    except BaseException:
        # What failed is the news; that what was queued before may fail as well is not.
        with suppress(DeviceError):
            machine.queue.finish()
        raise
    record.total_s = time.perf_counter() - began_s
    return results, record


def _resident(
    machine: StreamMachine, order: Sequence[Visit], activations: Activations, record: RunRecord
) -> list[list[np.ndarray]]:
    results: list[list[np.ndarray]] = []
    marks: list[tuple[Mark, Mark]] = []
    for visit in order:
        marks.append(_compute(machine, visit, machine.slots[0], activations))
        results += [activations.results(batch) for batch in visit.batches]
    machine.queue.finish()
    record.compute_s = [end.seconds_after(begin) for begin, end in marks]
    return results


def _streamed(
    machine: StreamMachine,
    order: Sequence[Visit],
    activations: Activations,
    record: RunRecord,
    last_step: int,
) -> list[list[np.ndarray]]:
    results: list[list[np.ndarray]] = []
    marks: list[tuple[Mark, Mark]] = []
    slot_of = {slot.buffer.address: slot for slot in machine.slots}
    in_use: deque[tuple[Slot, LoadedStep]] = deque()
    steps = (visit.step for visit in order)
    allocator = SlotBuffers(machine.slots)
    with Prefetcher(machine.source, steps, allocator, len(machine.slots)) as prefetcher:
        for visit in order:
            loaded = prefetcher.take()
            assert loaded is not None
            slot = slot_of[loaded.buffer.address]
            slot.arrive(loaded.stored.nbytes)
            marks.append(_compute(machine, visit, slot, activations))
            slot.leave()
            in_use.append((slot, loaded))
            while len(in_use) > machine.queue.behind:
                record.copy_s.append(_let_go(*in_use.popleft()))
            if visit.step == last_step:
                results += [activations.results(batch) for batch in visit.batches]
        record.copy_s += [_let_go(*pair) for pair in in_use]
        machine.queue.finish()
        record.compute_s = [end.seconds_after(begin) for begin, end in marks]
        record.storage = prefetcher.overlap()
    return results


def _compute(machine: StreamMachine, visit: Visit, slot: Slot, activations: Activations) -> tuple[Mark, Mark]:
    """Queue the step for every micro-batch of the visit; marks around them."""
    begin = machine.queue.mark()
    for batch in visit.batches:
        window = activations.fetch(visit.step, batch)
        machine.bindings.of(visit.step, slot.allocation, window).submit(machine.queue)
        activations.keep(visit.step, batch)
    return begin, machine.queue.mark()


def _let_go(slot: Slot, loaded: LoadedStep) -> float:
    """Let the next step be read into the slot's buffer, when it is free; seconds of the copy out of it."""
    slot.wait_reusable()
    seconds = slot.copy_seconds()
    loaded.release()
    return seconds


def measured(record: RunRecord) -> dict[str, Any]:
    """Seconds of a run and of its parts."""
    storage = record.storage
    return {
        "total_s": record.total_s,
        "storage_s": storage.busy_s if storage else 0.0,
        "storage_wait_s": storage.waited_s if storage else 0.0,
        "copy_s": sum(record.copy_s),
        "compute_s": sum(record.compute_s),
        "read_bytes": record.read_bytes,
    }


def compared(record: RunRecord, prediction: Prediction) -> dict[str, Any]:
    """A run against the model, per part.

    overlap: the share of the rate of the slowest part (alone, as the calibration measured it) that the run
    reached. relative_error: of the predicted total.
    """
    seconds = measured(record)
    parts = {
        name: {"predicted_s": getattr(prediction, name), "measured_s": seconds[name]}
        for name in ("total_s", "storage_s", "copy_s", "compute_s")
    }
    total = record.total_s
    return {
        "schedule": prediction.schedule,
        "micro_batches": prediction.batches,
        **{name.removesuffix("_s"): part for name, part in parts.items()},
        "relative_error": prediction.total_s / total - 1 if total else 0.0,
        "overlap": prediction.slower_s / total if total else 0.0,
        "read_bytes": seconds["read_bytes"],
    }
