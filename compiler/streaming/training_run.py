"""One group of micro-batches of a streamed training step: state is read ahead, used, and written back.

Every slot has a thread of its own, which writes back what one visit changed and then reads for the next visit
of the slot; so storage works on one slot while kernels work on the other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.queue import (
    ARENA,
    Allocation,
    DeviceQueue,
    Location,
    SharedSlot,
    Slot,
)
from tilewright.runtime.storage.buffers import HostBuffer
from tilewright.runtime.storage.generations import GenerationStore
from tilewright.runtime.storage.reader import StepReader
from tilewright.streaming.activations import Activations
from tilewright.streaming.parts.step_modules import ValueWindow
from tilewright.streaming.parts.training_parts import Part
from tilewright.streaming.parts.training_visits import SlotLayout, TrainingVisit, Work
from tilewright.streaming.run import BoundPlan, region_of
from tilewright.streaming.step_plans import StepPlan


class BatchValues:
    """Values of micro-batches between parts, by form, and the results of those that are done.

    numbers: of a micro-batch among those of its form. last: the last part of a form. windows: by form.
    """

    def __init__(
        self,
        held: Mapping[int, Activations],
        numbers: Sequence[int],
        last: Mapping[int, int],
        windows: Mapping[int, ValueWindow],
    ) -> None:
        self.windows = windows
        self.results: dict[int, list[np.ndarray]] = {}
        self._held, self._numbers, self._last = held, numbers, last

    def fetch(self, work: Work) -> Allocation:
        """The window in which a part finds what it reads."""
        return self._held[work.form].fetch(work.part, self._numbers[work.batch])

    def keep(self, work: Work) -> None:
        """The part is queued: take what later parts read, or the results."""
        held, number = self._held[work.form], self._numbers[work.batch]
        held.keep(work.part, number)
        if work.part == self._last[work.form]:
            self.results[work.batch] = held.results(number)


class BoundParts:
    """Plans of parts on their places; made when first asked for, and kept."""

    def __init__(self, queue: DeviceQueue, arena: Allocation | None) -> None:
        self._queue, self._arena = queue, arena
        self._made: dict[tuple[object, ...], BoundPlan] = {}

    def of(
        self,
        part: Part,
        plan: StepPlan,
        slot: Allocation,
        starts: Mapping[str, int],
        constants: int,
        window: ValueWindow,
        allocation: Allocation,
    ) -> BoundPlan:
        """A part with state at `starts` of a slot, constants from byte `constants` on, values in a window."""
        states = {f"s{i}": starts[name] for i, name in enumerate(part.states)}
        offsets = tuple(window.offsets[v] for v in (*part.inputs, *part.outputs))
        key = (id(plan), slot, tuple(states.values()), constants, offsets, allocation)
        if key not in self._made:
            self._made[key] = self._bind(part, plan, slot, states, constants, offsets, allocation)
        return self._made[key]

    def _bind(
        self,
        part: Part,
        step: StepPlan,
        slot: Allocation,
        states: Mapping[str, int],
        constants: int,
        offsets: Sequence[int],
        window: Allocation,
    ) -> BoundPlan:
        plan = step.plan
        places = {name: Location(slot, constants + start) for name, start in step.starts.items()}
        places |= {b.name: Location(slot, states[b.title]) for b in plan.states}
        values = [Location(window, at) for at in offsets]
        places |= dict(zip(plan.inputs, values[: len(part.inputs)], strict=True))
        if self._arena is not None:
            places[ARENA] = Location(self._arena)
        elsewhere: list[tuple[str, Location]] = []
        for name, place in zip(plan.outputs, values[len(part.inputs) :], strict=True):
            if plan.buffer_by_name[name].kind == "output" and name not in places:
                places[name] = place
            else:
                elsewhere.append((name, place))
        copies = tuple((region_of(plan, n, places), p, plan.buffer_by_name[n].nbytes) for n, p in elsewhere)
        return BoundPlan(self._queue.place(plan, places), copies)


@dataclass
class GroupRecord:
    """Seconds of one group. read_s, write_s: in which storage read or wrote for a slot, summed over visits;
    compute_s: kernels and values moved; wait_s: in which kernels waited for storage; commit_s: the record;
    copy_s: between host and device."""

    total_s: float = 0.0
    read_s: float = 0.0
    write_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    commit_s: float = 0.0
    copy_s: float = 0.0
    read_bytes: int = 0
    write_bytes: int = 0
    visits: int = 0
    #: a trace of what storage and kernels did: (kind, visit, begin, end), seconds since the beginning
    trace: list[tuple[str, int, float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class TrainingMachine:
    """What a group works with. part, plan, constants_of: by form and number."""

    queue: DeviceQueue
    slots: Sequence[Slot]
    bound: BoundParts
    store: GenerationStore
    constants: StepReader
    part: Callable[[int, int], Part]
    plan: Callable[[int, int], StepPlan]
    constants_of: Mapping[tuple[int, int], int]

    def fetch(self, visit: TrainingVisit, layout: SlotLayout, buffer: HostBuffer) -> int:
        """Fill a slot's buffer for a visit; bytes that came from storage."""
        for name in visit.cleared:
            begin = layout.starts[name]
            np.frombuffer(buffer.view, np.uint8)[begin : begin + self.store.tensors[name].nbytes] = 0
        nbytes = self.store.read([(n, layout.starts[n]) for n in visit.arriving], buffer)
        for key, begin in layout.constants.items():
            number = self.constants_of[key]
            size = self.constants.layout.steps[number].nbytes
            if size:
                part = HostBuffer(
                    buffer.address + begin, size, buffer.view[begin : begin + size], buffer.owner
                )
                nbytes += self.constants.read(number, part).nbytes
        return nbytes

    def bring_back(self, visit: TrainingVisit, layout: SlotLayout, slot: Slot) -> int:
        """Copy what a visit changed from the device to the slot's buffer; bytes."""
        buffer = np.frombuffer(slot.buffer.view, np.uint8)
        for name in visit.leaving:
            begin, size = layout.starts[name], self.store.tensors[name].nbytes
            self.queue.download(Location(slot.allocation, begin), buffer[begin : begin + size])
        return sum(self.store.tensors[name].nbytes for name in visit.leaving)

    def keep(self, visit: TrainingVisit, layout: SlotLayout, buffer: HostBuffer) -> int:
        """Write back what a visit changed; bytes."""
        return self.store.write([(n, layout.starts[n]) for n in visit.leaving], buffer)

    def compute(self, visit: TrainingVisit, layout: SlotLayout, slot: Slot, values: BatchValues) -> None:
        """Queue the parts of a visit, whose state is in the slot."""
        for w in visit.work:
            part, plan = self.part(w.form, w.part), self.plan(w.form, w.part)
            window, constants = values.windows[w.form], layout.constants[w.form, w.part]
            place = values.fetch(w)
            bound = self.bound.of(part, plan, slot.allocation, layout.starts, constants, window, place)
            bound.submit(self.queue)
            values.keep(w)


