"""The measured rates of storage: sequential reading and writing with the settings that a run will use."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np

from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage.buffers import AlignedAllocator, HostAllocator, HostBuffer
from tilewright.runtime.storage.layout import BLOCK_BYTES, StepSpec, TensorSpec
from tilewright.runtime.storage.prefetch import OverlapFacts, Prefetcher
from tilewright.runtime.storage.scratch import ScratchStore
from tilewright.runtime.storage.source import IoOptions, PendingTransfer, StepSource


@dataclass(frozen=True)
class StorageBandwidth:
    """Measured rates of one folder's storage, in bytes per second.

    mixed_bytes_per_s: read and written together, where as much is read as is written at the same time.
    read_bytes, write_bytes: how much was moved to find out the first two.
    direct: whether the page cache was passed; where it could not be, `note` says why, written bytes were
    flushed (and that timed) and then dropped from it.
    chunk_bytes, depth: size and number of the requests in flight.
    """

    folder: str
    read_bytes_per_s: float
    write_bytes_per_s: float
    mixed_bytes_per_s: float
    read_bytes: int
    write_bytes: int
    direct: bool
    note: str
    chunk_bytes: int
    depth: int


def measure_storage(
    folder: str | os.PathLike[str],
    options: IoOptions | None = None,
    *,
    seconds: float = 1.0,
    max_bytes: int = 1 << 30,
    allocator: HostAllocator | None = None,
) -> StorageBandwidth:
    """Write a nameless scratch file for a third of `seconds`, read it for a third, do both for the last.

    At most `max_bytes` and half of what is free are taken, and given back. Bytes are random (drives may
    compress) and checksums are left out: they are compared once in a run, not every time. Raises
    `StorageError` where the folder has no room or fails, `InputError` for too small a time or size.
    """
    options = replace(options or IoOptions(), verify="never", drop_cache=True)
    allocator = allocator or AlignedAllocator()
    step_bytes = options.chunk_bytes * options.depth
    if seconds <= 0 or max_bytes < 2 * BLOCK_BYTES:
        raise InputError(
            f"expected more than 0 s and {2 * BLOCK_BYTES} bytes or more, got {seconds} s, {max_bytes} bytes"
        )
    count, step_bytes = _affordable(os.fspath(folder), step_bytes, max_bytes)
    steps = [
        StepSpec(f"part {number}", (TensorSpec(f"part {number}", "uint8", (step_bytes,)),))
        for number in range(count)
    ]
    with ScratchStore(folder, steps, options) as scratch, ExitStack() as stack:
        noise = allocator.allocate(step_bytes)
        stack.callback(allocator.free, noise)
        noise.view[:] = np.random.default_rng(0).bytes(noise.nbytes)
        written, write_s = _write(scratch, noise, seconds / 3)
        read = read_for(scratch, range(written), allocator, seconds / 3)
        mixed = _mix(scratch, written, noise, allocator, seconds / 3)
        facts = scratch.facts
    return StorageBandwidth(
        folder=os.fspath(folder),
        read_bytes_per_s=read.read_bytes_per_s,
        write_bytes_per_s=written * step_bytes / write_s,
        mixed_bytes_per_s=mixed,
        read_bytes=read.nbytes,
        write_bytes=written * step_bytes,
        direct=facts.direct,
        note=facts.note,
        chunk_bytes=facts.chunk_bytes,
        depth=facts.depth,
    )


def read_for(source: StepSource, steps: range, allocator: HostAllocator, seconds: float) -> OverlapFacts:
    """Read `steps` in turn, again and again, for about `seconds` and do nothing else.

    Its `read_bytes_per_s` is the rate of the source as it stands, for instance of a run's own store.
    """
    end = time.perf_counter() + seconds
    again = itertools.takewhile(lambda _: time.perf_counter() < end, itertools.cycle(steps))
    schedule = itertools.chain(steps[:1], again)
    with Prefetcher(source, schedule, allocator) as prefetcher:
        for loaded in prefetcher:
            loaded.release()
        return prefetcher.overlap()


def _affordable(folder: str, step_bytes: int, max_bytes: int) -> tuple[int, int]:
    """Return how many steps of how many bytes fit; one step is all where memory or storage is short."""
    try:
        space = os.statvfs(folder)
    except OSError as error:
        raise StorageError(f"{folder}: its free space cannot be found ({error.strerror or error})") from None
    room = min(max_bytes, space.f_bavail * space.f_frsize // 2)
    if room < 2 * BLOCK_BYTES:
        raise StorageError(f"{folder}: measuring takes {4 * BLOCK_BYTES} free bytes, there are {2 * room}")
    step_bytes = min(step_bytes, room // 2 // BLOCK_BYTES * BLOCK_BYTES)
    return room // step_bytes, step_bytes


def _write(scratch: ScratchStore, buffer: HostBuffer, seconds: float) -> tuple[int, float]:
    """Write steps in order for about `seconds`: how many, and the time until all were on storage."""
    began_s = time.perf_counter()
    written = 0
    with _Writes(scratch, buffer) as writes:
        for number in range(len(scratch.layout.steps)):
            if number > 1 and time.perf_counter() > began_s + seconds:
                break
            writes.start(number)
            written += 1
    scratch.drop_cache()
    return written, time.perf_counter() - began_s


def _mix(
    scratch: ScratchStore, written: int, buffer: HostBuffer, allocator: HostAllocator, seconds: float
) -> float:
    """Read the first half of the written steps and write the second, in turn: bytes per second."""
    half = written // 2
    numbers = itertools.cycle(range(half, written))
    began_s = time.perf_counter()
    again = itertools.takewhile(
        lambda _: time.perf_counter() < began_s + seconds, itertools.cycle(range(half))
    )
    moved = 0
    with (
        Prefetcher(scratch, itertools.chain(range(1), again), allocator) as prefetcher,
        _Writes(scratch, buffer) as writes,
    ):
        for loaded in prefetcher:
            writes.start(next(numbers))
            moved += 2 * loaded.stored.nbytes
            loaded.release()
    scratch.drop_cache()
    return moved / (time.perf_counter() - began_s)


class _Writes:
    """Two writes at a time out of one buffer; the end of the block waits for them."""

    def __init__(self, scratch: ScratchStore, buffer: HostBuffer) -> None:
        self._scratch, self._buffer = scratch, buffer
        self._pending: deque[PendingTransfer] = deque()

    def start(self, number: int) -> None:
        self._pending.append(self._scratch.start_write(number, self._buffer))
        if len(self._pending) > 2:
            self._pending.popleft().wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while error is None and self._pending:
                self._pending.popleft().wait()
        finally:  # nothing may use the buffer any more
            for pending in self._pending:
                pending.cancel()
