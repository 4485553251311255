"""The queue of an OpenCL device: slots are memory that host and device share, so that reads land in place."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.runtime.closable import Closable
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
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.opencl.driver import driver_errors
from tilewright.runtime.opencl.memory import OpenClPlanMemory, OpenClPool
from tilewright.runtime.opencl.plan import NANOSECOND, OpenClPlan
from tilewright.runtime.plan.execution_plan import ExecutionPlan, describe_launch
from tilewright.runtime.storage.buffers import AlignedAllocator

#: copies to the device that may be under way at once
UPLOADS = 256


class OpenClQueue(Closable):
    """See `DeviceQueue`. One queue that keeps the order; takes the device over and closes it at the end."""

    #: kernels read a slot's buffer itself, so it is free when the next filling's work has been queued and
    #: that of this one is done
    behind = 1

    def __init__(self, device: OpenClDevice, cap_bytes: int | None) -> None:
        self.memory = CappedMemory(cap_bytes)
        self.name = device.name
        self._device, self._cl = device, device.cl
        self._commands = device.new_queue(out_of_order=False)
        self._allocations: list[Allocation] = []
        self._plans: list[OpenClPlacedPlan] = []
        self._uploads: deque[Any] = deque(maxlen=UPLOADS)
        self._host = AlignedAllocator()

    def allocate(self, nbytes: int, what: str) -> Allocation:
        self.check_open()
        self.memory.take(nbytes, what)
        try:
            allocation = Allocation(nbytes, what, self._device.pool.allocate(nbytes, what))
        except BaseException:
            self.memory.give_back(nbytes)
            raise
        self._allocations.append(allocation)
        return allocation

    def new_slot(self, nbytes: int, what: str) -> SharedSlot:
        """See `DeviceQueue.new_slot`: memory in whole pages, which the device uses where it lies."""
        self.check_open()
        buffer = self._host.allocate(nbytes)
        self.memory.take(buffer.nbytes, what)
        flags = self._cl.mem_flags.READ_WRITE | self._cl.mem_flags.USE_HOST_PTR
        array = np.frombuffer(buffer.view, np.uint8)
        try:
            with driver_errors(self._cl, f"allocating {buffer.nbytes} bytes for {what}"):
                handle = self._cl.Buffer(self._device.context, flags, hostbuf=array)
        except BaseException:
            self.memory.give_back(buffer.nbytes)
            raise
        return SharedSlot(self, buffer, Allocation(buffer.nbytes, what, handle))

    def place(self, plan: ExecutionPlan, places: Mapping[str, Location]) -> OpenClPlacedPlan:
        self.check_open()
        check_places(plan, places)
        memory = _Placed(self._device.pool, plan, places)
        placed = OpenClPlacedPlan(self._device.load_placed(plan, memory, self._commands))
        self._plans.append(placed)
        return placed

    def upload(self, array: Array, place: Location) -> None:
        if array.nbytes:
            with driver_errors(self._cl, f"copying to {place.allocation.what}"):
                event = self._cl.enqueue_copy(
                    self._commands,
                    place.allocation.handle,
                    _bytes_of(array),
                    dst_offset=place.offset,
                    is_blocking=False,
                )
            # The event holds the array, and waits for its copy where it goes.
            self._uploads.append(event)

    def download(self, place: Location, array: Array) -> None:
        if array.nbytes:
            with driver_errors(self._cl, f"copying from {place.allocation.what}"):
                self._cl.enqueue_copy(
                    self._commands,
                    _bytes_of(array),
                    place.allocation.handle,
                    src_offset=place.offset,
                    is_blocking=True,
                )

    def copy(self, source: Location, target: Location, nbytes: int) -> None:
        with driver_errors(self._cl, f"copying from {source.allocation.what} to {target.allocation.what}"):
            self._cl.enqueue_copy(
                self._commands,
                target.allocation.handle,
                source.allocation.handle,
                byte_count=nbytes,
                src_offset=source.offset,
                dst_offset=target.offset,
            )

    def mark(self) -> OpenClMark:
        with driver_errors(self._cl, "marking the queue"):
            event = self._cl.enqueue_marker(self._commands)
            self._commands.flush()
        return OpenClMark(self._cl, event)

    def finish(self) -> None:
        """See `DeviceQueue.finish`; a launch that failed is named."""
        with driver_errors(self._cl, "running the steps"):
            self._commands.finish()
        self._uploads.clear()
        for plan in self._plans:
            plan.check()

    def _release(self) -> None:
        try:
            with driver_errors(self._cl, "ending the work of the queue"):
                self._commands.finish()
        finally:
            while self._plans:
                self._plans.pop().close()
            while self._allocations:
                self._device.pool.free(self._allocations.pop().handle)
            self.memory.give_back(self.memory.bytes_in_use)
            self._device.close()


class OpenClMark:
    """See `Mark`: a marker command and its profile."""

    def __init__(self, cl: Any, event: Any) -> None:
        self._cl, self._event = cl, event

    def wait(self) -> None:
        with driver_errors(self._cl, "running the steps"):
            self._event.wait()

    def seconds_after(self, other: OpenClMark) -> float:
        return float((self._event.profile.end - other._event.profile.end) * NANOSECOND)


class OpenClPlacedPlan:
    """See `PlacedPlan`."""

    def __init__(self, loaded: OpenClPlan) -> None:
        self._loaded = loaded
        self._events: list[Any] = []

    def submit(self) -> None:
        self._events = self._loaded.submit()

    def check(self) -> None:
        """Raise `DeviceError` naming the first launch of the last replay that failed."""
        launches = self._loaded.plan.launches
        for index, event in enumerate(self._events):
            status = event.command_execution_status
            if status < 0:
                raise DeviceError(
                    f"{describe_launch(index, launches[index])} failed with OpenCL status {status}"
                )

    def close(self) -> None:
        """Give back the programs."""
        self._events = []
        self._loaded.close()


class _Placed(OpenClPlanMemory):
    """Memory of a plan that is somebody else's; programs are shared as ever."""

    def __init__(self, pool: OpenClPool, plan: ExecutionPlan, places: Mapping[str, Location]) -> None:
        super().__init__(pool, plan)
        self._places = places

    def region(self, name: str) -> tuple[Any, int]:
        owner, offset = self._plan.locate(name)
        if owner.kind == "arena":
            arena = self._places[ARENA]
            return arena.allocation.handle, arena.offset + owner.offset + offset
        place = self._places[owner.name]
        return place.allocation.handle, place.offset + offset


def _bytes_of(array: Array) -> Array:
    """The array's bytes, which must be dense: pyopencl copies raw bytes, element types it does not know."""
    return array.reshape(-1).view(np.uint8)
