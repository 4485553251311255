"""The queue of the null device: checks and counts everything, computes nothing; downloads give zeros."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.runtime.closable import Closable
from tilewright.runtime.dtypes import Array
from tilewright.runtime.interface.queue import Allocation, CappedMemory, Location, check_places
from tilewright.runtime.null.device import NullDevice, Operation
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan, describe_launch
from tilewright.runtime.storage.buffers import AlignedAllocator, HostBuffer


class NullQueue(Closable):
    """See `DeviceQueue`. Every operation goes through the null device, which may fail on demand."""

    behind = 0

    def __init__(self, device: NullDevice, cap_bytes: int | None) -> None:
        self.memory = CappedMemory(cap_bytes)
        self.name = device.name
        self.device = device
        self._host = AlignedAllocator()

    def allocate(self, nbytes: int, what: str) -> Allocation:
        self.check_open()
        self.memory.take(nbytes, what)
        try:
            self.device.perform(Operation("allocate", what, nbytes), f"allocating {what}")
        except BaseException:
            self.memory.give_back(nbytes)
            raise
        return Allocation(nbytes, what, None)

    def new_slot(self, nbytes: int, what: str) -> NullSlot:
        return NullSlot(self, self._host.allocate(nbytes), self.allocate(nbytes, what))

    def place(self, plan: ExecutionPlan, places: Mapping[str, Location]) -> NullPlacedPlan:
        self.check_open()
        check_places(validate(plan), places)
        return NullPlacedPlan(self.device, plan)

    def upload(self, array: Array, place: Location) -> None:
        self.device.perform(
            Operation("copy-in", place.allocation.what, array.nbytes), f"copying to {place.allocation.what}"
        )

    def download(self, place: Location, array: Array) -> None:
        """Zeros."""
        self.device.perform(
            Operation("copy-out", place.allocation.what, array.nbytes),
            f"copying from {place.allocation.what}",
        )
        array.reshape(-1)[...] = 0

    def copy(self, source: Location, target: Location, nbytes: int) -> None:
        """Nothing moves."""

    def mark(self) -> NullMark:
        return NullMark()

    def finish(self) -> None:
        """Nothing is under way."""
        self.check_open()

    def _release(self) -> None:
        self.device.free(self.memory.bytes_in_use)
        self.memory.give_back(self.memory.bytes_in_use)
        self.device.close()


class NullMark:
    """See `Mark`: always reached."""

    def wait(self) -> None:
        """Return at once."""

    def seconds_after(self, other: NullMark) -> float:
        """No time."""
        return 0.0


class NullSlot:
    """See `Slot`."""

    def __init__(self, queue: NullQueue, buffer: HostBuffer, allocation: Allocation) -> None:
        self.buffer, self.allocation = buffer, allocation
        self._queue = queue

    def arrive(self, nbytes: int) -> None:
        """Record the upload."""
        what = self.allocation.what
        self._queue.device.perform(Operation("upload", what, nbytes), f"copying to {what}")

    def leave(self) -> None:
        """Nothing is under way."""

    def wait_reusable(self) -> None:
        """Return at once."""

    def copy_seconds(self) -> float:
        """No time."""
        return 0.0


class NullPlacedPlan:
    """See `PlacedPlan`."""

    def __init__(self, device: NullDevice, plan: ExecutionPlan) -> None:
        self._device, self._plan = device, plan

    def submit(self) -> None:
        """Record the launches."""
        for index, launch in enumerate(self._plan.launches):
            operation = Operation("launch", launch.kernel, 0, index, launch.stream)
            self._device.perform(operation, describe_launch(index, launch))

    def close(self) -> None:
        """Nothing to free."""
