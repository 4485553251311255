"""Memory of one OpenCL device: what plans share (weights, programs), what each owns, how much is in use."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import InputError, OutOfMemoryError
from tilewright.runtime.interface.state import StateMemory
from tilewright.runtime.opencl.driver import driver_errors
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan
from tilewright.runtime.shared_memory import Shared, content_key


class OpenClPool:
    """Counts the bytes of a device that are in use and holds what several plans share."""

    def __init__(self, cl: Any, context: Any, queue: Any, device: Any, name: str) -> None:
        self.weights: Shared[Any] = Shared()
        self.programs: Shared[Any] = Shared()
        self.name = name
        self._cl, self._context, self._queue = cl, context, queue
        self._total = int(device.global_mem_size)
        self._in_use = 0
        self._lock = threading.Lock()

    @property
    def bytes_in_use(self) -> int:
        """Bytes of all buffers that are allocated now."""
        return self._in_use

    def allocate(self, nbytes: int, what: str) -> Any:
        """A buffer of at least one byte; raises `OutOfMemoryError` naming what it was for."""
        size = max(1, nbytes)
        with self._lock:
            free = self._total - self._in_use
            if size > free:
                raise OutOfMemoryError(
                    f"{what} takes {size} bytes; {self.name} has {free} of {self._total} free"
                )
            # Drivers allocate at the first use, so that too much memory would show as a kernel's failure.
            with driver_errors(self._cl, f"allocating {size} bytes for {what}"):
                buffer = self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, size)
            self._in_use += size
        return buffer

    def free(self, buffer: Any) -> None:
        """Give back a buffer of `allocate`."""
        with self._lock:
            self._in_use -= buffer.size
            buffer.release()

    def copy(self, target: Any, source: Any, what: str) -> None:
        """Copy an array to a buffer or a buffer to an array, to the end; nothing where it has no bytes."""
        array = source if hasattr(source, "nbytes") else target
        if array.nbytes:
            with driver_errors(self._cl, f"copying {what}"):
                self._cl.enqueue_copy(self._queue, target, source, is_blocking=True)

    def upload(self, name: str, nbytes: int, array: Array) -> Any:
        """A new buffer that holds `array`."""
        buffer = self.allocate(nbytes, f"constant {name!r}")
        try:
            self.copy(buffer, array, f"constant {name!r} to the device")
        except BaseException:
            self.free(buffer)
            raise
        return buffer


class OpenClState(StateMemory):
    """See `StateMemory`: one buffer for each array."""

    def __init__(self, pool: OpenClPool) -> None:
        super().__init__()
        self._pool = pool
        self.memory: dict[str, Any] = {}

    def _allocate(self, buffer: Buffer) -> None:
        self.memory[buffer.title] = self._pool.allocate(buffer.nbytes, f"state {buffer.title!r}")

    def _upload(self, buffer: Buffer, array: Array) -> None:
        self._pool.copy(self.memory[buffer.title], array, f"state {buffer.title!r} to the device")

    def _download(self, buffer: Buffer) -> Array:
        array = np.empty(buffer.shape, DTYPES[buffer.dtype])
        # The byte view spares pyopencl, which copies raw bytes, element types it does not know.
        flat = array.reshape(-1).view(np.uint8)
        self._pool.copy(flat, self.memory[buffer.title], f"state {buffer.title!r} to the host")
        return array

    def _release(self) -> None:
        with self.lock:
            while self.memory:
                self._pool.free(self.memory.popitem()[1])


class OpenClPlanMemory:
    """The buffers and programs of one loaded plan: its own ones, and shared ones until `release`."""

    def __init__(self, pool: OpenClPool, plan: ExecutionPlan) -> None:
        self._pool, self._plan = pool, plan
        self._own: list[Any] = []
        self._shared: list[tuple[Shared[Any], Hashable, Callable[[Any], None]]] = []
        self._buffers: dict[str, Any] = {}
        self._arena: Any = None

    def allocate(self, constants: Mapping[str, Array], state: StateMemory | None = None) -> None:
        """Make every buffer and fill the constants; `state` has the memory of what keeps its content."""
        self._arena = self._new(self._plan.arena_bytes, "the arena")
        for buffer in self._plan.buffers:
            if buffer.kind in ("input", "output"):
                self._buffers[buffer.name] = self._new(buffer.nbytes, f"{buffer.kind} {buffer.title!r}")
        for buffer in self._plan.states:
            assert isinstance(state, OpenClState)
            self._buffers[buffer.name] = state.memory[buffer.title]
        for buffer in self._plan.buffers:
            if buffer.kind == "constant":
                self._buffers[buffer.name] = self._weight(buffer.name, constants[buffer.name])

    def _new(self, nbytes: int, what: str) -> Any:
        buffer = self._pool.allocate(nbytes, what)
        self._own.append(buffer)
        return buffer

    def _weight(self, name: str, array: Array) -> Any:
        nbytes = self._plan.buffer_by_name[name].nbytes
        key = content_key(array), nbytes
        buffer = self._pool.weights.take(key, lambda: self._pool.upload(name, nbytes, array))
        self._shared.append((self._pool.weights, key, self._pool.free))
        return buffer

    def program(self, source: str, build: Callable[[], Any]) -> Any:
        """The program of `source`, built where no loaded plan has it."""
        program = self._pool.programs.take(source, build)
        self._shared.append((self._pool.programs, source, lambda _: None))
        return program

    def region(self, name: str) -> tuple[Any, int]:
        """The OpenCL buffer that owns the memory of `name` and the byte offset inside it."""
        owner, offset = self._plan.locate(name)
        if owner.kind == "arena":
            return self._arena, owner.offset + offset
        return self._buffers[owner.name], offset

    def argument(self, buffer: Buffer, alignment: int) -> Any:
        """Return a kernel's argument for `buffer`; raises `InputError` if the device cannot start there."""
        owner, offset = self.region(buffer.name)
        if buffer.nbytes == 0 or (offset == 0 and buffer.nbytes == owner.size):
            return owner
        if offset % alignment:
            raise InputError(
                f"buffer {buffer.name!r} starts at byte {offset}; "
                f"{self._pool.name} needs a multiple of {alignment}"
            )
        return owner.get_sub_region(offset, buffer.nbytes)

    def release(self) -> None:
        """Free what is this plan's own, and what it shared where it is the last user."""
        self._buffers, self._arena = {}, None
        while self._own:
            self._pool.free(self._own.pop())
        while self._shared:
            pool, key, free = self._shared.pop()
            pool.give_back(key, free)
