"""Activations on their way out: filled by the user in one buffer while another is written."""

from __future__ import annotations

import time
from collections import deque

from tilewright.runtime.closable import Closable
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.buffers import HostAllocator, HostBuffer
from tilewright.runtime.storage.layout import StoredStep
from tilewright.runtime.storage.overlap import OverlapFacts, UsedStep, overlap_facts
from tilewright.runtime.storage.prefetch import KEPT_STEPS
from tilewright.runtime.storage.reader import numbered_step
from tilewright.runtime.storage.scratch import ScratchStore
from tilewright.runtime.storage.transfers import ChunkedTransfer


class OpenStep:
    """A step to be filled: `buffer`, or the tensors in it, and then `StepWriter.submit`."""

    def __init__(self, number: int, stored: StoredStep, buffer: HostBuffer) -> None:
        self.number, self.stored, self.buffer = number, stored, buffer

    def arrays(self) -> dict[str, Array]:
        """The tensors by name as arrays over the buffer, to be filled before `submit`."""
        return self.stored.arrays(self.buffer.view)


class StepWriter(Closable):
    """Writes steps of a scratch store behind the user's back, at most as many at once as there are buffers.

    A step that could not be written raises its `StorageError` at the next `open`, `submit` or `flush`.
    One thread uses it. `close` at any time frees everything; what was not flushed may not be written.
    """

    def __init__(self, scratch: ScratchStore, allocator: HostAllocator, buffers: int = 2) -> None:
        if buffers < 1:
            raise InputError(f"expected at least 1 buffer, got {buffers}")
        self._scratch, self._allocator = scratch, allocator
        self._all: list[HostBuffer] = []
        self._free: list[HostBuffer] = []
        self._behind: deque[tuple[HostBuffer, ChunkedTransfer]] = deque()
        self._used: deque[UsedStep] = deque(maxlen=KEPT_STEPS)
        try:
            for _ in range(buffers):
                self._all.append(allocator.allocate(scratch.layout.largest_step_bytes))
        except BaseException:
            self.close()
            raise
        self._free = list(self._all)

    @property
    def host_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._all)

    def overlap(self) -> OverlapFacts:
        """Times of the steps that are written, the latest `KEPT_STEPS` of them; waits are those of `open`."""
        return overlap_facts(tuple(self._used))

    def open(self, step: int) -> OpenStep:
        """A buffer for this step, waited for where all are being written."""
        stored = numbered_step(self._scratch.layout.steps, step)
        self._retire_done()
        if not self._free:
            if not self._behind:
                raise InputError(f"all {len(self._all)} buffers are open: submit a step before the next")
            self._retire()
        return OpenStep(step, stored, self._free.pop())

    def submit(self, opened: OpenStep) -> None:
        """Begin to write a step that was filled; neither it nor its arrays may be touched afterwards."""
        pending = self._scratch.start_write(opened.number, opened.buffer)
        self._behind.append((opened.buffer, pending))
        self._retire_done()

    def flush(self) -> None:
        """Wait until everything submitted is written."""
        while self._behind:
            self._retire()

    def _release(self) -> None:
        """Drop writes that have not begun, wait for those in flight and free the buffers, open ones too."""
        while self._behind:
            self._behind.pop()[1].cancel()
        self._free = []
        while self._all:
            self._allocator.free(self._all.pop())

    def _retire_done(self) -> None:
        while self._behind and self._behind[0][1].done():
            self._retire()

    def _retire(self) -> None:
        """Wait for the oldest write; its failure stays, so that every later call raises it as well."""
        buffer, pending = self._behind[0]
        asked_s = time.perf_counter()
        transfer = pending.wait()
        self._used.append(UsedStep(transfer, asked_s, time.perf_counter()))
        self._behind.popleft()
        self._free.append(buffer)
