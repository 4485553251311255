"""`StreamedExecutable`: a network whose weights stay on storage and pass through device memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.ir import ArrayType, InputError
from tilewright.ir.types import array_type
from tilewright.running.named_inputs import in_order
from tilewright.runtime.plan.arrays import host_array
from tilewright.runtime.plan.execution_plan import Buffer
from tilewright.runtime.storage.gpudirect import DeviceReader
from tilewright.runtime.storage.measure import StorageBandwidth, measure_storage
from tilewright.runtime.storage.reader import StepReader
from tilewright.runtime.storage.source import IoOptions
from tilewright.streaming.activations import Activations, OnDevice, OnHost, OnStorage
from tilewright.streaming.calibration import StreamCalibration, calibrate
from tilewright.streaming.device_holder import DeviceHolder, Opened
from tilewright.streaming.opening import open_queue, open_reader
from tilewright.streaming.parts.schedule import SCHEDULES, Prediction, Schedule, predict, visits
from tilewright.streaming.parts.step_modules import ValueWindow
from tilewright.streaming.run import BoundPlans, RunRecord, StreamMachine, measured, run_visits
from tilewright.streaming.step_planning import memory_of
from tilewright.streaming.store_file import PlannedSteps, StoreFolder

Array = np.ndarray


@dataclass(frozen=True)
class StreamOptions:
    """Options of the runs of a streamed network.

    cap_bytes: device memory. host_bytes: host memory for values of micro-batches that wait between steps,
    beyond which they go to storage; None: no limit. io: how the store is read. gpudirect: past the host,
    straight into the memory of a GPU, by kvikio.
    """

    cap_bytes: int
    host_bytes: int | None = None
    io: IoOptions = field(default_factory=IoOptions)
    gpudirect: bool = False


@dataclass
class _Opened(Opened):
    machine: StreamMachine
    reader: StepReader | DeviceReader


class StreamedExecutable(DeviceHolder[_Opened]):
    """Callable like an `Executable`; `run` takes several micro-batches. One run at a time.

    The first call opens the device and the store; see `DeviceHolder` for the end.
    """

    anew = "compile the network again, its weights are gone with it"

    def __init__(
        self,
        planned: PlannedSteps,
        window: ValueWindow,
        target: str,
        folder: StoreFolder,
        options: StreamOptions,
    ) -> None:
        super().__init__(target, folder)
        self.planned, self.window, self.options = planned, window, options
        self.memory = memory_of(planned, window)
        self.record: RunRecord | None = None
        self.peak_bytes = 0
        self._calibration: StreamCalibration | None = None
        self._scratch: StorageBandwidth | None = None

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in calling order."""
        return self.planned.steps[0].line.module.input_names

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each input, for one micro-batch."""
        return tuple(array_type(v.tensor) for v in self.planned.steps[0].line.parameters)

    @property
    def output_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each output, for one micro-batch."""
        return tuple(array_type(v.tensor) for v in self.planned.steps[0].line.returned)

    @property
    def device(self) -> str:
        """Name of the device that runs it."""
        with self._working():
            return self._open().queue.name

    def __call__(self, /, *inputs: object, **named: object) -> list[Array]:
        """Outputs for one micro-batch: an array per input (NumPy or DLPack in host memory), or by name."""
        return self.run([in_order(self.input_names, inputs, named)])[0]

    def run(self, batches: Sequence[Sequence[object]], schedule: str = "auto") -> list[list[Array]]:
        """The outputs of every micro-batch, in order.

        schedule: `pr` (parameter-resident: every step's weights are fetched once, all micro-batches pass
        through it), `ar` (activation-resident: every micro-batch goes through all steps) or `auto`, the one
        that the model finds faster with what it measures at its first use. Raises InputError for bad
        arguments and WorkError where device or storage fail.
        """
        with self._working():
            arrays = [self._checked(batch) for batch in batches]
            if not arrays:
                return []
            chosen = self._schedule(schedule, len(arrays))
            return self._run(self._open(), arrays, chosen)

    def _run(self, opened: _Opened, arrays: list[list[Array]], chosen: Schedule) -> list[list[Array]]:
        order = list(visits(chosen, len(self.planned.steps), len(arrays)))
        activations = self._activations(opened, arrays, chosen)
        try:
            results, self.record = run_visits(opened.machine, order, activations, len(self.planned.steps) - 1)
        finally:
            activations.close()
        self.peak_bytes = opened.queue.memory.peak_bytes
        return results

    def predict(self, batches: int = 1, schedule: str = "auto") -> Prediction:
        """Predict the time of a run by the model; storage, copies and steps are measured at the first use."""
        if type(batches) is not int or batches < 1:
            raise InputError(f"expected a positive number of micro-batches, got {batches!r}")
        with self._working():
            return self._predicted(self._schedule(schedule, batches), batches)

    def _predicted(self, schedule: Schedule, batches: int) -> Prediction:
        opened = self._open()
        if self._calibration is None:
            self._calibration = calibrate(
                opened.machine, opened.reader, self.planned, self.window, opened.windows[0]
            )
        order = list(visits(schedule, len(self.planned.steps), batches))
        where = self.where_values_wait(schedule, batches)
        if where == "storage" and self._scratch is None:
            self._scratch = measure_storage(self._folder.path, self.options.io)
        scratch = self._scratch if where == "storage" else None
        costs = self._calibration.costs(self.planned, where, scratch)
        staged = opened.queue.behind == 0
        return predict(schedule, order, batches, costs, staged=staged)

    def _schedule(self, name: str, batches: int) -> Schedule:
        if name not in ("auto", *SCHEDULES, *SCHEDULES.values()):
            raise InputError(f"expected a schedule among auto, pr and ar, got {name!r}")
        if len(self.planned.steps) == 1:
            return "activation-resident"  # with all parameters resident as well
        if name != "auto":
            return SCHEDULES["ar" if name in ("ar", SCHEDULES["ar"]) else "pr"]
        if batches == 1:
            return "parameter-resident"
        both = [self._predicted(schedule, batches) for schedule in SCHEDULES.values()]
        return min(both, key=lambda p: p.total_s).schedule

    def where_values_wait(self, schedule: Schedule, batches: int) -> str:
        """The place of values of so many micro-batches between steps: `device`, `host` or `storage`."""
        if schedule == "activation-resident" or batches == 1:
            return "device"
        memory = self.memory
        if memory.device_bytes + (batches - 1) * memory.window_bytes <= self.options.cap_bytes:
            return "device"
        limit = self.options.host_bytes
        return "host" if limit is None or batches * memory.window_bytes <= limit else "storage"

    def _activations(self, opened: _Opened, arrays: list[list[Array]], schedule: Schedule) -> Activations:
        where = self.where_values_wait(schedule, len(arrays))
        steps, windows, queue = self.planned.steps, opened.windows, opened.queue
        if where == "host":
            return OnHost(queue, self.window, steps, windows[0], arrays)
        if where == "storage":
            return OnStorage(queue, self.window, steps, windows[0], arrays, str(self._folder.path))
        needed = 1 if schedule == "activation-resident" else len(arrays)
        while len(windows) < needed:
            windows.append(queue.allocate(self.memory.window_bytes, "values between steps"))
        return OnDevice(queue, self.window, steps, windows[:needed], arrays)

    def _checked(self, batch: Sequence[object]) -> list[Array]:
        names, types = self.input_names, self.input_types
        arrays = batch if isinstance(batch, list | tuple) else (batch,)
        if len(arrays) != len(names):
            raise InputError(f"expected {len(names)} inputs ({', '.join(names)}), got {len(arrays)}")
        buffers = (Buffer(n, t.dtype, t.shape, "input", 0) for n, t in zip(names, types, strict=True))
        return [host_array(value, buffer, "input") for value, buffer in zip(arrays, buffers, strict=True)]

    def _opening(self) -> _Opened:
        memory = self.memory
        with ExitStack() as stack:
            queue = open_queue(self.target, self.options.cap_bytes, direct=self.options.gpudirect)
            stack.callback(queue.close)
            reader = open_reader(self._folder.store, self.options.io, queue)
            stack.callback(reader.close)
            slots = [queue.new_slot(memory.slot_bytes, f"slot {i} for weights") for i in range(memory.slots)]
            arena = queue.allocate(memory.arena_bytes, "the arena") if memory.arena_bytes else None
            window = queue.allocate(memory.window_bytes, "values between steps")
            bindings = BoundPlans(queue, self.planned, self.window, arena)
            machine = StreamMachine(queue, slots, bindings, reader)
            if len(slots) == 1:
                slots[0].arrive(reader.read(0, slots[0].buffer).nbytes)
            return _Opened([window], queue, stack.pop_all(), machine, reader)

    def report(self) -> dict[str, Any]:
        """Plain data: steps and plans, and memory against the cap.

        Rates of storage, copies and steps only after they were measured, times only after a run.
        """
        with self._lock:
            memory, planned, calibration = self.memory, self.planned, self._calibration
            stored = [planned.plan(k).stored.nbytes for k in range(len(planned.steps))]
            out: dict[str, Any] = {
                "target": self.target,
                "memory_cap_bytes": self.options.cap_bytes,
                "device_bytes": memory.device_bytes,
                "device_bytes_peak": self.peak_bytes,
                "slots": memory.slots,
                "slot_bytes": memory.slot_bytes,
                "arena_bytes": memory.arena_bytes,
                "window_bytes": memory.window_bytes,
                "weight_bytes": sum(stored),
                "steps": len(planned.steps),
                "plans": len(planned.plans),
                "launches_per_step": [len(planned.plan(k).plan.launches) for k in range(len(planned.steps))],
                "step_bytes": stored,
            }
            if calibration is not None:
                out["storage_bytes_per_s"] = calibration.read_bytes_per_s
                out["copy_bytes_per_s"] = calibration.copy_bytes_per_s
                out["compute_s_per_plan"] = list(calibration.compute_s)
            if self.record is not None:
                out["last_run"] = measured(self.record)
            return out
