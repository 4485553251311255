"""The lane of a GPU: weights land in pinned memory and are copied on a stream of their own beside kernels."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tilewright.runtime.closable import Closable
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.cuda.plan import CudaPlan
from tilewright.runtime.cuda.storage_buffers import PinnedAllocator
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.placed import ARENA, Block, CappedMemory, Place, SharedSlot, check_places
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.storage.buffers import HostBuffer

MILLISECOND = 1e-3


class CudaLane(Closable):
    """See `Lane`. One stream of kernels and one of copies; takes the device over and closes it at the end."""

    def __init__(self, device: CudaDevice, cap_bytes: int | None, *, direct: bool = False) -> None:
        """direct: storage writes into the slots' memory of the GPU itself, past the host."""
        self.memory = CappedMemory(cap_bytes)
        self.direct = direct
        #: a slot's pinned buffer is free as soon as it is copied; memory that kernels read, when they ran
        self.behind = 1 if direct else 0
        self.name = device.name
        self.context = device.context
        self._device = device
        self._blocks: list[Block] = []
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

    def allocate(self, nbytes: int, what: str) -> Block:
        """See `Lane.allocate`."""
        self.check_open()
        self.memory.take(nbytes, what)
        try:
            with self.context.current():
                block = Block(nbytes, what, self.context.allocate(nbytes, what))
        except BaseException:
            self.memory.give_back(nbytes)
            raise
        self._blocks.append(block)
        return block

    def new_slot(self, nbytes: int, what: str) -> CudaSlot | SharedSlot:
        """See `Lane.new_slot`."""
        block = self.allocate(nbytes, what)
        if self.direct:
            address = HostBuffer(block.handle, block.nbytes, memoryview(b""), block)  # of the device
            return SharedSlot(self, address, block)
        slot = CudaSlot(self, block)
        self._pinned.append(slot.buffer)
        return slot

    def place(self, plan: ExecutionPlan, places: Mapping[str, Place]) -> CudaPlacedPlan:
        """See `Lane.place`."""
        self.check_open()
        check_places(plan, places)
        addresses = {name: place.block.handle + place.offset for name, place in places.items()}
        arena = addresses.pop(ARENA, 0)
        placed = CudaPlacedPlan(self._device.load_placed(plan, addresses, arena), int(self.kernels))
        self._plans.append(placed)
        return placed

    def upload(self, array: Array, place: Place) -> None:
        """See `Lane.upload`."""
        if array.nbytes:
            self._uploads.append(array)
            target = place.block.handle + place.offset
            self.call("cuMemcpyHtoDAsync", target, array.ctypes.data, array.nbytes, self.kernels)

    def download(self, place: Place, array: Array) -> None:
        """See `Lane.download`."""
        if array.nbytes:
            source = place.block.handle + place.offset
            self.call("cuMemcpyDtoHAsync", array.ctypes.data, source, array.nbytes, self.kernels)
            self.call("cuStreamSynchronize", self.kernels)
            self._uploads.clear()

    def copy(self, source: Place, target: Place, nbytes: int) -> None:
        """See `Lane.copy`."""
        begin, end = (place.block.handle + place.offset for place in (source, target))
        self.call("cuMemcpyDtoDAsync", end, begin, nbytes, self.kernels)

    def mark(self) -> CudaMark:
        """See `Lane.mark`."""
        mark = CudaMark(self)
        mark.record(self.kernels)
        return mark

    def finish(self) -> None:
        """See `Lane.finish`."""
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
            while self._blocks:
                self.context.call("cuMemFree", self._blocks.pop().handle)
            while self._events:
                self.context.call("cuEventDestroy", self._events.pop())
            for stream in (self.copies, self.kernels):
                self.context.call("cuStreamDestroy", stream)
        self._uploads.clear()
        self.memory.give_back(self.memory.bytes_in_use)
        self._device.close()


class CudaMark:
    """See `Mark`: an event, given back to the lane when nobody holds the mark."""

    def __init__(self, lane: CudaLane) -> None:
        self._lane = lane
        self.event = lane.new_event()

    def record(self, stream: Any) -> None:
        """Mark the end of what is queued on a stream."""
        self._lane.call("cuEventRecord", self.event, stream)

    def hold_back(self, stream: Any) -> None:
        """Let what is queued on a stream from now on wait for the mark."""
        self._lane.call("cuStreamWaitEvent", stream, self.event, 0)

    def wait(self) -> None:
        """See `Mark.wait`."""
        self._lane.call("cuEventSynchronize", self.event)

    def seconds_after(self, other: CudaMark) -> float:
        """See `Mark.seconds_after`."""
        return float(self._lane.call("cuEventElapsedTime", other.event, self.event)) * MILLISECOND

    def __del__(self) -> None:
        event = getattr(self, "event", None)
        if event is not None:
            self._lane.recycle(event)


class CudaSlot:
    """See `Slot`: pinned memory that is copied to memory of the GPU when kernels let go of that."""

    def __init__(self, lane: CudaLane, block: Block) -> None:
        self.block = block
        self.buffer = lane.pinned.allocate(block.nbytes)
        self._lane = lane
        self._used: CudaMark | None = None
        self._began, self._copied = CudaMark(lane), CudaMark(lane)
        self._began.record(lane.copies)
        self._copied.record(lane.copies)

    def arrive(self, nbytes: int) -> None:
        """See `Slot.arrive`: queue the copy behind the kernels that used the slot before."""
        lane = self._lane
        if self._used is not None:
            self._used.hold_back(lane.copies)
        self._began.record(lane.copies)
        lane.call("cuMemcpyHtoDAsync", self.block.handle, self.buffer.address, nbytes, lane.copies)
        self._copied.record(lane.copies)
        self._copied.hold_back(lane.kernels)

    def leave(self) -> None:
        """See `Slot.leave`."""
        self._used = self._lane.mark()

    def wait_reusable(self) -> None:
        """See `Slot.wait_reusable`: until it is copied."""
        self._copied.wait()

    def copy_seconds(self) -> float:
        """See `Slot.copy_seconds`."""
        self._copied.wait()
        return self._copied.seconds_after(self._began)


class CudaPlacedPlan:
    """See `PlacedPlan`."""

    def __init__(self, loaded: CudaPlan, stream: int) -> None:
        self._loaded, self._stream = loaded, stream

    def queue(self) -> None:
        """See `PlacedPlan.queue`."""
        self._loaded.replay(self._stream)

    def close(self) -> None:
        """Give the graph and the kernels back."""
        self._loaded.close()
