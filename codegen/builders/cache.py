"""A disk cache of compiled binaries: atomic, checksummed, bounded, shared by any number of processes."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.errors import InputError
from tilewright.ir.machine import cache_folder

_MAGIC = b"tilewright-cache-2\n"
_DIGEST_BYTES = 32
_SUFFIX, _UNFINISHED = ".bin", ".part"
#: age from which an unfinished file has lost its writer
_ABANDONED_S = 3600.0
DEFAULT_MAX_BYTES = 2 << 30
#: no compiler's output comes near it
MAX_ENTRY_BYTES = 256 << 20


def cache_key(*parts: str) -> str:
    """A hex SHA-256 of the parts; no two different part lists share one, whatever they contain."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class BinaryCache:
    """Payloads by key in one folder; the oldest unused go first where `max_bytes` is exceeded.

    Where the folder cannot be written, it warns once and works without storing. The first write removes what
    writers left behind that were killed more than an hour ago.
    """

    def __init__(self, folder: Path | str | None = None, *, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.folder = (Path(folder) if folder is not None else cache_folder()) / "binaries"
        self.max_bytes = max_bytes
        # Unknown until the first scan; starting at the limit makes the first write scan.
        self._bytes_since_scan = max_bytes
        self._warned = False

    def get(self, key: str) -> bytes | None:
        """The payload stored under `key`; None if there is none.

        A damaged one, or one that was stored under another key, counts as none and is removed.
        """
        path = self._path(key)
        try:
            data = read_bounded(path, MAX_ENTRY_BYTES, "cache entry")
        except InputError:
            return None
        head = len(_MAGIC) + _DIGEST_BYTES
        payload = data[head:]
        if data[:head] != _head(key, payload):
            with suppress(OSError):
                path.unlink()
            return None
        with suppress(OSError):
            os.utime(path)
        return payload

    def put(self, key: str, payload: bytes) -> None:
        """Store `payload`; readers see the old entry or the new one, never a part."""
        data = _head(key, payload) + payload
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self.folder, suffix=_UNFINISHED)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(data)
                os.replace(temporary, self._path(key))
            except BaseException:
                with suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as error:
            self._warn(error)
            return
        self._bytes_since_scan += len(data)
        if self._bytes_since_scan > self.max_bytes // 16:
            self._bytes_since_scan = 0
            with suppress(OSError):  # another process may remove the folder
                self._evict()

    def _warn(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"the compile cache {self.folder} cannot be written ({error.strerror or error}); "
                "set TILEWRIGHT_CACHE_DIR",
                RuntimeWarning,
                stacklevel=3,
            )

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}{_SUFFIX}"

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                # Another process may remove an entry at any moment.
                with suppress(OSError):
                    info = entry.stat()
                    if entry.name.endswith((_SUFFIX, _UNFINISHED)):
                        yield info.st_mtime, info.st_size, Path(entry.path)

    def _evict(self) -> None:
        entries = []
        for entry in sorted(self._entries()):
            used, _, path = entry
            if path.suffix == _UNFINISHED and used < time.time() - _ABANDONED_S:
                with suppress(OSError):
                    path.unlink()
            else:
                entries.append(entry)
        excess = sum(size for _, size, _ in entries) - self.max_bytes
        for _, size, path in entries:
            if excess <= 0:
                return
            with suppress(OSError):
                path.unlink()
            excess -= size


def _head(key: str, payload: bytes) -> bytes:
    """Return the head of a payload; it names the key, so that no entry passes for another's."""
    return _MAGIC + hashlib.sha256(key.encode() + b"\n" + payload).digest()
