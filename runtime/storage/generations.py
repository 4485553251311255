"""Tensors on storage that runs change all or nothing: a killed run leaves what the last whole one left.

Every tensor that changes has two places in one data file. A run writes to the place that does not count;
`commit` has all of it on the drive before the record, a small file that says which places count, is replaced
at once. So a process that ends at any moment, and a machine that stops, leave a record whose places nobody
has touched since. The record holds its own checksum and those of the tensors, which are compared the first
time they are read.
"""

from __future__ import annotations

import json
import os
import secrets
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.atomic_file import atomic_file
from tilewright.runtime.closable import Closable
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage.buffers import AlignedAllocator, HostBuffer
from tilewright.runtime.storage.direct_file import DirectFile, open_to_change
from tilewright.runtime.storage.layout import BLOCK_BYTES, PAGE_BYTES, TensorSpec, round_up
from tilewright.runtime.storage.source import IoOptions

RECORD_NAME = "training.json"
_FORMAT, _VERSION = "tilewright-training", 1
_DATA = "training-{}.state"


@dataclass(frozen=True)
class Kept:
    """A tensor of a store. scratch: its content is no one's beyond a run: it has one place, behind all other
    tensors, and no record says what it is."""

    spec: TensorSpec
    scratch: bool = False

    @property
    def places(self) -> int:
        """The number of its places."""
        return 1 if self.scratch else 2

    @property
    def nbytes(self) -> int:
        """Whole pages, at least one."""
        return max(PAGE_BYTES, round_up(self.spec.nbytes, PAGE_BYTES))


#: a tensor, and the byte of a buffer where it begins
Piece = tuple[str, int]


