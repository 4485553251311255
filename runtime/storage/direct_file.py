"""An open file that reads and writes whole pages past the page cache, or says that it cannot."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage.layout import PAGE_BYTES

#: what file systems say that know no direct requests, or none of this size
_REFUSALS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})
#: file systems without storage below them; some take the flag for direct requests and ignore it
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})


@dataclass(frozen=True)
class FileState:
    """The state that changes when somebody writes into a file or cuts it off."""

    nbytes: int
    mtime_ns: int


class DirectFile:
    """A file descriptor with its path for messages; every call may come from any thread.

    direct: whether the page cache is passed. note: why it is not, empty where it is.
    """

    def __init__(self, path: str, descriptor: int, note: str) -> None:
        self.path, self.note = path, note
        self._descriptor = descriptor

    @property
    def direct(self) -> bool:
        return not self.note

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    def fileno(self) -> int:
        """The descriptor; -1 after `close`."""
        return self._descriptor

    def state(self) -> FileState:
        """Size and time of the last change."""
        status = os.fstat(self._descriptor)
        return FileState(status.st_size, status.st_mtime_ns)

    def read_into(self, view: memoryview, offset: int, step: str) -> None:
        """Fill `view` (whole pages at an aligned address) from byte `offset`.

        Raises `StorageError` naming file, step and byte offset: the file ends early, or cannot be read there.
        """
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise self._fault("reading", step, offset + done, error.strerror or str(error)) from None
            if got < PAGE_BYTES and done + got < len(view):
                size = self.state().nbytes
                raise self._fault(
                    "reading", step, offset + done, f"only {got} bytes came; the file has {size}"
                )
            # A direct request starts at a page, so what comes after the last whole one is asked for again.
            done = done + got if done + got == len(view) else (done + got) // PAGE_BYTES * PAGE_BYTES

    def read_start(self, nbytes: int) -> bytes:
        """The first `nbytes`, fewer where the file is shorter; raises `StorageError`."""
        view = memoryview(mmap.mmap(-1, max(PAGE_BYTES, -(-nbytes // PAGE_BYTES) * PAGE_BYTES)))
        done = 0
        try:
            while done < nbytes and done % PAGE_BYTES == 0:
                got = os.preadv(self._descriptor, [view[done:]], done)
                if got == 0:
                    break
                done += got
        except OSError as error:
            fault = f"{self.path}: reading at byte {done} failed: {error.strerror or error}"
            raise StorageError(fault) from None
        return bytes(view[: min(done, nbytes)])

    def write_from(self, view: memoryview, offset: int, step: str) -> None:
        """Write `view` (whole pages at an aligned address) at byte `offset`; raises `StorageError`."""
        done = 0
        while done < len(view):
            try:
                put = os.pwritev(self._descriptor, [view[done:]], offset + done)
            except OSError as error:
                raise self._fault("writing", step, offset + done, error.strerror or str(error)) from None
            if put < PAGE_BYTES and done + put < len(view):
                raise self._fault("writing", step, offset + done, f"only {put} bytes were taken")
            done = done + put if done + put == len(view) else (done + put) // PAGE_BYTES * PAGE_BYTES

    def forget(self, offset: int, nbytes: int) -> None:
        """Ask the system to drop the pages of a range from its cache; they must have been written out."""
        os.posix_fadvise(self._descriptor, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """Close the descriptor, once."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _fault(self, doing: str, step: str, offset: int, what: str) -> StorageError:
        return StorageError(f"{self.path}: {doing} step {step!r:.100} at byte {offset} failed: {what}")


def open_to_read(path: str, direct: bool) -> DirectFile:
    """Open an existing regular file; raises `InputError` naming it where that cannot be done.

    Storage that fails at the first byte raises `StorageError`.
    """
    try:
        # A pipe would block here, and has no size.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: expected a file of tensors, got no regular file")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    return _as_asked(path, descriptor, direct)


def new_unnamed_file(folder: str, nbytes: int, direct: bool) -> DirectFile:
    """A file of `nbytes` without a name: it vanishes with its descriptor, whatever ends the process.

    All its space is taken at once, so that a disk too full says so here. Raises `StorageError`.
    """
    path = os.path.join(folder, f".tilewright-scratch-{os.getpid()}-{secrets.token_hex(8)}")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
    except OSError as error:
        raise StorageError(f"{folder}: a scratch file cannot be made ({error.strerror or error})") from None
    try:
        os.posix_fallocate(descriptor, 0, max(PAGE_BYTES, nbytes))
    except OSError as error:
        os.close(descriptor)
        raise StorageError(
            f"{folder}: {nbytes} bytes for a scratch file cannot be had ({error.strerror or error})"
        ) from None
    return _as_asked(f"a scratch file in {folder}", descriptor, direct)


def open_to_change(path: str, direct: bool) -> DirectFile:
    """Open an existing regular file for reading and writing, which this process alone may do from now on.

    Raises `InputError` naming it where it cannot be opened, or is in use.
    """
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InputError(f"{path}: expected a file of tensors, got no regular file")
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened ({error.strerror or error})") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise InputError(f"{path}: another process uses it") from None
    return _as_asked(path, descriptor, direct)


def _as_asked(path: str, descriptor: int, direct: bool) -> DirectFile:
    """The open file, with direct requests where they are asked for and possible."""
    try:
        note = _make_direct(descriptor) if direct else "direct requests were not asked for"
    except OSError as error:
        os.close(descriptor)
        raise StorageError(f"{path}: reading at byte 0 failed: {error.strerror or error}") from None
    return DirectFile(path, descriptor, note)


def _make_direct(descriptor: int) -> str:
    """Switch a descriptor to direct requests; the answer says why that is not possible, if it is not."""
    kind = _file_system(descriptor)
    if kind in _IN_MEMORY:
        return f"{kind} keeps its files in memory, there is nothing to be direct to"
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        if not fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            return f"the system ignores direct requests to this file system ({kind})"
        # Some file systems take the flag and refuse the request, others only requests of this size.
        os.preadv(descriptor, [mmap.mmap(-1, PAGE_BYTES)], 0)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return f"the file system ({kind}) refuses direct requests of {PAGE_BYTES} bytes ({error.strerror})"
    return ""


def _file_system(descriptor: int) -> str:
    """The kind of file system a file lies on, such as "ext4"; "unknown" where the system does not say."""
    device = os.fstat(descriptor).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    mounts = Path("/proc/self/mountinfo")
    for line in mounts.read_text(errors="replace").splitlines() if mounts.exists() else ():
        fields = line.split()
        if fields[2] == number:
            return fields[fields.index("-") + 1]
    return "unknown"
