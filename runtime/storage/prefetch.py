"""Steps read ahead of their use into a ring of host buffers, in an order, and the time that this hid."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tilewright.runtime.closable import Closable
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.storage.buffers import HostAllocator, HostBuffer
from tilewright.runtime.storage.layout import StoredStep
from tilewright.runtime.storage.source import PendingTransfer, StepSource, Transfer


@dataclass(frozen=True)
class UsedStep:
    """A step that a user of a prefetcher took; seconds of `time.perf_counter`.

    asked_s: when the user asked for it; got_s: when it had it. What lies between is time lost to storage.
    """

    transfer: Transfer
    asked_s: float
    got_s: float

    @property
    def waited_s(self) -> float:
        """Seconds for which the user stood still."""
        return self.got_s - self.asked_s


@dataclass(frozen=True)
class OverlapFacts:
    """Sums over used steps.

    busy_s: seconds in which at least one step was being read. waited_s: seconds of the user standing still;
    first_wait_s of them were for the first step, before which there is nothing to do.
    span_s: from the first read's beginning to when the last step was there.
    """

    steps: int
    nbytes: int
    busy_s: float
    waited_s: float
    first_wait_s: float
    span_s: float

    @property
    def hidden_share(self) -> float:
        """The share of the reading time that the user did not stand still, 0 to 1; 1 if nothing was read."""
        if self.busy_s <= 0:
            return 1.0
        return min(1.0, max(0.0, 1 - self.waited_s / self.busy_s))

    @property
    def read_bytes_per_s(self) -> float:
        """Bytes over the seconds in which reads were under way; 0 if nothing was read."""
        return self.nbytes / self.busy_s if self.busy_s > 0 else 0.0


def overlap_facts(used: Sequence[UsedStep]) -> OverlapFacts:
    """Sum up; an empty sequence gives zeros."""
    if not used:
        return OverlapFacts(0, 0, 0.0, 0.0, 0.0, 0.0)
    intervals = sorted((u.transfer.began_s, u.transfer.ended_s) for u in used)
    busy, reached = 0.0, intervals[0][0]
    for began, ended in intervals:
        busy += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return OverlapFacts(
        steps=len(used),
        nbytes=sum(u.transfer.nbytes for u in used),
        busy_s=busy,
        waited_s=sum(u.waited_s for u in used),
        first_wait_s=used[0].waited_s,
        span_s=max(u.got_s for u in used) - intervals[0][0],
    )


#: steps of which a prefetcher keeps the times, the latest ones
KEPT_STEPS = 65536


class LoadedStep:
    """A step in host memory, the user's until `release` (or the end of its `with` block).

    number: of the step in the source. stored: its tensors and where they begin in `buffer`.
    """

    def __init__(
        self, number: int, stored: StoredStep, buffer: HostBuffer, give_back: Callable[[HostBuffer], None]
    ) -> None:
        self.number, self.stored, self.buffer = number, stored, buffer
        self._give_back = give_back
        self._held = True

    def arrays(self) -> dict[str, Array]:
        """The tensors by name as arrays over the buffer; they must not be used after `release`."""
        return self.stored.arrays(self.buffer.view)

    def release(self) -> None:
        """Let the next step be read into the buffer; from any thread, after every copy out of it."""
        if self._held:
            self._held = False
            self._give_back(self.buffer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Prefetcher(Closable):
    """Reads the steps of `schedule` ahead of `take`, until all buffers are full.

    The schedule may repeat steps and need not end. Reading begins at once. One thread takes, any releases.
    A step that could not be read raises its error where it is taken, and from then on.
    `close` at any time frees everything.
    """

    def __init__(
        self, source: StepSource, schedule: Iterable[int], allocator: HostAllocator, buffers: int = 2
    ) -> None:
        if buffers < 1:
            raise InputError(f"expected at least 1 buffer, got {buffers}")
        self._source, self._schedule, self._allocator = source, iter(schedule), allocator
        self._lock = threading.Lock()
        self._buffers: list[HostBuffer] = []
        self._ahead: deque[tuple[int, HostBuffer, PendingTransfer]] = deque()
        self._used: deque[UsedStep] = deque(maxlen=KEPT_STEPS)
        self._failure: DeviceError | InputError | None = None
        self._ended = False
        try:
            for _ in range(buffers):
                self._buffers.append(allocator.allocate(source.layout.largest_step_bytes))
            for buffer in self._buffers:
                self._read_next(buffer)
        except BaseException:
            self.close()
            raise

    @property
    def host_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)

    @property
    def used(self) -> tuple[UsedStep, ...]:
        """Times of the steps taken so far, the latest `KEPT_STEPS` of them."""
        return tuple(self._used)

    def overlap(self) -> OverlapFacts:
        """The sum of `used`."""
        return overlap_facts(self.used)

    def take(self) -> LoadedStep | None:
        """The next step of the schedule, waited for; None at its end.

        Raises `StorageError` naming file, step and offset; `InputError` for a step that the source
        does not have, after `close`, or where every buffer is still with the user (it would wait for itself).
        """
        asked_s = time.perf_counter()
        with self._lock:
            if self._closed:
                raise InputError("the prefetcher was closed")
            if not self._ahead:
                if self._failure is not None:
                    raise self._failure
                if self._ended:
                    return None
                raise InputError(
                    f"all {len(self._buffers)} buffers are in use: release a step before the next is taken"
                )
            number, buffer, pending = self._ahead[0]
        transfer = pending.wait()
        with self._lock:
            if self._closed:
                raise InputError("the prefetcher was closed")
            self._ahead.popleft()
        self._used.append(UsedStep(transfer, asked_s, time.perf_counter()))
        return LoadedStep(number, self._source.layout.steps[number], buffer, self._take_back)

    def __iter__(self) -> Iterator[LoadedStep]:
        """Take step after step until the schedule ends."""
        while (loaded := self.take()) is not None:
            yield loaded

    def _release(self) -> None:
        """Stop reading, wait for requests in flight and free the buffers, those of the user as well."""
        with self._lock:
            ahead, self._ahead = list(self._ahead), deque()
            buffers, self._buffers = self._buffers, []
        for _, _, pending in reversed(ahead):
            pending.cancel()
        for buffer in buffers:
            self._allocator.free(buffer)

    def _take_back(self, buffer: HostBuffer) -> None:
        with self._lock:
            if not self._closed:
                self._read_next(buffer)

    def _read_next(self, buffer: HostBuffer) -> None:
        """Begin to read the next step of the schedule; what cannot begin fails when it would be taken."""
        if self._failure is not None or self._ended:
            return
        number = next(self._schedule, None)
        if number is None:
            self._ended = True
            return
        try:
            self._ahead.append((number, buffer, self._source.start(number, buffer)))
        except (DeviceError, InputError) as error:
            self._failure = error
