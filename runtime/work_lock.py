"""The lock that makes a loaded plan's work atomic, and ends such work before the interpreter ends."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from types import TracebackType

#: how long the end of the interpreter waits for work of daemon threads
EXIT_WAIT_S = 10.0

_live: weakref.WeakSet[WorkLock] = weakref.WeakSet()
_registering = threading.Lock()


class WorkLock:
    """One thread at a time, the same one again; at the end of the interpreter only the main thread.

    Python stops daemon threads where they next take its own lock. Inside a driver written in C++ that aborts
    the whole process, so what still works then is awaited, and what would start waits until the end.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        # for paths whose host time counts: those of the lock itself
        self.acquire, self.release = self._lock.acquire, self._lock.release
        with _registering:
            _live.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def keep(self, timeout_s: float) -> None:
        """Take the lock for good, unless it stays taken for longer than `timeout_s`."""
        self._lock.acquire(timeout=max(0.0, timeout_s))


def _keep_all() -> None:
    end = time.monotonic() + EXIT_WAIT_S
    with _registering:
        locks = list(_live)
    for lock in locks:
        lock.keep(end - time.monotonic())


atexit.register(_keep_all)
