"""Compiling without collections of cyclic garbage: what passes make is not cyclic, and looking takes long."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
#: those that compile now, and whether collections are to be made again after the last one
_users, _enabled = 0, False


@contextmanager
def collections_paused() -> Iterator[None]:
    """Make no collections of cyclic garbage inside, in any thread; all else is freed as ever.

    IR is a great many small objects that live long, through which every collection goes: a quarter of the
    time that a training step of GPT-2 takes to compile. What cycles there are (20 MB) is freed afterwards.
    """
    global _users, _enabled
    with _lock:
        if not _users:
            _enabled = gc.isenabled()
            gc.disable()
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users and _enabled:
                gc.enable()
