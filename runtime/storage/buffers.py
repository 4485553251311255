"""Host memory that direct reads and writes use: aligned to pages, page-locked where a device asks for it."""

from __future__ import annotations

import mmap
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.layout import PAGE_BYTES, round_up


@dataclass(frozen=True, eq=False)
class HostBuffer:
    """Writable host memory.

    address: of its first byte, a multiple of `PAGE_BYTES`. nbytes: its size, a multiple of it as well.
    view: its bytes. owner: what keeps the memory, for the allocator alone.
    """

    address: int
    nbytes: int
    view: memoryview = field(repr=False)
    owner: object = field(repr=False)


class HostAllocator(Protocol):
    """A source of buffers; both calls may come from any thread."""

    @property
    def pinned(self) -> bool:
        """True where the memory is page-locked for a device."""
        ...

    def allocate(self, nbytes: int) -> HostBuffer:
        """At least `nbytes` of memory; raises an error of `runtime.errors` where there is too little."""
        ...

    def free(self, buffer: HostBuffer) -> None:
        """Give a buffer back; neither it nor arrays over it may be used afterwards."""
        ...


class AlignedAllocator:
    """Plain memory in pages of the system's own; it goes when the last array over it goes."""

    pinned = False

    def allocate(self, nbytes: int) -> HostBuffer:
        """Zeroed memory; `InputError` for a size below 1, MemoryError where there is too little."""
        if nbytes < 1:
            raise InputError(f"expected a buffer of at least 1 byte, got {nbytes}")
        size = round_up(nbytes, PAGE_BYTES)
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"a host buffer of {size} bytes cannot be had ({error.strerror})") from None
        # Fewer, larger pages: direct reads pin every page of the buffer anew.
        with suppress(OSError):  # kernels may be built without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        view = memoryview(memory)
        pages = np.frombuffer(view, np.uint8)
        # Touched now, they cost the first read no time.
        pages[::PAGE_BYTES] = 0
        return HostBuffer(pages.ctypes.data, size, view, memory)

    def free(self, buffer: HostBuffer) -> None:
        """Nothing but to forget the buffer: the last reference unmaps the memory."""
