"""Arrays in .npz files: what each one claims to be is checked before anything is inflated."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.ir.bounded_file import require_regular
from tilewright.ir.errors import InputError

_SUFFIX = ".npy"
MAX_MEMBERS = 50_000
#: bytes of a header that NumPy reads; ours are a tenth of it
_MAX_HEADER_BYTES = 12_000
_NUMBERS = "biufc"
_HEADER_READERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
#: the errors that zipfile, zlib and NumPy's reader of headers raise for damaged files
_FAULTS = (
    ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error, MemoryError, SyntaxError,
    RuntimeError, NotImplementedError, OverflowError, TypeError, struct.error, IndexError, AttributeError,
)  # fmt: skip


@dataclass(frozen=True)
class ArrayHeader:
    """The description of an array in a file: its shape, its dtype, and in which order its elements follow."""

    shape: tuple[int, ...]
    dtype: np.dtype
    fortran_order: bool

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class _Member:
    info: zipfile.ZipInfo
    header_bytes: int


class NpzFile:
    """An .npz file of arrays of numbers. `headers` says what they are; `read` inflates those that are named.

    Raises InputError naming the file and the member that is damaged, none, or not as large as it claims.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.headers: dict[str, ArrayHeader] = {}
        self._members: dict[str, _Member] = {}
        require_regular(path, "arrays")
        try:
            with zipfile.ZipFile(self.path) as archive:
                members = archive.infolist()
                if len(members) > MAX_MEMBERS:
                    raise self._fault(f"at most {MAX_MEMBERS} arrays, got {len(members)}")
                for info in members:
                    self._add(archive, info)
        except _FAULTS as error:
            raise self._fault(_what_it_is(self.path) or _reason(error)) from None

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """The arrays of these names, in native byte order."""
        name = ""
        try:
            with zipfile.ZipFile(self.path) as archive:
                return {name: self._read(archive, name) for name in names}
        except _FAULTS as error:
            raise self._fault(f"{name!r:.100} is damaged: {_reason(error)}") from None

    def _add(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        name = info.filename.removesuffix(_SUFFIX)
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise self._fault(f"{name!r:.100} is compressed in a way that NumPy does not write")
        if name in self.headers:
            raise self._fault(f"two arrays are called {name!r:.100}")
        with archive.open(info) as member:
            start = io.BytesIO(member.read(_MAX_HEADER_BYTES))
        header = self._header(name, start)
        if header.dtype.kind not in _NUMBERS:
            raise self._fault(f"expected numbers in {name!r:.100}, got dtype {header.dtype}")
        claimed = info.file_size - start.tell()
        if header.nbytes != claimed:
            raise self._fault(
                f"{name!r:.100} is {header.dtype}{list(header.shape)} of {header.nbytes} bytes, "
                f"but {claimed} are stored"
            )
        self.headers[name] = header
        self._members[name] = _Member(info, start.tell())

    def _header(self, name: str, start: io.BytesIO) -> ArrayHeader:
        try:
            read_header = _HEADER_READERS[np.lib.format.read_magic(start)]
            shape, fortran_order, dtype = read_header(start)
        except _FAULTS:
            raise self._fault(f"{name!r:.100} is no array") from None
        return ArrayHeader(shape, dtype, fortran_order)

    def _read(self, archive: zipfile.ZipFile, name: str) -> np.ndarray:
        header, entry = self.headers[name], self._members[name]
        with archive.open(entry.info) as member:
            member.read(entry.header_bytes)
            data = member.read(header.nbytes + 1)
        if len(data) != header.nbytes:
            raise ValueError(f"expected {header.nbytes} bytes, got {len(data)}")
        flat = np.frombuffer(data, header.dtype)
        array = flat.reshape(header.shape, order="F" if header.fortran_order else "C")
        return array.astype(header.dtype.newbyteorder("="))

    def _fault(self, message: str) -> InputError:
        return InputError(f"expected an .npz file of plain arrays: {message}", where=str(self.path))


def read_npz(path: str | Path) -> Mapping[str, np.ndarray]:
    """All arrays of an .npz file by name; raises InputError as `NpzFile` does."""
    file = NpzFile(path)
    return file.read(file.headers)


def _what_it_is(path: Path) -> str:
    """Return what kind of file this is instead of an archive, where one is easily mistaken for the other."""
    with path.open("rb") as file:
        start = file.read(6)
    if start == b"\x93NUMPY":
        return "this is a single array (.npy), which numpy.savez(FILE, name=array) would name"
    return "" if start.startswith(b"PK") else "this is no archive"


def _reason(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
