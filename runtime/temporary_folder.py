"""Temporary folders that go with their process, or, where that was killed, with the next one made."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

#: what a folder is called before it is locked; nobody removes it then
_UNLOCKED = ".tilewright-new-"


class TemporaryFolder:
    """A new folder in the system's temporary folder, called `prefix` and some letters; `close` removes it.

    It is locked as long as this process lives, and has its name only once it is. So whoever makes the next
    one knows which of its kind have lost their process, and removes those; live ones stay, also those of
    other containers. Raises OSError where it cannot be made.
    """

    def __init__(self, prefix: str) -> None:
        _remove_abandoned(prefix)
        unlocked = Path(tempfile.mkdtemp(prefix=_UNLOCKED))
        try:
            lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with suppress(OSError):  # a file system without locks: then nobody else gets one either
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.path = unlocked.with_name(prefix + secrets.token_hex(8))
            os.rename(unlocked, self.path)
        except BaseException:
            with suppress(OSError):
                os.rmdir(unlocked)
            raise
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        """Remove the folder and all that is in it."""
        self._finalizer()


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork that ends; the folder is its parent's
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(prefix: str) -> None:
    """Remove the folders whose process ended without doing so: those of this user that nobody has locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)
