"""Measured times of the parts of a streamed network on this machine: storage, copies, kernels."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.types import array_type
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.interface.queue import Allocation, Location
from tilewright.runtime.storage.gpudirect import DeviceReader
from tilewright.runtime.storage.measure import StorageBandwidth, read_for
from tilewright.runtime.storage.reader import StepReader
from tilewright.streaming.parts.schedule import StepCosts
from tilewright.streaming.parts.step_modules import ValueWindow
from tilewright.streaming.run import SlotBuffers, StreamMachine
from tilewright.streaming.store_file import PlannedSteps

#: timed replays of each plan, of which the median counts
REPLAYS = 5
#: how long the store is read to learn the rate: at least, and at most for one pass over it
READING_S, PASS_S = 1.0, 6.0
#: storage behind caches gets faster with each pass: passes are read until two differ by less than this share,
#: or there were so many
STEADY, MOST_PASSES = 0.05, 4


@dataclass(frozen=True)
class StreamCalibration:
    """Measured rates (bytes per second) and seconds.

    read_bytes_per_s: of the store, with nothing else going on; None where all weights stay on the device.
    copy_bytes_per_s: from host to device memory; None where they are one, or nothing is read.
    compute_s: of one micro-batch, per plan. move_s: values of one in and out, per step.
    """

    read_bytes_per_s: float | None
    copy_bytes_per_s: float | None
    compute_s: tuple[float, ...]
    move_s: tuple[float, ...]

    def costs(self, planned: PlannedSteps, where: str, scratch: StorageBandwidth | None) -> StepCosts:
        """Seconds per step; where values of micro-batches wait: `device`, `host` or `storage` (`scratch`).

        What a step reads of storage it waits for; what it made is written beside later work.
        """
        nbytes = [p.stored.nbytes for p in (planned.plan(k) for k in range(len(planned.steps)))]
        read, copy = self.read_bytes_per_s, self.copy_bytes_per_s
        compute = [self.compute_s[number] for number in planned.plan_of]
        move = [0.0] * len(nbytes) if where == "device" else list(self.move_s)
        if scratch is not None:
            for k, step in enumerate(planned.steps):
                move[k] += sum(v.tensor.nbytes for v in step.inputs) / scratch.read_bytes_per_s
                written_s = sum(v.tensor.nbytes for v in step.outputs) / scratch.write_bytes_per_s
                compute[k] = max(compute[k], written_s)
        return StepCosts(
            storage_s=tuple(n / read if read else 0.0 for n in nbytes),
            copy_s=tuple(n / copy if copy else 0.0 for n in nbytes),
            compute_s=tuple(compute),
            move_s=tuple(move),
        )


def calibrate(
    machine: StreamMachine,
    reader: StepReader | DeviceReader,
    planned: PlannedSteps,
    window: ValueWindow,
    allocation: Allocation,
) -> StreamCalibration:
    """Measure all parts one by one; raises `DeviceError`."""
    copies: list[tuple[int, float]] = []
    compute = [
        _compute_seconds(machine, reader, planned, number, allocation, copies)
        for number in range(len(planned.plans))
    ]
    rate: float | None = None
    if len(machine.slots) > 1:
        steps = range(len(planned.steps))
        for step in steps:
            # The first reading of a step compares checksums, which later ones do not.
            reader.read(step, machine.slots[0].buffer)
        nbytes = sum(planned.plan(step).stored.nbytes for step in steps)
        rate = _steady_rate(reader, steps, SlotBuffers(machine.slots), nbytes)
    copied_s = sum(seconds for _, seconds in copies)
    return StreamCalibration(
        read_bytes_per_s=rate,
        copy_bytes_per_s=sum(nbytes for nbytes, _ in copies) / copied_s if copied_s else None,
        compute_s=tuple(compute),
        move_s=tuple(_move_seconds(machine, planned, window, allocation)),
    )


def _steady_rate(reader: StepReader | DeviceReader, steps: range, buffers: SlotBuffers, nbytes: int) -> float:
    """Bytes per second of the store, of `nbytes` in all, as runs find it that have read it before."""
    rate = read_for(reader, steps, buffers, READING_S).read_bytes_per_s
    for _ in range(MOST_PASSES):
        before = rate
        seconds = min(PASS_S, max(READING_S, nbytes / before))
        rate = read_for(reader, steps, buffers, seconds).read_bytes_per_s
        if abs(rate / before - 1.0) < STEADY:
            break
    return rate


def _compute_seconds(
    machine: StreamMachine,
    reader: StepReader | DeviceReader,
    planned: PlannedSteps,
    number: int,
    allocation: Allocation,
    copies: list[tuple[int, float]],
) -> float:
    """Median seconds of a plan with the constants of the first step that has it; appends the copy's time."""
    queue, slot = machine.queue, machine.slots[0]
    step = planned.plan_of.index(number)
    if len(machine.slots) > 1:
        nbytes = reader.read(step, slot.buffer).nbytes
        slot.arrive(nbytes)
        copies.append((nbytes, slot.copy_seconds()))
    binding = machine.bindings.of(step, slot.allocation, allocation)
    seconds = []
    for _ in range(1 + REPLAYS):
        begin = queue.mark()
        binding.submit(queue)
        end = queue.mark()
        end.wait()
        seconds.append(end.seconds_after(begin))
    slot.leave()
    queue.finish()
    return float(np.median(seconds[1:]))


def _move_seconds(
    machine: StreamMachine, planned: PlannedSteps, window: ValueWindow, allocation: Allocation
) -> Sequence[float]:
    """Per step: seconds to bring its inputs to the device and its results to the host."""
    queue, out = machine.queue, []
    for step in planned.steps:
        arrays = [
            (
                np.zeros((t := array_type(v.tensor)).shape, DTYPES[t.dtype]),
                Location(allocation, window.offsets[v]),
            )
            for v in (*step.inputs, *step.outputs)
        ]
        began_s = time.perf_counter()
        for array, place in arrays[: len(step.inputs)]:
            queue.upload(array, place)
        for array, place in arrays[len(step.inputs) :]:
            queue.download(place, array)
        queue.finish()
        out.append(time.perf_counter() - began_s)
    return out
