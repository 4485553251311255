"""`StreamedStep`: a training step whose state lies on storage and passes through device memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tilewright.ir import ArrayType, InputError, UnsupportedError
from tilewright.ir.types import array_type
from tilewright.running.named_inputs import in_order
from tilewright.running.state import HoldsState
from tilewright.running.step_rules import REFUSED, StepRules, training_facts
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.interface.queue import Allocation, DeviceQueue, Location, SharedSlot
from tilewright.runtime.plan.arrays import host_array
from tilewright.runtime.plan.execution_plan import Buffer
from tilewright.runtime.storage.generations import GenerationStore
from tilewright.runtime.storage.reader import StepReader
from tilewright.streaming.activations import Activations, OnDevice, OnHost, OnStorage
from tilewright.streaming.device_holder import DeviceHolder, Opened
from tilewright.streaming.executable import StreamOptions
from tilewright.streaming.opening import open_queue
from tilewright.streaming.parts.schedule import SCHEDULES, Schedule
from tilewright.streaming.parts.training_model import TrainingPrediction, VisitCosts, predict_group
from tilewright.streaming.parts.training_visits import SlotLayout, TrainingVisit
from tilewright.streaming.store_file import StoreFolder
from tilewright.streaming.training_planning import PlannedTraining
from tilewright.streaming.training_run import (
    BatchValues,
    BoundParts,
    GroupRecord,
    TrainingMachine,
    run_group,
)

Array = np.ndarray
#: timed replays of a plan, of which the median counts; seconds for which storage is read and written to learn
#: its rates
REPLAYS, RATE_S = 5, 1.0


class StateOnStorage:
    """The state of a streamed step as `HoldsState` knows it: tensors of a store, host state in its record."""

    def __init__(self, store: GenerationStore, buffers: Mapping[str, Buffer], host: Sequence[str]) -> None:
        self.store, self.buffers, self._host = store, buffers, frozenset(host)

    def read(self, name: str) -> Array:
        """A copy of one array as of the last finished step."""
        self._require(name)
        if name in self._host:
            return np.array(self.store.host[name], copy=True)
        if self.store.tensors[name].scratch:
            buffer = self.buffers[name]
            return np.zeros(buffer.shape, DTYPES[buffer.dtype])
        return self.store.tensor(name)

    def write(self, name: str, value: object) -> None:
        """Replace one array, at once and for good; raises InputError for anything that does not fit."""
        self._require(name)
        self._put({name: value})

    def write_all(self, values: Mapping[str, object]) -> None:
        """Replace everything; raises InputError, and changes nothing, where one array does not fit."""
        self._put(values)

    def _put(self, values: Mapping[str, object]) -> None:
        arrays = {n: host_array(v, self.buffers[n], "state") for n, v in values.items()}
        for name, array in arrays.items():
            if name not in self._host and self.store.tensors[name].scratch and np.any(array):
                raise InputError(
                    f"expected state between two updates, '{name}' holds a part of a sum of gradients"
                )
        host = {**self.store.host}
        try:
            for name, array in arrays.items():
                if name in self._host:
                    host[name] = np.array(array, copy=True)
                elif not self.store.tensors[name].scratch:
                    self.store.put(name, array)
            self.store.commit(host)
        except BaseException:
            self.store.rollback()
            raise

    def _require(self, name: str) -> None:
        if name not in self.buffers:
            raise InputError(f"unknown state {name!r:.100}; there is {', '.join(self.buffers) or 'none'}")


@dataclass
class _Opened(Opened):
    machine: TrainingMachine


@dataclass(frozen=True)
class _Calibration:
    read_bytes_per_s: float
    write_bytes_per_s: float
    commit_s: float
    compute_s: tuple[float, ...]  # per plan
    arrival_bytes_per_s: float  # from the buffer of a slot to the device; infinite where they are one
    return_bytes_per_s: float
    move_s: Mapping[tuple[int, int], float]  # per form and part


class StreamedStep(DeviceHolder[_Opened], HoldsState):
    """A training step whose weights and optimizer state lie on storage. One call at a time.

    `step` takes `micro_batches` batches of the step's shape, joined along their first dimension, and does as
    many runs of the step: forward and backward for each, and one update. When it returns, the new state is on
    storage; a process that ends before leaves the state of the last call that returned.
    """

    anew = "compile the step again, with resume=True"

    def __init__(
        self,
        planned: PlannedTraining,
        target: str,
        folder: StoreFolder,
        store: GenerationStore,
        options: StreamOptions,
        schedule: str,
    ) -> None:
        super().__init__(target, folder)
        self.planned, self.options, self.schedule = planned, options, schedule
        self.record: GroupRecord | None = None
        self.peak_bytes = 0
        self._generations = store
        module = planned.cut.module
        params = module.main.params
        updated = [params[i] for i, _ in module.main.updates]
        buffers = {
            p.hint: Buffer(p.hint, (t := array_type(p.tensor)).dtype, t.shape, "state", 0) for p in updated
        }
        self._store: Any = StateOnStorage(store, buffers, planned.cut.host.names)
        own = set(updated)
        self._inputs = tuple(p for p in params if p not in own)
        self._rules = StepRules.of(training_facts(module), self.input_names)
        self._calibration: _Calibration | None = None
        self._borrowers: list[StreamedStep] = []
        #: plans the network that the step trains, for `inference`
        self.network: Callable[[], tuple[PlannedTraining, StoreFolder]] | None = None

    # -- interface -------------------------------------------------------------------------------------------
    @property
    def micro_batches(self) -> int:
        """The number of batches of the step's shape that one call takes."""
        return len(self.planned.form_of)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in calling order."""
        return tuple(p.hint for p in self._inputs)

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each input, of one micro-batch."""
        return tuple(array_type(p.tensor) for p in self._inputs)

    def step(self, /, *inputs: object, **named: object) -> Any:
        """One update; the loss, or a tuple of the results where there are several.

        An input has `micro_batches` times the first extent of the step's, or the step's own shape: then every
        micro-batch gets it. Results that are one number are means over micro-batches, others are joined along
        their first dimension. A learning rate `lr` among the named ones is state. Raises InputError for bad
        inputs and WorkError where device or storage fail; the state is then as it was before.
        """
        with self._lock:
            arrays = self._ordered(self.input_names, inputs, named)
            batches = self._cut(arrays)
            runs = self.run(batches)
            results = tuple(_joined([run[k] for run in runs]) for k in range(len(runs[0])))
            return results[0] if len(results) == 1 else results

    def __call__(self, /, *inputs: object, **named: object) -> list[Array]:
        """The results of `step` as a list."""
        results = self.step(*inputs, **named)
        return list(results) if isinstance(results, tuple) else [results]

    def run(self, batches: Sequence[Sequence[object]], schedule: str | None = None) -> list[list[Array]]:
        """One update with these micro-batches; the results of each."""
        with self._working():
            if len(batches) != self.micro_batches:
                raise InputError(f"expected {self.micro_batches} micro-batches, got {len(batches)}")
            arrays = [self._checked(batch) for batch in batches]
            host, states = dict(self._generations.host), list[Mapping[str, Array]]()
            forms = []
            for _ in batches:
                states.append(host)
                host, form = self.planned.cut.host.after(host)
                forms.append(self.planned.cut.forms.get(form))
            if tuple(forms) != self.planned.form_of:
                raise InputError(
                    "expected the state to be between two updates, where sums of gradients begin: "
                    f"its counters are {', '.join(f'{n} = {self._generations.host[n]}' for n in host)}"
                )
            chosen = self._chosen(schedule or self.schedule)
            return self._run(self._open(), arrays, states, host, chosen)

    def predict(self, schedule: str | None = None) -> TrainingPrediction:
        """Predict the seconds of a call by the model; rates and plans are measured at the first use."""
        with self._working():
            return self._predicted(self._chosen(schedule or self.schedule))

    def compare(self, schedule: str | None = None) -> dict[str, Any]:
        """The last call against the model, per component."""
        if self.record is None:
            raise InputError("expected a call of step before its times are compared")
        record, predicted = self.record, self.predict(schedule)
        names = ("total", "read", "write", "copy", "compute", "wait", "commit")
        return {
            "schedule": predicted.schedule,
            "micro_batches": self.micro_batches,
            **{
                n: {"predicted_s": getattr(predicted, f"{n}_s"), "measured_s": getattr(record, f"{n}_s")}
                for n in names
            },
            "relative_error": predicted.total_s / record.total_s - 1.0,
            "read_bytes": record.read_bytes,
            "write_bytes": record.write_bytes,
        }

    def report(self) -> dict[str, Any]:
        """Plain data: layers, plans, and memory against the cap; times only after a call."""
        planned, memory = self.planned, self.planned.memory
        out: dict[str, Any] = {
            "target": self.target,
            "memory_cap_bytes": self.options.cap_bytes,
            "device_bytes": memory.device_bytes,
            "device_bytes_peak": self.peak_bytes,
            **asdict(memory),
            "layers": planned.cut.layers,
            "parts": [len(form.parts) for form in planned.cut.parts],
            "plans": len(planned.plans),
            "micro_batches": self.micro_batches,
            "schedules": [short for short, s in SCHEDULES.items() if s in planned.visits],
            "state_bytes": sum(t.spec.nbytes for t in planned.cut.tensors if not t.scratch),
            "steps_kept": self._generations.number,
            "direct": self._generations.direct,
        }
        if self._calibration is not None:
            out["storage_read_bytes_per_s"] = self._calibration.read_bytes_per_s
            out["storage_write_bytes_per_s"] = self._calibration.write_bytes_per_s
        if self.record is not None:
            out["last_step"] = {k: v for k, v in asdict(self.record).items() if k != "trace"}
        return out

    def inference(self) -> StreamedNetwork:
        """The network that this step trains, over the same weights on storage and under the same cap.

        It reads what the last finished step left, and is compiled at each call. Both take the device in turn.
        Raises UnsupportedError where this is no training step.
        """
        if self.network is None:
            raise UnsupportedError("expected a training step, whose module has a function @inference")
        return StreamedNetwork(self, *self.network())

    def share_state(self, other: Any) -> None:
        """Refused: the state belongs to the store."""
        raise InputError(
            "expected executables without a memory cap to share their state, this one is streamed"
        )

    # -- inside ----------------------------------------------------------------------------------------------
    def _cut(self, arrays: Sequence[object]) -> list[list[object]]:
        count = self.micro_batches
        out: list[list[object]] = [[] for _ in range(count)]
        for name, kind, value in zip(self.input_names, self.input_types, arrays, strict=False):
            shape = tuple(kind.shape)
            wide = (count * shape[0], *shape[1:]) if shape else shape
            anything: Any = value
            got = np.shape(anything)
            if count > 1 and shape and got == wide:
                whole = np.asarray(value)
                for i in range(count):
                    out[i].append(whole[i * shape[0] : (i + 1) * shape[0]])
            elif got == shape:
                for batch in out:
                    batch.append(value)
            else:
                expected = (
                    f"{list(wide)}"
                    if count == 1
                    else f"{list(wide)} ({count} micro-batches), or {list(shape)} for all of them"
                )
                raise InputError(f"input '{name}': expected {expected}, got {list(got)}")
        if len(arrays) != len(self._inputs):
            raise InputError(
                f"expected {len(self._inputs)} inputs ({', '.join(self.input_names)}), got {len(arrays)}"
            )
        return out

    def _checked(self, batch: Sequence[object]) -> list[Array]:
        if len(batch) != len(self._inputs):
            raise InputError(
                f"expected {len(self._inputs)} inputs ({', '.join(self.input_names)}), got {len(batch)}"
            )
        buffers = (
            Buffer(n, t.dtype, t.shape, "input", 0)
            for n, t in zip(self.input_names, self.input_types, strict=True)
        )
        arrays = [host_array(value, buffer, "input") for value, buffer in zip(batch, buffers, strict=True)]
        self._rules.check(arrays)
        return arrays

    def _chosen(self, schedule: str) -> Schedule:
        if schedule == "auto":
            possible = list(self.planned.visits)
            if len(possible) == 1 or self.micro_batches == 1:
                return possible[0]
            return min(possible, key=lambda s: self._predicted(s).total_s)
        if schedule not in SCHEDULES:
            raise InputError(f"expected a schedule among {', '.join(SCHEDULES)}, auto, got {schedule!r}")
        chosen = SCHEDULES[schedule]
        if chosen not in self.planned.visits:
            raise InputError(self.planned.refused)
        return chosen

    def _run(
        self,
        opened: _Opened,
        arrays: list[list[Array]],
        states: Sequence[Mapping[str, Array]],
        host: Mapping[str, Array],
        schedule: Schedule,
    ) -> list[list[Array]]:
        planned, names = self.planned, set(self.planned.cut.host.names)
        inputs = [
            self._parameters(form, batch, state, names)
            for form, batch, state in zip(planned.form_of, arrays, states, strict=True)
        ]
        before_refused = self._refused()
        with self._values(opened, inputs, schedule) as values:

            def commit() -> None:
                self._finish(host)

            self.record = run_group(
                opened.machine, planned.visits[schedule], planned.layouts[schedule], values, commit
            )
            results = [values.results[batch] for batch in range(len(arrays))]
        self.peak_bytes = opened.queue.memory.peak_bytes
        if self._refused() != before_refused:
            self._store.write(REFUSED, np.zeros((), np.uint32))
            raise InputError(
                f"expected a batch with a finite loss and finite gradients, got the loss "
                f"{float(results[-1][0])}; the state is as it was before"
            )
        return results

    def _finish(self, host: Mapping[str, Array]) -> None:
        """All parts have run: let what they wrote count."""
        self._generations.commit(host)

    def _refused(self) -> int:
        return int(self._store.read(REFUSED)) if self._rules.raises and REFUSED in self._store.buffers else 0

    def _parameters(
        self, form: int, batch: Sequence[Array], state: Mapping[str, Array], names: set[str]
    ) -> list[Array]:
        given = dict(zip(self.input_names, batch, strict=True))
        line = self.planned.cut.parts[form].line
        return [
            np.ascontiguousarray(state[p.hint] if p.hint in names else given[p.hint]) for p in line.parameters
        ]

    @contextmanager
    def _values(
        self, opened: _Opened, inputs: list[list[Array]], schedule: Schedule
    ) -> Iterator[BatchValues]:
        """Where the values of micro-batches wait; one place per form, as forms have windows of their own."""
        planned, windows = self.planned, opened.windows
        where = self._where(schedule)
        if where == "device":
            needed = 1 if schedule == "activation-resident" else len(inputs)
            while len(windows) < needed:
                windows.append(opened.queue.allocate(planned.memory.resident_bytes, "values between parts"))
        with ExitStack() as stack:
            held: dict[int, Activations] = {}
            numbers: list[int] = [0] * len(inputs)
            for form in dict.fromkeys(planned.form_of):
                batches = [b for b, f in enumerate(planned.form_of) if f == form]
                parts: Any = planned.cut.parts[form].parts
                own = [inputs[b] for b in batches]
                window = self._window(form, schedule)
                if where == "device":
                    places = [windows[b % len(windows)] for b in batches]
                    if schedule == "activation-resident":
                        places = windows[:1] * len(batches)
                    held[form] = OnDevice(opened.queue, window, parts, places, own)
                elif where == "host":
                    held[form] = OnHost(opened.queue, window, parts, windows[0], own)
                else:
                    folder = str(self._folder.path)
                    held[form] = OnStorage(opened.queue, window, parts, windows[0], own, folder)
                stack.callback(held[form].close)
                for i, b in enumerate(batches):
                    numbers[b] = i
            last = {form: len(planned.cut.parts[form].parts) - 1 for form in held}
            windows_of = {form: self._window(form, schedule) for form in held}
            yield BatchValues(held, numbers, last, windows_of)

    def _where(self, schedule: Schedule) -> str:
        memory = self.planned.memory
        needed = 1 if schedule == "activation-resident" else self.micro_batches
        fixed = memory.slots * memory.slot_bytes + memory.arena_bytes
        if fixed + needed * memory.resident_bytes <= self.options.cap_bytes:
            return "device"
        waiting = sum(self.planned.resident[f].nbytes for f in self.planned.form_of)
        if schedule == "activation-resident":
            waiting = memory.resident_bytes
        return "host" if self.options.host_bytes is None or waiting <= self.options.host_bytes else "storage"

    def _window(self, form: int, schedule: Schedule) -> Any:
        where = self._where(schedule)
        return (self.planned.resident if where == "device" else self.planned.passing)[form]

    def _open(self) -> _Opened:
        for other in self._borrowers:
            other.close_device()
        return super()._open()

    def _opening(self) -> _Opened:
        planned, memory = self.planned, self.planned.memory
        with ExitStack() as stack:
            queue = open_queue(self.target, self.options.cap_bytes)
            stack.callback(queue.close)
            reader = StepReader(self._folder.store, self.options.io)
            stack.callback(reader.close)
            slots = [queue.new_slot(memory.slot_bytes, f"slot {i} for state") for i in range(memory.slots)]
            arena = queue.allocate(memory.arena_bytes, "the arena") if memory.arena_bytes else None
            numbers = {key: i for i, key in enumerate(planned.plan_of)}
            machine = TrainingMachine(
                queue,
                slots,
                BoundParts(queue, arena),
                self._generations,
                reader,
                lambda form, part: planned.cut.parts[form].parts[part],
                planned.plan,
                numbers,
            )
            first = max(memory.window_bytes, memory.resident_bytes if self._resident_fits() else 0)
            windows = [queue.allocate(first, "values between parts")]
            return _Opened(windows, queue, stack.pop_all(), machine)

    def _resident_fits(self) -> bool:
        memory = self.planned.memory
        fixed = memory.slots * memory.slot_bytes + memory.arena_bytes
        return fixed + memory.resident_bytes <= self.options.cap_bytes

    # -- times -----------------------------------------------------------------------------------------------
    def _predicted(self, schedule: Schedule) -> TrainingPrediction:
        measured = self._calibrated()
        planned, store = self.planned, self._generations
        where = self._where(schedule)
        costs = []
        for visit, layout in zip(planned.visits[schedule], planned.layouts[schedule], strict=True):
            constants = sum(planned.plan(*key).stored.nbytes for key in visit.parts)
            read = constants + sum(store.tensors[n].nbytes for n in visit.arriving)
            written = sum(store.tensors[n].nbytes for n in visit.leaving)
            compute = sum(measured.compute_s[planned.plan_of[w.form, w.part]] for w in visit.work)
            if where != "device":
                compute += sum(measured.move_s[w.form, w.part] for w in visit.work)
            costs.append(
                VisitCosts(
                    read / measured.read_bytes_per_s,
                    written / measured.write_bytes_per_s,
                    compute,
                    layout.nbytes / measured.arrival_bytes_per_s + written / measured.return_bytes_per_s,
                )
            )
        return predict_group(
            schedule,
            planned.visits[schedule],
            costs,
            batches=self.micro_batches,
            slots=planned.memory.slots,
            commit_s=measured.commit_s,
        )

    def _calibrated(self) -> _Calibration:
        if self._calibration is None:
            self._calibration = self._measured(self._open())
        return self._calibration

    def _measured(self, opened: _Opened) -> _Calibration:
        """Rates and seconds, one part at a time; nothing of it changes what the store says."""
        planned, machine, store = self.planned, opened.machine, self._generations
        schedule = next(iter(planned.visits))
        visits, layouts = planned.visits[schedule], planned.layouts[schedule]
        compute: dict[int, float] = {}
        move: dict[tuple[int, int], float] = {}
        slot, queue, window = machine.slots[0], machine.queue, opened.windows[0]
        for visit, layout in zip(visits, layouts, strict=True):
            for key in visit.parts:
                part = planned.cut.parts[key[0]].parts[key[1]]
                move[key] = self._move_seconds(queue, part, planned.passing[key[0]], window)
                number = planned.plan_of[key]
                if number in compute:
                    continue
                machine.fetch(visit, layout, slot.buffer)
                slot.arrive(layout.nbytes)
                bound = machine.bound.of(
                    part, planned.plan(*key), slot.allocation, layout.starts, layout.constants[key],
                    planned.passing[key[0]], window,
                )  # fmt: skip
                seconds = []
                for _ in range(1 + REPLAYS):
                    began_s = time.perf_counter()
                    bound.submit(queue)
                    queue.mark().wait()
                    seconds.append(time.perf_counter() - began_s)
                slot.leave()
                queue.finish()
                compute[number] = float(np.median(seconds[1:]))
        copies = self._copy_rates(machine, visits, layouts)
        for visit, layout in zip(visits, layouts, strict=True):
            machine.fetch(visit, layout, slot.buffer)  # compares checksums, which later reads do not
        rates = []
        for moving in (machine.fetch, machine.keep):
            nbytes, spent, begin = 0, 0.0, time.perf_counter()
            while nbytes == 0 or time.perf_counter() - begin < RATE_S:
                for visit, layout in zip(visits, layouts, strict=True):
                    began_s = time.perf_counter()
                    nbytes += moving(visit, layout, slot.buffer)
                    spent += time.perf_counter() - began_s
                if nbytes == 0:
                    break
            rates.append(nbytes / spent if nbytes else float("inf"))
        store.rollback()
        commits = []
        for _ in range(3):
            began_s = time.perf_counter()
            store.commit(store.host)
            commits.append(time.perf_counter() - began_s)
        return _Calibration(
            rates[0],
            rates[1],
            float(np.median(commits)),
            tuple(compute[i] for i in range(len(planned.plans))),
            *copies,
            move,
        )

    @staticmethod
    def _copy_rates(
        machine: TrainingMachine, visits: Sequence[TrainingVisit], layouts: Sequence[SlotLayout]
    ) -> tuple[float, float]:
        """Bytes per second of state from the buffer of a slot to the device, and back."""
        slot = machine.slots[0]
        if isinstance(slot, SharedSlot):
            return float("inf"), float("inf")
        arrived = returned = 0
        arriving_s = returning_s = 0.0
        for visit, layout in zip(visits, layouts, strict=True):
            slot.arrive(layout.nbytes)
            slot.leave()
            arrived += layout.nbytes
            arriving_s += slot.copy_seconds()
            began_s = time.perf_counter()
            returned += machine.bring_back(visit, layout, slot)
            returning_s += time.perf_counter() - began_s
        return (
            arrived / arriving_s if arriving_s else float("inf"),
            returned / returning_s if returned else float("inf"),
        )

    @staticmethod
    def _move_seconds(queue: DeviceQueue, part: Any, window: Any, allocation: Allocation) -> float:
        """Seconds to bring a part's inputs to the device and its results to the host."""
        began_s = time.perf_counter()
        for v in part.inputs:
            t = array_type(v.tensor)
            queue.upload(np.zeros(t.shape, DTYPES[t.dtype]), Location(allocation, window.offsets[v]))
        for v in part.outputs:
            t = array_type(v.tensor)
            queue.download(Location(allocation, window.offsets[v]), np.empty(t.shape, DTYPES[t.dtype]))
        queue.finish()
        return time.perf_counter() - began_s

    def _release(self) -> None:
        with ExitStack() as rest:
            rest.callback(self._generations.close)
            for other in self._borrowers:
                rest.callback(other.close)


class StreamedNetwork(StreamedStep):
    """The network of a streamed step, over the state of the step, which stays its owner."""

    def __init__(self, step: StreamedStep, planned: PlannedTraining, folder: StoreFolder) -> None:
        super().__init__(planned, step.target, folder, step._generations, step.options, "pr")
        self._step = step
        step._borrowers.append(self)

    def _open(self) -> _Opened:
        self._step.close_device()
        return super()._open()

    def _finish(self, host: Mapping[str, Array]) -> None:
        """Nothing has changed."""

    def __call__(self, /, *inputs: object, **named: object) -> list[Array]:
        """Results for a batch of the network's shape."""
        arrays = in_order(self.input_names, inputs, named)
        return self.run([arrays])[0]

    def _release(self) -> None:
        """The state stays with the step."""


def _joined(results: Sequence[Array]) -> Any:
    """The result of a group: the mean of numbers, other results one after the other."""
    if len(results) == 1:
        return results[0]
    if results[0].shape == ():
        return np.asarray(np.mean([np.float64(r) for r in results]), results[0].dtype)
    return np.concatenate(results)