class GenerationStore(Closable):
    """A data file and its record in a folder, for one process at a time. Several threads may call as long as
    no tensor is written while it is read.

    number: the commits so far. host: small arrays by name that belong to the record itself.
    """

    def __init__(self, folder: Path, tensors: Sequence[Kept], options: IoOptions, record: _Record) -> None:
        self.folder, self.options = folder, options
        self.tensors = {t.spec.name: t for t in tensors}
        self.starts, _ = _starts(tensors)
        self.host, self.number = record.host, record.number
        self._data_name = record.data
        self._place = dict(record.place)
        self._sums = {(n, self._place[n]): sums for n, sums in record.sums.items()}
        self._new: dict[str, int] = {}  # places that this run wrote
        self._checked: set[tuple[str, int]] = set()
        self._file: DirectFile = open_to_change(str(folder / record.data), options.direct)
        # What copies chunks waits for nothing; what starts them waits for chunks.
        self._pool = ThreadPoolExecutor(options.depth, "tilewright-state")

    @property
    def direct(self) -> bool:
        """Whether requests pass the page cache."""
        return self._file.direct

    def fileno(self) -> int:
        """The descriptor of the data file."""
        return self._file.fileno()

    # -- one run ---------------------------------------------------------------------------------------------
    def read(self, pieces: Sequence[Piece], buffer: HostBuffer) -> int:
        """Bring tensors as this run sees them into a buffer; bytes. Raises `StorageError`."""
        places = {name: self._new.get(name, self._place[name]) for name, _ in pieces}
        futures, nbytes = self._moved(self._file.read_into, pieces, places, buffer)
        _wait(futures)
        _wait(
            [
                self._pool.submit(
                    self._compare,
                    name,
                    places[name],
                    buffer.view[offset : offset + self.tensors[name].nbytes],
                )
                for name, offset in pieces
                if (name, places[name]) not in self._checked and self.options.verify != "never"
            ]
        )
        return nbytes

    def write(self, pieces: Sequence[Piece], buffer: HostBuffer) -> int:
        """Write tensors out of a buffer to the places that do not count yet; bytes. Raises `StorageError`."""
        places = {n: 1 - self._place[n] if self.tensors[n].places == 2 else 0 for n, _ in pieces}
        sums = [
            self._pool.submit(
                self._sum, name, places[name], buffer.view[offset : offset + self.tensors[name].nbytes]
            )
            for name, offset in pieces
        ]
        futures, nbytes = self._moved(self._file.write_from, pieces, places, buffer)
        _wait([*sums, *futures])
        self._new.update(places)
        return nbytes

    def commit(self, host: Mapping[str, Array]) -> None:
        """Let what was written since the last commit count; raises `StorageError`, and then it does not."""
        place = {**self._place, **{n: p for n, p in self._new.items() if not self.tensors[n].scratch}}
        sums = {n: self._sums[n, p] for n, p in place.items() if not self.tensors[n].scratch}
        record = _Record(self._data_name, self.number + 1, dict(host), place, sums)
        try:
            os.fdatasync(self._file.fileno())
            _write_record(self.folder, record, self.tensors)
        except OSError as error:
            self._new.clear()
            raise StorageError(
                f"{self.folder}: the state cannot be kept ({error.strerror or error})"
            ) from None
        self._place, self._new = place, {}
        self.host, self.number = record.host, record.number

    def rollback(self) -> None:
        """Forget what was written since the last commit."""
        self._new.clear()

    # -- single tensors --------------------------------------------------------------------------------------
    def tensor(self, name: str) -> Array:
        """A copy of a tensor as of the last commit."""
        kept = self.tensors[name]
        buffer = AlignedAllocator().allocate(kept.nbytes)
        self.read([(name, 0)], buffer)
        flat = np.frombuffer(buffer.view, np.uint8, kept.spec.nbytes)
        return flat.view(DTYPES[kept.spec.dtype]).reshape(kept.spec.shape).copy()

    def put(self, name: str, array: Array) -> None:
        """Write a tensor, which counts from the next commit on."""
        kept = self.tensors[name]
        buffer = AlignedAllocator().allocate(kept.nbytes)
        np.frombuffer(buffer.view, np.uint8)[: kept.spec.nbytes] = (
            np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        )
        self.write([(name, 0)], buffer)

    # -- inside ----------------------------------------------------------------------------------------------
    def _moved(
        self,
        move: Callable[[memoryview, int, str], None],
        pieces: Sequence[Piece],
        places: Mapping[str, int],
        buffer: HostBuffer,
    ) -> tuple[list[Future[None]], int]:
        """Start to move tensors between their places and a buffer, in chunks; the bytes."""
        futures: list[Future[None]] = []
        nbytes = 0
        for begin, offset, size, what in self._runs(pieces, places):
            nbytes += size
            for at in range(0, size, self.options.chunk_bytes):
                part = buffer.view[offset + at : offset + min(at + self.options.chunk_bytes, size)]
                futures.append(self._pool.submit(move, part, begin + at, what))
        return futures, nbytes

    def _runs(self, pieces: Sequence[Piece], places: Mapping[str, int]) -> list[tuple[int, int, int, str]]:
        """(byte of the file, byte of the buffer, bytes, a name) of pieces that lie together in both."""
        runs: list[tuple[int, int, int, str]] = []
        for name, offset in pieces:
            begin, size = self.starts[name][places[name]], self.tensors[name].nbytes
            if runs and runs[-1][0] + runs[-1][2] == begin and runs[-1][1] + runs[-1][2] == offset:
                last = runs.pop()
                runs.append((last[0], last[1], last[2] + size, last[3]))
            else:
                runs.append((begin, offset, size, name))
        return runs

    def _sum(self, name: str, place: int, view: memoryview) -> None:
        self._sums[name, place] = _checksums(view)
        self._checked.add((name, place))

    def _compare(self, name: str, place: int, view: memoryview) -> None:
        expected = self._sums.get((name, place))
        if expected is not None and _checksums(view) != expected:
            raise StorageError(
                f"{self._file.path}: the checksum of {name!r:.100} differs: the file was changed or damaged"
            )
        self._checked.add((name, place))

    def _release(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._file.close()


def create_store(
    folder: Path,
    tensors: Sequence[Kept],
    values: Callable[[str], Array],
    host: Mapping[str, Array],
    options: IoOptions,
) -> GenerationStore:
    """A store with these values; it takes its space at once. What stood in the folder before is replaced when
    all is written. Raises `StorageError` and leaves what was there."""
    data = _DATA.format(secrets.token_hex(4))
    _, nbytes = _starts(tensors)
    path = folder / data
    place = {t.spec.name: 0 for t in tensors}
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            os.posix_fallocate(descriptor, 0, max(PAGE_BYTES, nbytes))
        finally:
            os.close(descriptor)
        store = GenerationStore(folder, tensors, options, _Record(data, 0, dict(host), place, {}))
        try:
            for t in tensors:
                if not t.scratch:
                    store._place[t.spec.name] = 1  # so that it is written to place 0
                    store.put(t.spec.name, values(t.spec.name))
            store.commit(host)
        except BaseException:
            store.close()
            raise
    except OSError as error:
        _unlink(path)
        raise StorageError(
            f"{path}: {nbytes} bytes of state cannot be written ({error.strerror or error})"
        ) from None
    except BaseException:
        _unlink(path)
        raise
    _remove_others(folder, data)
    return store


def open_store(folder: Path, tensors: Sequence[Kept], options: IoOptions) -> GenerationStore:
    """The store of a folder. Raises `InputError` where there is none, or one of other tensors, and
    `StorageError` for a damaged record."""
    record = read_record(folder)
    expected = {t.spec.name: _typed(t.spec) for t in tensors if not t.scratch}
    if record.types != expected:
        odd = sorted(n for n in {*record.types, *expected} if record.types.get(n) != expected.get(n))
        there, here = record.types.get(odd[0], "nothing"), expected.get(odd[0], "nothing")
        raise InputError(
            f"{folder / RECORD_NAME}: expected the state of this step, got that of another: "
            f"{odd[0]!r:.100} is {there} there and {here} here"
        )
    starts, nbytes = _starts(tensors)
    if record.starts != {n: list(starts[n]) for n in expected}:
        raise InputError(f"{folder / RECORD_NAME}: expected the places of this step's cuts, got others")
    path = folder / record.data
    _, least = _starts([t for t in tensors if not t.scratch])
    if not path.exists() or path.stat().st_size < least:
        raise StorageError(f"{path}: expected {least} bytes of state, the file is missing or cut off")
    record.place.update((t.spec.name, 0) for t in tensors if t.scratch)
    store = GenerationStore(folder, tensors, options, record)
    try:
        os.posix_fallocate(store.fileno(), 0, max(PAGE_BYTES, nbytes))
    except OSError as error:
        store.close()
        raise StorageError(f"{path}: {nbytes} bytes cannot be had ({error.strerror or error})") from None
    _remove_others(folder, record.data)
    return store


@dataclass
class _Record:
    data: str
    number: int
    host: dict[str, Array]
    place: dict[str, int]
    sums: dict[str, list[int]]
    types: Mapping[str, str] = None  # type: ignore[assignment]
    starts: Mapping[str, list[int]] = None  # type: ignore[assignment]


def read_record(folder: Path) -> _Record:
    """The record of a folder; raises `InputError` where there is none, `StorageError` where it is damaged."""
    path = folder / RECORD_NAME
    try:
        text = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    try:
        sum_line, _, body = text.partition(b"\n")
        if int(sum_line) != zlib.crc32(body):
            raise ValueError
        raw: dict[str, Any] = json.loads(body)
        if (raw["format"], raw["version"]) != (_FORMAT, _VERSION):
            raise InputError(f"{path}: expected a record of version {_VERSION}, got {raw['version']!r:.50}")
        host = {
            n: np.array(values, DTYPES[dtype]).reshape(shape)
            for n, (dtype, shape, values) in raw["host"].items()
        }
        rows = raw["tensors"]
        return _Record(
            raw["data"],
            raw["number"],
            host,
            {n: r["place"] for n, r in rows.items()},
            {n: r["sums"] for n, r in rows.items()},
            {n: r["type"] for n, r in rows.items()},
            {n: r["starts"] for n, r in rows.items()},
        )
    except (ValueError, KeyError, TypeError):
        raise StorageError(
            f"{path}: expected the record of a training run, got a damaged or other file"
        ) from None


def _write_record(folder: Path, record: _Record, tensors: Mapping[str, Kept]) -> None:
    starts, _ = _starts(list(tensors.values()))
    raw = {
        "format": _FORMAT,
        "version": _VERSION,
        "data": record.data,
        "number": record.number,
        "host": {n: [a.dtype.name, list(a.shape), a.reshape(-1).tolist()] for n, a in record.host.items()},
        "tensors": {
            n: {
                "type": _typed(t.spec),
                "starts": list(starts[n]),
                "place": record.place[n],
                "sums": record.sums[n],
            }
            for n, t in tensors.items()
            if not t.scratch
        },
    }
    body = json.dumps(raw).encode()
    with atomic_file(folder / RECORD_NAME) as file:
        file.write(b"%d\n" % zlib.crc32(body) + body)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _starts(tensors: Sequence[Kept]) -> tuple[dict[str, tuple[int, ...]], int]:
    """Where the places of each tensor begin: all first ones, all second ones, scratch; bytes of the file."""
    starts: dict[str, list[int]] = {t.spec.name: [] for t in tensors}
    end = 0
    for place, scratch in ((0, False), (1, False), (0, True)):
        for t in tensors:
            if t.scratch == scratch and place < t.places:
                starts[t.spec.name].append(end)
                end += t.nbytes
    return {n: tuple(s) for n, s in starts.items()}, end


def _typed(spec: TensorSpec) -> str:
    return f"{spec.dtype}{list(spec.shape)}"


def _checksums(view: memoryview) -> list[int]:
    return [zlib.crc32(view[at : at + BLOCK_BYTES]) for at in range(0, len(view), BLOCK_BYTES)]


def _wait(futures: Iterable[Future[None]]) -> None:
    """Wait for all; raise the first failure."""
    failure: BaseException | None = None
    for future in futures:
        try:
            future.result()
        except BaseException as error:  # noqa: BLE001  (raised when all have ended)
            failure = failure or error
    if failure is not None:
        raise failure


def _remove_others(folder: Path, data: str) -> None:
    """Remove data files that no record names: those of killed runs, and of what was replaced."""
    for other in folder.glob(_DATA.format("????????")):
        if other.name != data:
            _unlink(other)


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()
