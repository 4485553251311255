"""One streamed run: reads of the next step go on while a step computes; times of every part are kept."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.placed import Lane, Mark, Slot
from tilewright.runtime.storage.buffers import HostBuffer
from tilewright.runtime.storage.overlap import OverlapFacts
from tilewright.runtime.storage.prefetch import LoadedStep, Prefetcher
from tilewright.runtime.storage.source import StepSource
from tilewright.streaming.activations import Activations
from tilewright.streaming.bindings import Bindings
from tilewright.streaming.schedule import Visit


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
class Machine:
    """What a run works with: the lane and its slots, plans on their places, the store."""

    lane: Lane
    slots: Sequence[Slot]
    bindings: Bindings
    source: StepSource


def run_visits(
    machine: Machine, order: Sequence[Visit], activations: Activations, last_step: int
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
        machine.lane.finish()
    except BaseException:
        # What failed is the news; that what was queued before may fail as well is not.
        with suppress(DeviceError):
            machine.lane.finish()
        raise
    record.total_s = time.perf_counter() - began_s
    return results, record


def _resident(
    machine: Machine, order: Sequence[Visit], activations: Activations, record: RunRecord
) -> list[list[np.ndarray]]:
    results: list[list[np.ndarray]] = []
    marks: list[tuple[Mark, Mark]] = []
    for visit in order:
        marks.append(_compute(machine, visit, machine.slots[0], activations))
        results += [activations.results(batch) for batch in visit.batches]
    machine.lane.finish()
    record.compute_s = [end.seconds_after(begin) for begin, end in marks]
    return results


def _streamed(
    machine: Machine, order: Sequence[Visit], activations: Activations, record: RunRecord, last_step: int
) -> list[list[np.ndarray]]:
    results: list[list[np.ndarray]] = []
    marks: list[tuple[Mark, Mark]] = []
    slot_of = {slot.buffer.address: slot for slot in machine.slots}
    held: deque[tuple[Slot, LoadedStep]] = deque()
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
            held.append((slot, loaded))
            while len(held) > machine.lane.behind:
                record.copy_s.append(_let_go(*held.popleft()))
            if visit.step == last_step:
                results += [activations.results(batch) for batch in visit.batches]
        record.copy_s += [_let_go(*pair) for pair in held]
        machine.lane.finish()
        record.compute_s = [end.seconds_after(begin) for begin, end in marks]
        record.storage = prefetcher.overlap()
    return results


def _compute(machine: Machine, visit: Visit, slot: Slot, activations: Activations) -> tuple[Mark, Mark]:
    """Queue the step for every micro-batch of the visit; marks around them."""
    begin = machine.lane.mark()
    for batch in visit.batches:
        window = activations.fetch(visit.step, batch)
        machine.bindings.of(visit.step, slot.block, window).queue(machine.lane)
        activations.keep(visit.step, batch)
    return begin, machine.lane.mark()


def _let_go(slot: Slot, loaded: LoadedStep) -> float:
    """Let the next step be read into the slot's buffer, when it is free; seconds of the copy out of it."""
    slot.wait_reusable()
    seconds = slot.copy_seconds()
    loaded.release()
    return seconds
