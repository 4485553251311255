"""Reading input files with a bound: not from devices, not waiting for ever, not more than is allowed."""

from __future__ import annotations

import errno
import os
import select
import stat
import time
from pathlib import Path

from tilewright.ir.errors import InputError

#: seconds that a pipe may be without a writer
WRITER_S = 2.0
_CHUNK_BYTES = 1 << 20
_KINDS = {
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFIFO: "a pipe",
}


def read_bounded(path: str | Path, limit: int, what: str) -> bytes:
    """The bytes of a regular file or of a pipe that somebody writes to, `limit` at most.

    what: what the file is, for messages ("network"). Raises InputError naming the file where it cannot be
    read, is neither of both or has more bytes; of a regular file that is known before any is read.
    """
    where = str(path)
    try:
        _require(path, f"at most {limit} bytes in the {what}", (stat.S_IFREG, stat.S_IFIFO))
        # A pipe without a writer would block here otherwise.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb", buffering=0) as file:
            status = os.fstat(handle)
            if stat.S_ISFIFO(status.st_mode):
                data = _from_pipe(handle, limit, what, where)
            elif status.st_size > limit:
                raise InputError(
                    f"expected at most {limit} bytes in the {what}, got {status.st_size}", where=where
                )
            else:
                # Files that the system makes up say that they have no bytes.
                data = _read(file, limit + 1)
    except OSError as error:
        raise InputError(f"cannot read the {what}: {error.strerror or error}", where=where) from None
    except ValueError as error:  # a NUL character in the name
        raise InputError(f"cannot read the {what}: {error}", where=where) from None
    if len(data) > limit:
        raise InputError(f"expected at most {limit} bytes in the {what}, got more", where=where)
    return data


def require_regular(path: str | Path, what: str) -> None:
    """Raise InputError unless there is a regular file, for readers that open it themselves."""
    try:
        _require(path, f"a regular file with the {what}", (stat.S_IFREG,))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"cannot read the {what}: {reason}", where=str(path)) from None


def _require(path: str | Path, expected: str, kinds: tuple[int, ...]) -> None:
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if kind not in kinds:
        raise InputError(f"expected {expected}, got {_KINDS.get(kind, 'something else')}", where=str(path))


def _read(file: object, size: int) -> bytes:
    chunks, left = [], size
    while left and (chunk := file.read(min(left, _CHUNK_BYTES * 64))):  # type: ignore[attr-defined]
        chunks.append(chunk)
        left -= len(chunk)
    return b"".join(chunks)


def _from_pipe(handle: int, limit: int, what: str, where: str) -> bytes:
    """Return what is written until the last writer closes the pipe; at most one byte more than `limit`."""
    chunks: list[bytes] = []
    left, deadline = limit + 1, time.monotonic() + WRITER_S
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    while left:
        try:
            chunk = os.read(handle, min(left, _CHUNK_BYTES))
        except BlockingIOError:
            poll.poll()  # there is a writer that has written nothing yet
            continue
        if chunk:
            chunks.append(chunk)
            left -= len(chunk)
        elif chunks:
            break
        elif time.monotonic() > deadline:
            raise InputError(f"cannot read the {what}: nobody writes to this pipe", where=where)
        else:
            time.sleep(0.01)
    return b"".join(chunks)
