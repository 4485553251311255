"""Steps that are queued without waiting: inputs and outputs travel through pinned memory that takes turns."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.cuda.arrays import CopyIn, copies_in
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.cuda.graph import ExplicitGraph, GraphCopy
from tilewright.runtime.cuda.memory import Destroy, Staging
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.lazy import LazyArray
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.work_lock import WorkLock

#: steps that may be queued: while one runs, the host prepares the next
SLOTS = 3
#: inputs of so many bytes are copied while the step before runs, through memory of the device that takes
#: turns; fewer arrive in the time that the further calls of the driver take
OVERLAP_BYTES = 256 << 10
#: inputs of so many bytes are copied to pinned memory by several threads; to wake them takes tens of us
THREADS_BYTES = 2 << 20
#: the caller's among them: with 4 MB of inputs a step costs the host of an H200 345 us by one thread, 270 by
#: two, 300 by four
COPYING_THREADS = 2


class Replay(Protocol):
    """What queues the launches of a plan."""

    def launch(self, stream: Any = None) -> None:
        """Queue one replay on `stream` (default: the plan's)."""


class Slot:
    """Pinned copies of all inputs and outputs of one step, and the event after its last copy."""

    def __init__(self, context: Context, plan: ExecutionPlan, device_bytes: int) -> None:
        """device_bytes: memory of the device where the inputs arrive; none where they go to their places."""
        inputs = [b for b in plan.buffers if b.kind == "input"]
        outputs = [plan.buffer_by_name[name] for name in dict.fromkeys(plan.outputs)]
        self.inputs = Staging(context, inputs, only_written=device_bytes > 0)
        try:
            self.outputs = Staging(context, outputs)
        except BaseException:
            self.inputs.release(context.call)
            raise
        self.block, self._events = 0, list[Any]()
        self.graph: Any = None  # the launches between the copies, where the plan's replay is a graph
        try:
            flag = int(context.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
            for _ in range(2):
                self._events.append(context.call("cuEventCreate", flag))
            if device_bytes:
                self.block = context.allocate(device_bytes, "inputs of the next steps")
        except BaseException:
            self.release(context.call)
            raise
        self.event, self.arrived = self._events
        # In calling order: what a step touches, without looking anything up.
        self.input_arrays = [
            (array := self.inputs.arrays[name], array.dtype, array.shape, in_parts(array))
            for name in plan.inputs
        ]
        self.output_arrays = [
            (self.outputs.arrays[name], plan.buffer_by_name[name].dtype) for name in plan.outputs
        ]
        self.busy = False  # a step was queued with it, whose end nobody has waited for
        self.results: list[weakref.ref[PinnedResult]] = []  # of the step that used it last
        self.alive: list[CopyIn] = []  # what its copies read besides

    def keep_results(self) -> None:
        """Copy what nobody has read yet, before another step or the end takes the memory."""
        for reference in self.results:
            result = reference()
            if result is not None:
                result.keep()
        self.results = []

    def release(self, destroy: Destroy) -> None:
        if self.graph is not None:
            destroy("cuGraphExecDestroy", self.graph)
        for event in self._events:
            destroy("cuEventDestroy", event)
        if self.block:
            destroy("cuMemFree", self.block)
        self.inputs.release(destroy)
        self.outputs.release(destroy)


class PinnedResult(LazyArray):
    """An output of a step: in the pinned memory of a slot until somebody reads it or the slot is needed."""

    __slots__ = ("_ring", "pinned", "slot")

    def __init__(self, pinned: Array, dtype: str, slot: Slot, ring: StepRing) -> None:
        # All fields are set here: this is the path whose host time counts.
        self.shape, self.dtype = pinned.shape, dtype
        self._value = self._fetch = None
        self.pinned: Array | None = pinned
        self.slot, self._ring = slot, ring

    def keep(self) -> None:
        """Copy the output, which is there."""
        if self.pinned is not None:
            self._value, self.pinned = self.pinned.copy(), None

    def numpy(self) -> Array:
        """The output, waited for; raises `DeviceError` where the step failed."""
        if self._value is None:
            self._ring.settle(self)
        if self._value is None:
            raise DeviceError("this result was not read before its plan was closed after a failure")
        return self._value

    def drop(self) -> None:
        """Forget the output: what it was to hold was never computed."""
        self.pinned = None


class StepRing:
    """Queues steps of one plan. Its lock is held and the context current in every method but `settle`.

    Where the plan's replay is a graph, each slot has one of its own, in which the copies are nodes: a step is
    one launch of it. Arrays that are not plain ones of the host are copied before the plan's own replay.
    """

    def __init__(
        self,
        context: Context,
        plan: ExecutionPlan,
        addresses: Mapping[str, int],
        stream: Any,
        replay: Replay,
        lock: WorkLock,
        failed: Callable[[DeviceError], None],
    ) -> None:
        """lock: the plan's; failed: called where something that was queued did not run to its end."""
        self._context, self._plan, self._addresses = context, plan, addresses
        self._stream, self._replay, self._lock, self._failed = stream, replay, lock, failed
        self._launch, self._record = context.api.cuGraphLaunch, context.api.cuEventRecord
        self._slots: list[Slot] = []
        self._turn = 0
        self._outputs = [
            (name, addresses[name], b.size * DTYPES[b.dtype].itemsize)
            for name in dict.fromkeys(plan.outputs)
            if (b := plan.buffer_by_name[name]).size
        ]
        # The inputs lie one behind the other on the device as in pinned memory: one copy brings all.
        first = min((addresses[b.name] for b in plan.buffers if b.kind == "input"), default=0)
        ends = [addresses[b.name] + b.nbytes for b in plan.buffers if b.kind == "input"]
        self._device_inputs, self._input_bytes = first, max(ends, default=first) - first
        self._copies: Any = None  # the stream on which inputs arrive while the step before runs
        if self._input_bytes >= OVERLAP_BYTES and isinstance(replay, ExplicitGraph):
            flag = int(context.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
            self._copies = context.call("cuStreamCreate", flag)

    def step(self, inputs: Sequence[object]) -> tuple[LazyArray, ...]:
        """Queue one step; raises `InputError`, before anything is queued, for inputs that do not fit.

        Raises `OutOfMemoryError` where there is no memory for one more slot, and then has queued nothing.
        """
        if len(self._slots) <= self._turn:
            self._slots.append(self._new_slot())
        slot = self._slots[self._turn]
        if slot.busy:
            self._wait_for(slot)
        if slot.results:
            slot.keep_results()
        try:
            if slot.graph is None or not self._launch_graph(slot, inputs):
                self._copy_each(slot, inputs)
            status = self._record(slot.event, self._stream)[0]
            if status != self._context.success:
                raise self._context.failure("cuEventRecord", status)
        except DeviceError as error:
            self._failed(error)
            raise
        slot.busy = True
        self._turn = (self._turn + 1) % SLOTS
        results = [PinnedResult(pinned, dtype, slot, self) for pinned, dtype in slot.output_arrays]
        slot.results = [weakref.ref(r) for r in results]
        return tuple(results)

    def _launch_graph(self, slot: Slot, inputs: Sequence[Any]) -> bool:
        """Queue the slot's graph on copies of the inputs.

        Queues nothing, and returns False, where they are not arrays of the host of the right types.
        """
        if len(inputs) != len(slot.input_arrays):
            return False
        for x, (pinned, dtype, shape, parts) in zip(inputs, slot.input_arrays, strict=True):
            if type(x) is not np.ndarray or x.dtype != dtype or x.shape != shape:
                return False
            if parts:
                copy_in_threads(pinned, x, parts)
            else:
                pinned[...] = x
        if self._copies is not None:
            call = self._context.call
            call("cuMemcpyHtoDAsync", slot.block, slot.inputs.address, self._input_bytes, self._copies)
            call("cuEventRecord", slot.arrived, self._copies)
            call("cuStreamWaitEvent", self._stream, slot.arrived, 0)
        # The driver's function itself: this is the path whose host time counts.
        status = self._launch(slot.graph, self._stream)[0]
        if status != self._context.success:
            raise self._context.failure("cuGraphLaunch", status)
        return True

    def _wait_for(self, slot: Slot) -> None:
        """Wait for the step that used a slot last; raises `DeviceError` where it failed."""
        try:
            doing = f"running {len(self._plan.launches)} kernels"
            self._context.call("cuEventSynchronize", slot.event, doing=doing)
        except DeviceError as error:
            self._failed(error)
            raise
        slot.busy, slot.alive = False, []

    def settle(self, result: PinnedResult) -> None:
        """Let a result keep its array when its step is done; raises `DeviceError` where that failed."""
        self._lock.acquire()
        try:
            if result.pinned is None:
                return
            if result.slot.busy:
                with self._context.current():
                    self._wait_for(result.slot)
            result.keep()
        finally:
            self._lock.release()

    def _new_slot(self) -> Slot:
        slot = Slot(self._context, self._plan, self._input_bytes if self._copies is not None else 0)
        try:
            if isinstance(self._replay, ExplicitGraph):
                slot.graph = self._replay.with_copies(self._arrival(slot), list(self._departures(slot)))
        except BaseException:
            slot.release(self._context.call)
            raise
        return slot

    def _arrival(self, slot: Slot) -> GraphCopy | None:
        """The copy that brings the inputs from where they arrive, before the first launches that read one."""
        if not self._input_bytes:
            return None
        source = slot.block or slot.inputs.address
        readers = first_users(self._plan, {b.name for b in self._plan.buffers if b.kind == "input"})
        return GraphCopy(self._device_inputs, source, self._input_bytes, readers, from_host=not slot.block)

    def _departures(self, slot: Slot) -> Iterator[GraphCopy]:
        """The copies of the outputs, each behind the last launches that write it."""
        for name, address, nbytes in self._outputs:
            writers = last_writers(self._plan, self._plan.locate(name)[0].name)
            target = slot.outputs.arrays[name].ctypes.data
            yield GraphCopy(target, address, nbytes, writers, to_host=True)

    def _copy_each(self, slot: Slot, inputs: Sequence[object]) -> None:
        """Check the inputs, copy each from where it is, the host or this GPU through DLPack, and replay."""
        call, stream = self._context.call, self._stream
        steps = copies_in(self._context, self._plan, self._addresses, inputs, stream)
        for step in steps:
            if step.array is None:
                step.start(self._context, stream)
            elif step.nbytes:
                target = slot.inputs.arrays[step.name]
                target[...] = step.array
                call("cuMemcpyHtoDAsync", step.target, target.ctypes.data, step.nbytes, stream)
        slot.alive = steps
        self._replay.launch()
        for name, address, nbytes in self._outputs:
            call("cuMemcpyDtoHAsync", slot.outputs.arrays[name].ctypes.data, address, nbytes, stream)

    def release(self, destroy: Destroy, *, failed: bool) -> None:
        """Free everything; results that nobody has read are kept, unless what they wait for failed."""
        for slot in self._slots:
            if failed:
                for reference in slot.results:
                    result = reference()
                    if result is not None:
                        result.drop()
            else:
                slot.keep_results()
            slot.release(destroy)
        self._slots = []
        if self._copies is not None:
            destroy("cuStreamDestroy", self._copies)
            self._copies = None


def in_parts(array: Array) -> list[slice]:
    """Rows that threads copy side by side; none of an array that one thread copies sooner."""
    rows = len(array) if array.ndim else 1
    threads = min(COPYING_THREADS, len(os.sched_getaffinity(0)), rows)
    if array.nbytes < THREADS_BYTES or threads < 2:
        return []
    cuts = [rows * i // threads for i in range(threads + 1)]
    return [slice(a, b) for a, b in pairwise(cuts)]


@cache
def _threads() -> ThreadPoolExecutor:
    """Those that copy beside the caller's, for all plans of the process."""
    return ThreadPoolExecutor(COPYING_THREADS - 1, "copy")


def copy_in_threads(target: Array, source: Array, parts: Sequence[slice]) -> None:
    """Copy rows of an array side by side: copies of many bytes run without the interpreter's lock."""
    own, *others = parts
    copies = [_threads().submit(np.copyto, target[rows], source[rows]) for rows in others]
    target[own] = source[own]
    for copy in copies:
        copy.result()


def first_users(plan: ExecutionPlan, owners: set[str]) -> tuple[int, ...]:
    """The launches that touch one of the buffers and come after no other that does."""
    later, out = set[int](), []
    for index, launch in enumerate(plan.launches):
        if not later.isdisjoint(launch.deps):
            later.add(index)
        elif any(plan.locate(name)[0].name in owners for name in launch.args):
            later.add(index)
            out.append(index)
    return tuple(out)


def last_writers(plan: ExecutionPlan, owner: str) -> tuple[int, ...]:
    """The launches that write to a buffer and come before no other that does."""
    before, out = set[int](), []
    for index in reversed(range(len(plan.launches))):
        launch = plan.launches[index]
        if index not in before and any(
            plan.locate(launch.args[position])[0].name == owner for position in launch.writes
        ):
            before.add(index)
            out.append(index)
        if index in before:
            before.update(launch.deps)
    return tuple(out)
