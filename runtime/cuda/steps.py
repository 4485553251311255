"""Steps that are queued without waiting: inputs and outputs travel through pinned memory that takes turns."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.cuda.arrays import CopyIn, copies_in
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.cuda.memory import Destroy, Staging
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.lazy import LazyArray
from tilewright.runtime.plan.execution_plan import ExecutionPlan

#: steps that may be queued: while one runs, the host prepares the next
SLOTS = 3
#: inputs of so many bytes are copied while the step before runs, through memory of the device that takes
#: turns; fewer arrive in the time that the further calls of the driver take
OVERLAP_BYTES = 256 << 10


class Replay(Protocol):
    """What queues the launches of a plan."""

    def launch(self, stream: Any = None) -> None:
        """Queue one replay on `stream` (default: the plan's)."""


class Waiter(Protocol):
    """What waits for events of a plan's stream, in whichever thread."""

    def wait_for(self, event: Any) -> None:
        """Return when everything before the event is done; raises `DeviceError` where it failed."""


class Slot:
    """Pinned copies of all inputs and outputs of one step, and the event after its last copy."""

    def __init__(self, context: Context, plan: ExecutionPlan, device_bytes: int) -> None:
        """device_bytes: memory of the device where the inputs arrive; none where they go to their places."""
        inputs = [b for b in plan.buffers if b.kind == "input"]
        outputs = [plan.buffer_by_name[name] for name in dict.fromkeys(plan.outputs)]
        self.inputs = Staging(context, inputs)
        try:
            self.outputs = Staging(context, outputs)
        except BaseException:
            self.inputs.release(context.call)
            raise
        self.block, self._events = 0, list[Any]()
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
        self.used = False
        self.results: list[weakref.ref[_Result]] = []  # of the step that used it last
        self.alive: list[CopyIn] = []  # what its copies read besides

    def keep_results(self) -> None:
        """Copy what nobody has read yet, before another step or the end takes the memory."""
        for reference in self.results:
            result = reference()
            if result is not None:
                result.keep()
        self.results = []

    def release(self, destroy: Destroy) -> None:
        for event in self._events:
            destroy("cuEventDestroy", event)
        if self.block:
            destroy("cuMemFree", self.block)
        self.inputs.release(destroy)
        self.outputs.release(destroy)


class _Result:
    """An output of a step: in the pinned memory of a slot until somebody reads it or the slot is needed."""

    __slots__ = ("__weakref__", "_array", "_event", "_waiter", "value")

    def __init__(self, array: Array, event: Any, waiter: Waiter) -> None:
        self._array: Array | None = array
        self._event, self._waiter = event, waiter
        self.value: Array | None = None

    def keep(self) -> None:
        """Copy the output, which is there."""
        if self._array is not None:
            self.value, self._array = self._array.copy(), None

    def fetch(self) -> Array:
        """The output, waited for; raises `DeviceError` where the step failed."""
        if self._array is not None:
            self._waiter.wait_for(self._event)
            self.keep()
        if self.value is None:
            raise DeviceError("this result was not read before its plan was closed after a failure")
        return self.value

    def drop(self) -> None:
        """Forget the output: what it was to hold was never computed."""
        self._array = None


class StepRing:
    """Queues steps of one plan. The plan's lock is held and the context current in every method."""

    def __init__(
        self,
        context: Context,
        plan: ExecutionPlan,
        addresses: Mapping[str, int],
        stream: Any,
        replay: Replay,
        waiter: Waiter,
    ) -> None:
        self._context, self._plan, self._addresses = context, plan, addresses
        self._stream, self._replay, self._waiter = stream, replay, waiter
        self._slots: list[Slot] = []
        self._turn = 0
        # The inputs lie one behind the other on the device as in pinned memory: one copy brings all.
        self._types = [
            (name, plan.buffer_by_name[name].shape, DTYPES[plan.buffer_by_name[name].dtype])
            for name in plan.inputs
        ]
        self._outputs = [
            (name, addresses[name], b.size * DTYPES[b.dtype].itemsize)
            for name in dict.fromkeys(plan.outputs)
            if (b := plan.buffer_by_name[name]).size
        ]
        first = min((addresses[b.name] for b in plan.buffers if b.kind == "input"), default=0)
        ends = [addresses[b.name] + b.nbytes for b in plan.buffers if b.kind == "input"]
        self._device_inputs, self._input_bytes = first, max(ends, default=first) - first
        self._copies: Any = None  # the stream on which inputs arrive while the step before runs
        if self._input_bytes >= OVERLAP_BYTES:
            flag = int(context.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
            self._copies = context.call("cuStreamCreate", flag)

    def queue(self, slot: Slot, inputs: Sequence[object]) -> tuple[LazyArray, ...]:
        """Queue one step; raises `InputError`, before anything is queued, for inputs that do not fit."""
        call, stream = self._context.call, self._stream
        pinned = slot.inputs.arrays
        plain = len(inputs) == len(self._types) and all(
            type(x) is np.ndarray and x.dtype == dtype and x.shape == shape
            for x, (_, shape, dtype) in zip(inputs, self._types, strict=True)
        )
        if plain:
            for x, (name, _, _) in zip(inputs, self._types, strict=True):
                np.copyto(pinned[name], x)  # type: ignore[arg-type]  # known to be arrays
            if self._copies is not None:
                call("cuMemcpyHtoDAsync", slot.block, slot.inputs.address, self._input_bytes, self._copies)
                call("cuEventRecord", slot.arrived, self._copies)
                call("cuStreamWaitEvent", stream, slot.arrived, 0)
                call("cuMemcpyDtoDAsync", self._device_inputs, slot.block, self._input_bytes, stream)
            elif self._input_bytes:
                call("cuMemcpyHtoDAsync", self._device_inputs, slot.inputs.address, self._input_bytes, stream)
        else:
            self._copy_each(slot, inputs)
        self._replay.launch()
        out = slot.outputs.arrays
        for name, address, nbytes in self._outputs:
            call("cuMemcpyDtoHAsync", out[name].ctypes.data, address, nbytes, stream)
        call("cuEventRecord", slot.event, stream)
        slot.used = True
        self._turn = (self._turn + 1) % SLOTS
        results = [_Result(out[name], slot.event, self._waiter) for name in self._plan.outputs]
        slot.results = [weakref.ref(r) for r in results]
        buffers = self._plan.buffer_by_name
        return tuple(
            LazyArray(buffers[name].shape, buffers[name].dtype, r.fetch)
            for name, r in zip(self._plan.outputs, results, strict=True)
        )

    def next_slot(self) -> Slot:
        """The memory of the next step, waited for; raises `OutOfMemoryError` where there is none yet."""
        if len(self._slots) <= self._turn:
            nbytes = self._input_bytes if self._copies is not None else 0
            self._slots.append(Slot(self._context, self._plan, nbytes))
        slot = self._slots[self._turn]
        if slot.used:
            self._waiter.wait_for(slot.event)
            slot.keep_results()
            slot.used, slot.alive = False, []
        return slot

    def _copy_each(self, slot: Slot, inputs: Sequence[object]) -> None:
        """Check the inputs, and copy each from where it is: the host, or this GPU through DLPack."""
        steps = copies_in(self._context, self._plan, self._addresses, inputs, self._stream)
        for step in steps:
            if step.array is None:
                step.start(self._context, self._stream)
            elif step.nbytes:
                target = slot.inputs.arrays[step.name]
                target[...] = step.array
                source = target.ctypes.data
                self._context.call("cuMemcpyHtoDAsync", step.target, source, step.nbytes, self._stream)
        slot.alive = steps

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
