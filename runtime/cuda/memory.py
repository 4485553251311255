"""GPU memory of loaded plans: what they share (weights, modules), what each has alone, pinned staging."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.cuda.context import Context
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.state import StateMemory
from tilewright.runtime.libraries.provider import Provider
from tilewright.runtime.plan.check import ALIGNMENT
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan
from tilewright.runtime.shared_memory import Shared, content_key

#: CU_MEMHOSTALLOC_WRITECOMBINED of the driver's header
_WRITE_COMBINED = 4


class Destroy(Protocol):
    """Calls a driver function that frees; failures of a context that is beyond use are not reported."""

    def __call__(self, function: str, *handle: Any) -> None: ...


@dataclass
class CudaPool:
    """Things that plans on one device share: weights by content, modules by binary, open libraries."""

    weights: Shared[int] = field(default_factory=Shared)
    modules: Shared[Any] = field(default_factory=Shared)
    libraries: Shared[Provider] = field(default_factory=Shared)


class CudaState(StateMemory):
    """See `StateMemory`: one block for each array, and the stream on which all plans that share it run."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        self._context = context.again()
        self.addresses: dict[str, int] = {}
        self.stream: Any = None
        try:
            with self._context.current():
                flag = int(context.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
                self.stream = self._context.call("cuStreamCreate", flag)
        except BaseException:
            self.close()
            raise

    def _allocate(self, buffer: Buffer) -> None:
        with self._context.current():
            what = f"state {buffer.title!r}"
            self.addresses[buffer.title] = self._context.allocate(buffer.nbytes, what)

    def _upload(self, buffer: Buffer, array: Array) -> None:
        self._copy("cuMemcpyHtoDAsync", self.addresses[buffer.title], array.ctypes.data, array.nbytes)

    def _download(self, buffer: Buffer) -> Array:
        array = np.empty(buffer.shape, DTYPES[buffer.dtype])
        self._copy("cuMemcpyDtoHAsync", array.ctypes.data, self.addresses[buffer.title], array.nbytes)
        return array

    def _copy(self, function: str, target: int, source: int, nbytes: int) -> None:
        """Copy behind everything that is queued, and wait for it."""
        with self._context.current():
            if nbytes:
                self._context.call(function, target, source, nbytes, self.stream, doing="copying state")
            self._context.call("cuStreamSynchronize", self.stream, doing="copying state")

    def _release(self) -> None:
        # After a failure of the context handles cannot be freed, which would only repeat that failure.
        with self.lock:
            with suppress(DeviceError), self._context.current():
                while self.addresses:
                    self._context.call("cuMemFree", self.addresses.popitem()[1])
                if self.stream is not None:
                    self._context.call("cuStreamDestroy", self.stream)
            with suppress(DeviceError):
                self._context.release()


class CudaPlanMemory:
    """Addresses of all buffers of one loaded plan. The context must be current in every method."""

    def __init__(self, context: Context, pool: CudaPool, plan: ExecutionPlan, stream: Any) -> None:
        self.addresses: dict[str, int] = {}
        self._context, self._pool, self._plan, self._stream = context, pool, plan, stream
        self._blocks: list[int] = []
        self._weights: list[tuple[bytes, int]] = []

    def allocate(self, constants: Mapping[str, Array], state: StateMemory | None = None) -> None:
        """Take arena, inputs and outputs, and share or upload the constants; `state` has its own memory."""
        plan = self._plan
        for buffer in plan.states:
            assert isinstance(state, CudaState)
            self.addresses[buffer.name] = state.addresses[buffer.title]
        arena = self._new_block(plan.arena_bytes, "the arena")
        for kind in ("input", "output"):
            buffers = [buffer for buffer in plan.buffers if buffer.kind == kind]
            sizes = [-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers]
            address = self._new_block(sum(sizes), f"all buffers of kind {kind}")
            for buffer, size in zip(buffers, sizes, strict=True):
                self.addresses[buffer.name] = address
                address += size
        for buffer in plan.buffers:
            if buffer.kind == "constant":
                self.addresses[buffer.name] = self._shared(buffer, constants[buffer.name])
        self._address_parts(arena)

    def place(self, addresses: Mapping[str, int], arena: int) -> None:
        """Take memory that stays the caller's, for inputs, outputs, constants and the arena."""
        self.addresses.update(addresses)
        self._address_parts(arena)

    def _address_parts(self, arena: int) -> None:
        """Addresses of buffers inside the arena and inside others."""
        plan = self._plan
        for buffer in plan.buffers:
            if buffer.kind == "arena":
                self.addresses[buffer.name] = arena + buffer.offset
        for buffer in plan.buffers:
            if buffer.kind == "alias":
                owner, offset = plan.locate(buffer.name)
                self.addresses[buffer.name] = self.addresses[owner.name] + offset

    def _new_block(self, nbytes: int, what: str) -> int:
        if nbytes == 0:
            return 0
        address = self._context.allocate(nbytes, what)
        self._blocks.append(address)
        return address

    def _shared(self, buffer: Buffer, array: Array) -> int:
        def upload() -> int:
            address = self._context.allocate(buffer.nbytes, f"constant {buffer.title!r}")
            if array.nbytes:
                source = array.ctypes.data
                self._context.call("cuMemcpyHtoDAsync", address, source, array.nbytes, self._stream)
                # Whoever finds it in the pool may use it at once, from any stream.
                self._context.call("cuStreamSynchronize", self._stream, doing="copying the constants")
            return address

        key = content_key(array), buffer.nbytes
        address = self._pool.weights.take(key, upload)
        self._weights.append(key)
        return address

    def release(self, destroy: Destroy) -> None:
        """Free what is this plan's alone and give back what it shares."""
        while self._weights:
            self._pool.weights.give_back(self._weights.pop(), lambda address: destroy("cuMemFree", address))
        while self._blocks:
            destroy("cuMemFree", self._blocks.pop())


class Staging:
    """Pinned host memory for buffers of a plan, as NumPy arrays: copies from and to it run beside kernels."""

    def __init__(self, context: Context, buffers: list[Buffer], *, only_written: bool = False) -> None:
        """only_written: the host never reads it, so that writes may go past the caches (write-combined)."""
        self._context = context
        self.address = 0
        self.arrays: dict[str, Array] = {}
        sizes = [-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers]
        nbytes = max(1, sum(sizes))
        if only_written:
            self.address = int(context.call("cuMemHostAlloc", nbytes, _WRITE_COMBINED))
        else:
            self.address = int(context.call("cuMemAllocHost", nbytes))
        offset = 0
        for buffer, size in zip(buffers, sizes, strict=True):
            raw = (ctypes.c_uint8 * size).from_address(self.address + offset)
            dtype = DTYPES[buffer.dtype]
            flat = np.frombuffer(memoryview(raw), np.uint8)[: buffer.size * dtype.itemsize]
            self.arrays[buffer.name] = flat.view(dtype).reshape(buffer.shape)
            offset += size

    def release(self, destroy: Destroy) -> None:
        """Free the memory; the arrays must not be touched afterwards."""
        self.arrays = {}
        if self.address:
            destroy("cuMemFreeHost", self.address)
            self.address = 0