def run_group(
    machine: TrainingMachine,
    visits: Sequence[TrainingVisit],
    layouts: Sequence[SlotLayout],
    values: BatchValues,
    commit: Callable[[], None],
) -> GroupRecord:
    """All visits in order, then `commit`. Raises `DeviceError`, of storage as well; then nothing counts."""
    return _Group(machine, visits, layouts, values).run(commit)


class _Group:
    def __init__(
        self,
        machine: TrainingMachine,
        visits: Sequence[TrainingVisit],
        layouts: Sequence[SlotLayout],
        values: BatchValues,
    ) -> None:
        self.machine, self.visits, self.layouts, self.values = machine, visits, layouts, values
        self.record = GroupRecord(visits=len(visits))
        self.written = [threading.Event() for _ in visits]
        self.stopped = False
        self.began_s = 0.0
        self.lock = threading.Lock()

    def run(self, commit: Callable[[], None]) -> GroupRecord:
        machine, count = self.machine, len(self.machine.slots)
        lanes = [ThreadPoolExecutor(1, f"tilewright-slot{i}") for i in range(count)]
        self.began_s = time.perf_counter()
        ready: dict[int, Future[None]] = {}
        behind: list[Future[None]] = []
        try:
            for i in range(min(count, len(self.visits))):
                ready[i] = lanes[i].submit(self.read, i)
            for i in range(len(self.visits)):
                asked_s = time.perf_counter()
                ready.pop(i).result()
                self.record.wait_s += time.perf_counter() - asked_s
                self.work(i)
                lane = lanes[i % count]
                behind.append(lane.submit(self.write, i))
                if i + count < len(self.visits):
                    ready[i + count] = lane.submit(self.read, i + count)
            asked_s = time.perf_counter()
            for future in behind:
                future.result()
            machine.queue.finish()
            self.record.wait_s += time.perf_counter() - asked_s
            asked_s = time.perf_counter()
            commit()
            self.record.commit_s = time.perf_counter() - asked_s
        except BaseException:
            self.stopped = True
            for event in self.written:
                event.set()
            for lane in lanes:
                lane.shutdown(cancel_futures=True)
            with suppress(DeviceError):
                machine.queue.finish()
            machine.store.rollback()
            raise
        for lane in lanes:
            lane.shutdown()
        self.record.total_s = time.perf_counter() - self.began_s
        return self.record

    def work(self, i: int) -> None:
        machine, visit, layout = self.machine, self.visits[i], self.layouts[i]
        slot = machine.slots[i % len(machine.slots)]
        began_s = time.perf_counter()
        slot.arrive(layout.nbytes)
        machine.compute(visit, layout, slot, self.values)
        slot.leave()
        machine.queue.mark().wait()
        ended_s = time.perf_counter()
        copied_s = slot.copy_seconds()
        self.record.copy_s += copied_s
        self.record.compute_s += ended_s - began_s - copied_s
        if not isinstance(slot, SharedSlot):
            machine.bring_back(visit, layout, slot)
            self.record.copy_s += time.perf_counter() - ended_s
        self.note("compute", i, began_s, ended_s)

    def read(self, i: int) -> None:
        """In a slot's thread."""
        for j in self.visits[i].after:
            self.written[j].wait()
        if self.stopped:
            return
        began_s = time.perf_counter()
        slot = self.machine.slots[i % len(self.machine.slots)]
        nbytes = self.machine.fetch(self.visits[i], self.layouts[i], slot.buffer)
        self.count("read", i, nbytes, began_s)

    def write(self, i: int) -> None:
        """In a slot's thread."""
        try:
            if self.stopped or not self.visits[i].leaving:
                return
            began_s = time.perf_counter()
            slot = self.machine.slots[i % len(self.machine.slots)]
            nbytes = self.machine.keep(self.visits[i], self.layouts[i], slot.buffer)
            self.count("write", i, nbytes, began_s)
        finally:
            self.written[i].set()

    def count(self, kind: str, i: int, nbytes: int, began_s: float) -> None:
        ended_s = time.perf_counter()
        with self.lock:
            record = self.record
            if kind == "read":
                record.read_s += ended_s - began_s
                record.read_bytes += nbytes
            else:
                record.write_s += ended_s - began_s
                record.write_bytes += nbytes
        self.note(kind, i, began_s, ended_s)

    def note(self, kind: str, i: int, began_s: float, ended_s: float) -> None:
        with self.lock:
            self.record.trace.append((kind, i, began_s - self.began_s, ended_s - self.began_s))
