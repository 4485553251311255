"""Ends work that takes too long, by a signal of the operating system's timer."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tilewright.ir import WorkError


class _Overdue(BaseException):
    """Raised inside the work; no ordinary handler of an exception takes it."""


@contextmanager
def deadline(seconds: float, doing: str) -> Iterator[None]:
    """Raise WorkError where the block takes longer; the work stops when it next runs Python code.

    Only in the main thread of a system that has interval timers; elsewhere the block is not limited.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise _Overdue

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    except _Overdue:
        raise WorkError(f"{doing} took longer than {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
