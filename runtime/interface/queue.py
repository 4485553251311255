"""Plans whose buffers lie where the caller says, in memory that is counted against a cap: the protocols.

A queue holds the work of one device in its order. Its slots take what comes from storage meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import InputError, OutOfMemoryError
from tilewright.runtime.plan.check import ALIGNMENT
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.storage.buffers import HostBuffer

#: under this name the places of a plan say where its arena begins
ARENA = "%arena"


@dataclass(frozen=True, eq=False)
class Allocation:
    """One allocation of device memory; `handle` is the device's."""

    nbytes: int
    what: str
    handle: Any


@dataclass(frozen=True)
class Location:
    """The begin of something: `offset` bytes into an allocation, a multiple of 256."""

    allocation: Allocation
    offset: int = 0


class Mark(Protocol):
    """A point in a queue."""

    def wait(self) -> None:
        """Return when everything queued before the mark is done; raises `DeviceError` where it failed."""
        ...

    def seconds_after(self, other: Any) -> float:
        """Seconds of the device's clock since another mark of the queue was reached; both must be."""
        ...


class PlacedPlan(Protocol):
    """A plan bound to places of a queue."""

    def submit(self) -> None:
        """Queue one replay behind everything that is queued, and return at once."""
        ...

    def close(self) -> None: ...


class Slot(Protocol):
    """Memory filled from the host again and again, in `buffer`, and used by kernels in `allocation`."""

    @property
    def buffer(self) -> HostBuffer: ...

    @property
    def allocation(self) -> Allocation: ...

    def arrive(self, nbytes: int) -> None:
        """So many bytes of `buffer` are there: what is queued from now on finds them in `allocation`."""
        ...

    def leave(self) -> None:
        """Everything that uses this filling is queued."""
        ...

    def wait_reusable(self) -> None:
        """Wait until `buffer` may be overwritten."""
        ...

    def copy_seconds(self) -> float:
        """Seconds of the last copy to `allocation`, 0 where it and `buffer` are one memory; waits for it."""
        ...


class SharedSlot:
    """A `Slot` whose `buffer` and `allocation` are one memory: storage writes where kernels read."""

    def __init__(self, queue: DeviceQueue, buffer: HostBuffer, allocation: Allocation) -> None:
        self.buffer, self.allocation = buffer, allocation
        self._queue = queue
        self._used: Mark | None = None

    def arrive(self, nbytes: int) -> None:
        """Nothing to do: the data is where kernels read it."""

    def leave(self) -> None:
        self._used = self._queue.mark()

    def wait_reusable(self) -> None:
        """See `Slot.wait_reusable`: until the kernels that read it are done."""
        if self._used is not None:
            self._used.wait()

    def copy_seconds(self) -> float:
        """Nothing is copied."""
        return 0.0


class DeviceQueue(Protocol):
    """One queue of a device. Not for several threads, but for the slots' buffers."""

    @property
    def name(self) -> str:
        """The device's name."""
        ...

    @property
    def memory(self) -> CappedMemory:
        """The memory that is allocated."""
        ...

    @property
    def behind(self) -> int:
        """The number of fillings after which a slot's buffer is free again without the queue running dry."""
        ...

    def allocate(self, nbytes: int, what: str) -> Allocation:
        """Device memory; raises `OutOfMemoryError` beyond the cap."""
        ...

    def new_slot(self, nbytes: int, what: str) -> Slot: ...

    def place(self, plan: ExecutionPlan, places: Mapping[str, Location]) -> PlacedPlan:
        """Bind a plan: places of its inputs, outputs and constants by name, and of the arena (`ARENA`)."""
        ...

    def upload(self, array: Array, place: Location) -> None:
        """Queue a copy from a dense array of the host, which must not change before the queue finished."""
        ...

    def download(self, place: Location, array: Array) -> None:
        """Copy to the host behind everything that is queued, and wait for it."""
        ...

    def copy(self, source: Location, target: Location, nbytes: int) -> None:
        """Queue a copy inside the device."""
        ...

    def mark(self) -> Mark: ...

    def finish(self) -> None:
        """Wait for everything queued; raises `DeviceError` where it failed."""
        ...

    def close(self) -> None:
        """Wait, and free everything that was allocated; may be called twice."""
        ...


class CappedMemory:
    """Counts bytes of device memory and refuses those beyond a cap (None: no cap)."""

    def __init__(self, cap_bytes: int | None) -> None:
        self.cap_bytes = cap_bytes
        self.bytes_in_use = self.peak_bytes = 0
        self._lock = threading.Lock()

    def take(self, nbytes: int, what: str) -> None:
        """Count an allocation; raises `OutOfMemoryError` where it does not fit under the cap."""
        with self._lock:
            if self.cap_bytes is not None and self.bytes_in_use + nbytes > self.cap_bytes:
                raise OutOfMemoryError(
                    f"{what} takes {nbytes} bytes; of the memory cap of {self.cap_bytes} bytes "
                    f"{self.cap_bytes - self.bytes_in_use} are left"
                )
            self.bytes_in_use += nbytes
            self.peak_bytes = max(self.peak_bytes, self.bytes_in_use)

    def give_back(self, nbytes: int) -> None:
        """Count a release."""
        with self._lock:
            self.bytes_in_use -= nbytes


def check_places(plan: ExecutionPlan, places: Mapping[str, Location]) -> None:
    """Raise `InputError` unless every buffer with memory of its own has a place that holds it."""
    sizes = {b.name: b.nbytes for b in plan.buffers if b.kind in ("input", "output", "constant", "state")}
    sizes |= {ARENA: plan.arena_bytes} if plan.arena_bytes else {}
    for name, nbytes in sizes.items():
        place = places.get(name)
        if place is None:
            raise InputError(f"buffer {name!r}: expected a place, got none")
        if place.offset < 0 or place.offset % ALIGNMENT or place.offset + nbytes > place.allocation.nbytes:
            raise InputError(
                f"buffer {name!r}: expected {nbytes} bytes at a multiple of {ALIGNMENT} inside "
                f"{place.allocation.what} of {place.allocation.nbytes} bytes, got byte {place.offset}"
            )
