"""The queue of a GPU: weights land in pinned memory and are copied on a stream of their own."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tilewright.runtime.closable import Closable
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.cuda.plan import CudaPlan
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.queue import (
    ARENA,
    Allocation,
    CappedMemory,
    Location,
    SharedSlot,
    check_places,
)
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.storage.buffers import HostBuffer
from tilewright.runtime.storage.layout import PAGE_BYTES, round_up


class PinnedAllocator:
    """A `HostAllocator` through the CUDA driver; buffers must be freed before the context is released."""

    pinned = True

    def __init__(self, context: Context) -> None:
        self._context = context

    def allocate(self, nbytes: int) -> HostBuffer:
        """Page-locked memory; raises `OutOfMemoryError` where the driver has none left."""
        size = round_up(max(1, nbytes), PAGE_BYTES)
        with self._context.current():
            # The driver does not promise that its memory begins at a page.
            base = int(
                self._context.call("cuMemAllocHost", size + PAGE_BYTES, doing=f"{size} bytes to read into")
            )
        address = round_up(base, PAGE_BYTES)
        raw = (ctypes.c_uint8 * size).from_address(address)
        return HostBuffer(address, size, memoryview(raw).cast("B"), base)

    def free(self, buffer: HostBuffer) -> None:
        """Give the memory back to the driver."""
        with self._context.current():
            self._context.call("cuMemFreeHost", buffer.owner)


MILLISECOND = 1e-3


class CudaQueue(Closable):
    """See `DeviceQueue`. One stream of kernels and one of copies; it closes the device at the end."""

    def __init__(self, device: CudaDevice, cap_bytes: int | None, *, direct: bool = False) -> None:
        """direct: storage writes into the slots' memory of the GPU itself, past the host."""
        self.memory = CappedMemory(cap_bytes)
        self.direct = direct
        #: a slot's pinned buffer is free as soon as it is copied; memory that kernels read, when they ran
        self.behind = 1 if direct else 0
        self.name = device.name
        self.context = device.context
        self._device = device
        self._allocations: list[Allocation] = []
        self._pinned: list[HostBuffer] = []
        self._plans: list[CudaPlacedPlan] = []
        self._uploads: list[Array] = []
        self._events: list[Any] = []
        self._free_events: list[Any] = []
        self.pinned = PinnedAllocator(device.context)
        flag = int(self.context.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        with self.context.current():
            self.kernels = self.context.call("cuStreamCreate", flag)
            self.copies = self.context.call("cuStreamCreate", flag)

    def allocate(self, nbytes: int, what: str) -> Allocation:
        self.check_open()
        self.memory.take(nbytes, what)
        try:
            with self.context.current():
                allocation = Allocation(nbytes, what, self.context.allocate(nbytes, what))
        except BaseException:
            self.memory.give_back(nbytes)
            raise
        self._allocations.append(allocation)
        return allocation

    def new_slot(self, nbytes: int, what: str) -> CudaSlot | SharedSlot:
        allocation = self.allocate(nbytes, what)
        if self.direct:
            address = HostBuffer(
                allocation.handle, allocation.nbytes, memoryview(b""), allocation
            )  # of the device
            return SharedSlot(self, address, allocation)
        slot = CudaSlot(self, allocation)
        self._pinned.append(slot.buffer)
        return slot

    def place(self, plan: ExecutionPlan, places: Mapping[str, Location]) -> CudaPlacedPlan:
        self.check_open()
        check_places(plan, places)
        addresses = {name: place.allocation.handle + place.offset for name, place in places.items()}
        arena = addresses.pop(ARENA, 0)
        placed = CudaPlacedPlan(self._device.load_placed(plan, addresses, arena), int(self.kernels))
        self._plans.append(placed)
        return placed

    def upload(self, array: Array, place: Location) -> None:
        if array.nbytes:
            self._uploads.append(array)
            target = place.allocation.handle + place.offset
            self.call("cuMemcpyHtoDAsync", target, array.ctypes.data, array.nbytes, self.kernels)

    def download(self, place: Location, array: Array) -> None:
        if array.nbytes:
            source = place.allocation.handle + place.offset
            self.call("cuMemcpyDtoHAsync", array.ctypes.data, source, array.nbytes, self.kernels)
            self.call("cuStreamSynchronize", self.kernels)
            self._uploads.clear()

    def copy(self, source: Location, target: Location, nbytes: int) -> None:
        begin, end = (place.allocation.handle + place.offset for place in (source, target))
        self.call("cuMemcpyDtoDAsync", end, begin, nbytes, self.kernels)

    def mark(self) -> CudaMark:
        mark = CudaMark(self)
        mark.record(self.kernels)
        return mark

    def finish(self) -> None:
        self.check_open()
        for stream in (self.copies, self.kernels):
            self.call("cuStreamSynchronize", stream)
        self._uploads.clear()

    def call(self, function: str, *args: Any) -> Any:
        """Call the driver with the context current; raises `DeviceError`."""
        with self.context.current():
            return self.context.call(function, *args, doing="streaming")

    def new_event(self) -> Any:
        """An event that takes times: a recycled one, or a new one."""
        if self._free_events:
            return self._free_events.pop()
        event = self.call("cuEventCreate", 0)
        self._events.append(event)
        return event

    def recycle(self, event: Any) -> None:
        """Take an event back that nobody looks at any more."""
        self._free_events.append(event)

    def _release(self) -> None:
        # After a failure of the context what frees fails as well, and would only repeat that failure.
        for stream in (self.copies, self.kernels):
            with suppress(DeviceError):
                self.call("cuStreamSynchronize", stream)
        while self._plans:
            self._plans.pop().close()
        with suppress(DeviceError), self.context.current():
            while self._pinned:
                self.pinned.free(self._pinned.pop())
            while self._allocations:
                self.context.call("cuMemFree", self._allocations.pop().handle)
            while self._events:
                self.context.call("cuEventDestroy", self._events.pop())
            for stream in (self.copies, self.kernels):
                self.context.call("cuStreamDestroy", stream)
        self._uploads.clear()
        self.memory.give_back(self.memory.bytes_in_use)
        self._device.close()


class CudaMark:
    """See `Mark`: an event, given back to the queue when nobody holds the mark."""

    def __init__(self, queue: CudaQueue) -> None:
        self._queue = queue
        self.event = queue.new_event()

    def record(self, stream: Any) -> None:
        """Mark the end of what is queued on a stream."""
        self._queue.call("cuEventRecord", self.event, stream)

    def hold_back(self, stream: Any) -> None:
        """Let what is queued on a stream from now on wait for the mark."""
        self._queue.call("cuStreamWaitEvent", stream, self.event, 0)

    def wait(self) -> None:
        self._queue.call("cuEventSynchronize", self.event)

    def seconds_after(self, other: CudaMark) -> float:
        return float(self._queue.call("cuEventElapsedTime", other.event, self.event)) * MILLISECOND

    def __del__(self) -> None:
        event = getattr(self, "event", None)
        if event is not None:
            self._queue.recycle(event)


class CudaSlot:
    """See `Slot`: pinned memory that is copied to memory of the GPU when kernels let go of that."""

    def __init__(self, queue: CudaQueue, allocation: Allocation) -> None:
        self.allocation = allocation
        self.buffer = queue.pinned.allocate(allocation.nbytes)
        self._queue = queue
        self._used: CudaMark | None = None
        self._began, self._copied = CudaMark(queue), CudaMark(queue)
        self._began.record(queue.copies)
        self._copied.record(queue.copies)

    def arrive(self, nbytes: int) -> None:
        """See `Slot.arrive`: queue the copy behind the kernels that used the slot before."""
        queue = self._queue
        if self._used is not None:
            self._used.hold_back(queue.copies)
        self._began.record(queue.copies)
        queue.call("cuMemcpyHtoDAsync", self.allocation.handle, self.buffer.address, nbytes, queue.copies)
        self._copied.record(queue.copies)
        self._copied.hold_back(queue.kernels)

    def leave(self) -> None:
        self._used = self._queue.mark()

    def wait_reusable(self) -> None:
        """See `Slot.wait_reusable`: until it is copied."""
        self._copied.wait()

    def copy_seconds(self) -> float:
        self._copied.wait()
        return self._copied.seconds_after(self._began)


class CudaPlacedPlan:
    """See `PlacedPlan`."""

    def __init__(self, loaded: CudaPlan, stream: int) -> None:
        self._loaded, self._stream = loaded, stream

    def submit(self) -> None:
        self._loaded.replay(self._stream)

    def close(self) -> None:
        """Give the graph and the kernels back."""
        self._loaded.close()
