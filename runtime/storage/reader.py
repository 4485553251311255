"""Reading a store's steps into host memory: several large direct requests in flight, checksums compared."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from tilewright.runtime.closable import Closable
from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage.buffers import HostBuffer
from tilewright.runtime.storage.direct_file import DirectFile, open_to_read
from tilewright.runtime.storage.header import Checksums, read_header
from tilewright.runtime.storage.layout import BLOCK_BYTES, StoredStep, StoreLayout
from tilewright.runtime.storage.source import IoFacts, IoOptions, Transfer
from tilewright.runtime.storage.transfers import ChunkedTransfer


class StepReader(Closable):
    """A `StepSource` over a store; safe to use from several threads, one transfer per step and buffer each.

    Raises `InputError` naming the file where it is no store, `StorageError` where storage fails.
    A file that is changed while it is open fails at the next request; one that is replaced stays as it was.
    """

    def __init__(self, path: str | os.PathLike[str], options: IoOptions | None = None) -> None:
        self._options = options or IoOptions()
        self._file = open_to_read(os.fspath(path), self._options.direct)
        try:
            self._state = self._file.state()
            header = read_header(self._file)
        except BaseException:
            self._file.close()
            raise
        self.layout: StoreLayout = header.layout
        self._checksums = header.checksums
        self._compared: set[int] = set()
        self._pool = ThreadPoolExecutor(self._options.depth, "tilewright-read")

    @property
    def facts(self) -> IoFacts:
        """The facts of how requests are made."""
        return io_facts(self._file, self._options)

    def start(self, step: int, buffer: HostBuffer) -> ChunkedTransfer:
        """Begin to read; raises `InputError` for a step that does not exist or a buffer too small."""
        stored = step_that_fits(self.layout, step, buffer)
        require_open(self._file)
        verify = self._options.verify
        compare = verify == "always" or (verify == "first" and step not in self._compared)

        def request(begin: int, end: int) -> None:
            part = buffer.view[begin:end]
            self._file.read_into(part, stored.offset + begin, stored.name)
            if self._file.state() != self._state:
                raise StorageError(
                    f"{self._file.path}: the file was changed while step {stored.name!r:.100} was read "
                    f"at byte {stored.offset + begin}"
                )
            if compare:
                compare_checksums(part, begin, self._checksums[step], self._file.path, stored)
            if self._options.drop_cache and not self._file.direct:
                self._file.forget(stored.offset + begin, end - begin)

        def at_end() -> None:
            if compare:
                self._compared.add(step)

        return ChunkedTransfer(
            self._pool, step, stored.nbytes, self._options.chunk_bytes, request, compare, at_end
        )

    def read(self, step: int, buffer: HostBuffer) -> Transfer:
        """Read a step and wait for it; raises as `start` and `wait` do."""
        return self.start(step, buffer).wait()

    def _release(self) -> None:
        """Wait for requests in flight, drop those that are not, and close the file."""
        self._pool.shutdown(cancel_futures=True)
        self._file.close()


def io_facts(file: DirectFile, options: IoOptions) -> IoFacts:
    """Return the facts of a reader or writer with these options on this file."""
    return IoFacts(file.path, file.direct, file.note, options.chunk_bytes, options.depth, options.verify)


def require_open(file: DirectFile) -> None:
    """Raise `InputError` where the file was closed already."""
    if file.closed:
        raise InputError(f"{file.path}: it was closed already")


def step_that_fits(layout: StoreLayout, step: int, buffer: HostBuffer) -> StoredStep:
    """The step of this number; raises `InputError` where there is none or `buffer` is too small."""
    stored = numbered_step(layout.steps, step)
    if buffer.nbytes < stored.nbytes:
        raise InputError(
            f"step {stored.name!r:.100}: expected a buffer of {stored.nbytes} bytes, got {buffer.nbytes}"
        )
    return stored


def numbered_step(steps: Sequence[StoredStep], step: int) -> StoredStep:
    """The step of this number; raises `InputError` where there is none."""
    if not 0 <= step < len(steps):
        raise InputError(f"expected a step in 0..{len(steps) - 1}, got {step}")
    return steps[step]


def compare_checksums(
    part: memoryview, begin: int, expected: Checksums, path: str, stored: StoredStep
) -> None:
    """Compare each block of `part`, which is the step from byte `begin` on; raises `StorageError`."""
    for at in range(0, len(part), BLOCK_BYTES):
        checksum = zlib.crc32(part[at : at + BLOCK_BYTES])
        stored_sum = int(expected[(begin + at) // BLOCK_BYTES])
        if checksum != stored_sum:
            raise StorageError(
                f"{path}: step {stored.name!r:.100}: the bytes from {stored.offset + begin + at} on have the "
                f"checksum {checksum:08x}, {stored_sum:08x} was written"
            )
