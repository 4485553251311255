"""Output files whose content appears whole or not at all, and that replace nothing but regular files."""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import secrets
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tilewright.runtime.errors import InputError

#: age from which an unfinished file that nobody has locked has lost its writer, which locks it when it begins
ABANDONED_S = 60.0
#: the same where the file system has no locks
ABANDONED_WITHOUT_LOCKS_S = 3600.0
#: what is written to a device or a pipe is kept in memory up to this size, and in a temporary file beyond it
_MEMORY_BYTES = 64 << 20
#: bytes of a name that unfinished files take over, so that long names stay within the file system's limit
_NAME_BYTES = 200
#: links that Linux follows before it calls them a loop
_MAX_LINKS = 40


@contextmanager
def atomic_file(path: Path) -> Iterator[Any]:
    """A binary file to write and seek in; its bytes get to `path` when the block ends well, else they vanish.

    Links are followed, and stay. A regular file is replaced at once and keeps its mode and, where that is
    permitted, its owner; a new one gets the permissions that new files get. Anything else (a device, a FIFO,
    an open file of this process such as /dev/stdout) is written to in place; a FIFO waits for its reader.
    What writers of the same path that were killed left beside it is removed.
    Raises OSError where it cannot be written.
    """
    if "\0" in str(path):
        raise OSError(errno.EINVAL, "a file name holds no NUL character")
    present = _status(path)
    descriptor = _own_descriptor(path)
    if descriptor is not None or (present is not None and not stat.S_ISREG(present.st_mode)):
        if present is not None and stat.S_ISDIR(present.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        with _written_in_place(path, descriptor) as file:
            yield file
        return
    if present is not None and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    with _replaced(Path(os.path.realpath(path)), present) as file:
        yield file


@contextmanager
def output_file(path: str | Path, what: str) -> Iterator[Any]:
    """An `atomic_file` that a user asked for: raises InputError, which says `what` could not be written."""
    try:
        with atomic_file(Path(path)) as file:
            yield file
    except OSError as error:
        raise InputError(f"cannot write {what}: {error.strerror or error}", where=str(path)) from error


def write_atomically(path: str | Path, text: str, what: str = "the results") -> None:
    """Write the text, in UTF-8, as an `output_file`."""
    with output_file(path, what) as file:
        file.write(text.encode())


def _status(path: Path) -> os.stat_result | None:
    """Return the file at the end of the links, or None where there is none yet."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _own_descriptor(path: Path) -> int | None:
    """The number of the open file of this process that a path such as /dev/stdout leads to, if it does."""
    folder_of_descriptors = f"/proc/{os.getpid()}/fd"
    for _ in range(_MAX_LINKS):
        folder = os.path.realpath(path.parent)
        if folder == folder_of_descriptors:
            return int(path.name) if path.name.isdecimal() else None
        if not path.is_symlink():
            return None
        path = Path(folder, os.readlink(path))
    return None


@contextmanager
def _written_in_place(path: Path, descriptor: int | None) -> Iterator[Any]:
    """A temporary file that is copied to what is at `path` when the block ends well."""
    with tempfile.SpooledTemporaryFile(_MEMORY_BYTES) as file:
        yield file
        file.seek(0)
        if descriptor is None:
            handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        else:
            # A new description of the same file would begin at its start, over what was printed before.
            if sys.stdout is not None:
                sys.stdout.flush()
            handle = os.dup(descriptor)
        with os.fdopen(handle, "wb") as out:
            shutil.copyfileobj(file, out)


@contextmanager
def _replaced(path: Path, present: os.stat_result | None) -> Iterator[Any]:
    """A new file beside `path` that takes its place when the block ends well."""
    _remove_abandoned(path)
    temporary = path.with_name(f".{_stem(path)}.{secrets.token_hex(4)}.part")
    # Where there is no file yet, the kernel takes the umask off. What replaces a private file is private from
    # its first byte on.
    mode = 0o666 if present is None else 0o600
    handle = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            with suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if present is not None:
                with suppress(PermissionError):
                    os.fchown(file.fileno(), present.st_uid, present.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(present.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _stem(path: Path) -> str:
    return os.fsdecode(os.fsencode(path.name)[:_NAME_BYTES])


def _remove_abandoned(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(_stem(path))}.????????.part"):  # as `_replaced` names them
        with suppress(OSError):
            age_s = time.time() - left.stat().st_mtime
            if age_s > ABANDONED_S and _has_no_writer(left, age_s):
                left.unlink()


def _has_no_writer(left: Path, age_s: float) -> bool:
    handle = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return age_s > ABANDONED_WITHOUT_LOCKS_S
    finally:
        os.close(handle)
    return True
