"""Scratch space on storage for activations: written and read while a run lasts, gone when it ends or dies."""

from __future__ import annotations

import os
import time
import zlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tilewright.runtime.closable import Closable
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage.buffers import HostAllocator, HostBuffer
from tilewright.runtime.storage.direct_file import new_unnamed_file
from tilewright.runtime.storage.header import block_count
from tilewright.runtime.storage.layout import BLOCK_BYTES, StepSpec, StoredStep, plan_layout
from tilewright.runtime.storage.prefetch import KEPT_STEPS, OverlapFacts, UsedStep, overlap_facts
from tilewright.runtime.storage.reader import (
    compare_checksums,
    io_facts,
    numbered_step,
    require_open,
    step_that_fits,
)
from tilewright.runtime.storage.source import IoFacts, IoOptions
from tilewright.runtime.storage.transfers import ChunkedTransfer


class ScratchStore(Closable):
    """Steps that are written with `start_write` and read with `start` (it is a `StepSource`), in any order.

    Its file has no name and takes all its space at the start: a disk too full raises `StorageError` before
    the run. A read waits for the write of the same step that was started before it; a step that was never
    written, or whose write failed, cannot be read, and none may be written while it is read. Checksums stay
    in memory.
    """

    def __init__(
        self, folder: str | os.PathLike[str], steps: Sequence[StepSpec], options: IoOptions | None = None
    ) -> None:
        self.layout = plan_layout(steps)
        self._options = options or IoOptions()
        self._file = new_unnamed_file(os.fspath(folder), self.layout.nbytes, self._options.direct)
        self._checksums = [np.zeros(block_count(step.nbytes), np.uint32) for step in self.layout.steps]
        self._writes: dict[int, ChunkedTransfer] = {}
        self._compared: set[int] = set()
        # Reads wait for writes inside their thread, so writes need threads of their own.
        self._readers = ThreadPoolExecutor(self._options.depth, "tilewright-read")
        self._writers = ThreadPoolExecutor(self._options.depth, "tilewright-write")

    @property
    def facts(self) -> IoFacts:
        """The facts of how requests are made."""
        return io_facts(self._file, self._options)

    def start_write(self, step: int, buffer: HostBuffer) -> ChunkedTransfer:
        """Begin to write a step from the beginning of `buffer`, which must not change until its end.

        Raises `InputError` for a step that does not exist or a buffer too small.
        """
        stored = step_that_fits(self.layout, step, buffer)
        require_open(self._file)
        sums = self._checksums[step]
        verify = self._options.verify != "never"

        def request(begin: int, end: int) -> None:
            part = buffer.view[begin:end]
            if verify:
                blocks = [zlib.crc32(part[at : at + BLOCK_BYTES]) for at in range(0, len(part), BLOCK_BYTES)]
                sums[begin // BLOCK_BYTES :][: len(blocks)] = blocks
            self._file.write_from(part, stored.offset + begin, stored.name)

        self._compared.discard(step)
        self._writes[step] = ChunkedTransfer(
            self._writers, step, stored.nbytes, self._options.chunk_bytes, request, False, lambda: None
        )
        return self._writes[step]

    def start(self, step: int, buffer: HostBuffer) -> ChunkedTransfer:
        """Begin to read a step as it was last written; raises `InputError` where it never was."""
        stored = step_that_fits(self.layout, step, buffer)
        require_open(self._file)
        written = self._writes.get(step)
        if written is None:
            raise InputError(f"step {stored.name!r:.100} of {self._file.path} was not written yet")
        verify = self._options.verify
        compare = verify == "always" or (verify == "first" and step not in self._compared)

        def request(begin: int, end: int) -> None:
            written.wait()
            part = buffer.view[begin:end]
            self._file.read_into(part, stored.offset + begin, stored.name)
            if compare:
                compare_checksums(part, begin, self._checksums[step], self._file.path, stored)
            if self._options.drop_cache and not self._file.direct:
                self._file.forget(stored.offset + begin, end - begin)

        return ChunkedTransfer(
            self._readers,
            step,
            stored.nbytes,
            self._options.chunk_bytes,
            request,
            compare,
            lambda: self._compared.add(step),
        )

    def settle(self) -> None:
        """Wait for all writes; raises the `StorageError` of the first step that could not be written."""
        for step in sorted(self._writes):
            self._writes[step].wait()

    def drop_cache(self) -> None:
        """Have everything written out and forgotten by the page cache, where requests are not direct."""
        if self._file.direct:
            return
        try:
            os.fdatasync(self._file.fileno())
        except OSError as error:
            raise StorageError(f"{self._file.path}: writing out failed ({error.strerror or error})") from None
        self._file.forget(0, 0)

    def _release(self) -> None:
        """Wait for requests in flight, drop those that are not, and give the space back."""
        self._writers.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
        self._file.close()


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
