"""Page-locked host memory of a GPU's context: storage reads into it, copies from it run beside kernels."""

from __future__ import annotations

import ctypes

from tilewright.runtime.cuda.context import Context
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
