"""Scratch space on storage for activations: written and read while a run lasts, gone when it ends or dies."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tilewright.runtime.closable import Closable
from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage.buffers import HostBuffer
from tilewright.runtime.storage.direct_file import new_unnamed_file
from tilewright.runtime.storage.header import block_count
from tilewright.runtime.storage.layout import BLOCK_BYTES, StepSpec, plan_layout
from tilewright.runtime.storage.reader import compare_checksums, io_facts, require_open, step_that_fits
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
        """How requests are made."""
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
        """Where requests are not direct: have everything written out and forgotten by the page cache."""
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
