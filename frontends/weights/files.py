"""Named tensors from and to files: Relay parameter dictionaries, .npz and .safetensors.

The Relay format is that of TVM 0.18's `save_param_dict` (src/runtime/file_utils.cc and
include/tvm/runtime/ndarray.h), little endian. Nothing read from a file is executed, and no size in a file is
believed before the bytes behind it were seen.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from tilewright.ir.bounded_file import read_bounded, require_regular
from tilewright.ir.errors import InputError, file_path
from tilewright.ir.npz_file import NpzFile

_DICT_MAGIC = 0xF7E58D4F05049CB7
_ARRAY_MAGIC = 0xDD5E40F096B4A13F
_MAX_RANK = 32
#: Files of parameters larger than this are refused unread.
MAX_BYTES = 1 << 36
_MAX_NAME_BYTES = 1 << 16
_CODES: dict[tuple[int, int], np.dtype] = {
    **{(0, bits): np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{(1, bits): np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{(2, bits): np.dtype(f"float{bits}") for bits in (16, 32, 64)},
    (1, 1): np.dtype(np.bool_),
    (6, 8): np.dtype(np.bool_),
    (4, 16): np.dtype(ml_dtypes.bfloat16),
}
_WRITE = {dtype: key for key, dtype in reversed(_CODES.items()) if key != (6, 8)}


class Reader:
    """Takes fields off a byte buffer in order; every shortage is an InputError that names the offset."""

    def __init__(self, data: bytes | memoryview, where: str) -> None:
        self.data = memoryview(data)
        self.offset = 0
        self.where = where

    def take(self, count: int, what: str) -> memoryview:
        """The next `count` bytes."""
        left = len(self.data) - self.offset
        if not 0 <= count <= left:
            raise self.error(f"expected {count} bytes of {what}, got {left}")
        self.offset += count
        return self.data[self.offset - count : self.offset]

    def unpack(self, layout: str, what: str) -> tuple[int, ...]:
        """The next fields, described as for `struct`."""
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout), what))

    def error(self, message: str) -> InputError:
        """An error at the current offset."""
        return InputError(f"{message} (at byte {self.offset})", where=self.where)


def read_ndarray(reader: Reader) -> np.ndarray:
    """One NDArray record. The result is a copy; the dtype is one NumPy or ml_dtypes has."""
    magic, _ = reader.unpack("QQ", "a tensor header")
    if magic != _ARRAY_MAGIC:
        raise reader.error(f"expected a tensor record (magic {_ARRAY_MAGIC:#x}), got {magic:#x}")
    _, _, rank = reader.unpack("iii", "a tensor's device and rank")
    code, bits, lanes = reader.unpack("BBH", "a tensor's dtype")
    dtype = _CODES.get((code, bits))
    if dtype is None or lanes != 1:
        raise reader.error(f"expected a dtype that arrays have, got code {code}, {bits} bits, {lanes} lanes")
    if not 0 <= rank <= _MAX_RANK:
        raise reader.error(f"expected a tensor of 0 to {_MAX_RANK} dimensions, got {rank}")
    shape = reader.unpack(f"{rank}q", "a tensor's shape")
    if any(d < 0 for d in shape):
        raise reader.error(f"expected dimensions of at least 0, got {shape}")
    (nbytes,) = reader.unpack("q", "a tensor's size")
    if nbytes != math.prod(shape) * dtype.itemsize:
        raise reader.error(
            f"expected {math.prod(shape) * dtype.itemsize} bytes for {dtype}{shape}, got {nbytes}"
        )
    raw = reader.take(nbytes, "tensor data")
    little = dtype.newbyteorder("<") if dtype.kind in "iuf" else dtype
    return np.frombuffer(raw, little).astype(dtype, copy=True).reshape(shape)


def load_param_dict(data: bytes, where: str = "params") -> dict[str, np.ndarray]:
    """Tensors by name from the bytes of `relay.save_param_dict`; raises InputError for anything else."""
    reader = Reader(data, where)
    magic, _ = reader.unpack("QQ", "a parameter dictionary's header")
    if magic != _DICT_MAGIC:
        raise reader.error(f"expected a Relay parameter dictionary (magic {_DICT_MAGIC:#x}), got {magic:#x}")
    (count,) = reader.unpack("Q", "the number of names")
    names: list[str] = []
    for _ in range(min(count, len(data))):
        (length,) = reader.unpack("Q", "a name's length")
        if length > _MAX_NAME_BYTES:
            raise reader.error(f"expected a name of at most {_MAX_NAME_BYTES} bytes, got {length}")
        names.append(_decode(reader, length))
    (tensors,) = reader.unpack("Q", "the number of tensors")
    if tensors != len(names) or len(set(names)) != len(names):
        raise reader.error(
            f"expected one tensor for each of {len(names)} distinct names, got {tensors} tensors"
        )
    out = {name: read_ndarray(reader) for name in names}
    if reader.offset != len(data):
        raise reader.error(f"expected the end of the file, got {len(data) - reader.offset} more bytes")
    return out


def _decode(reader: Reader, length: int) -> str:
    try:
        return bytes(reader.take(length, "a name")).decode()
    except UnicodeDecodeError:
        raise reader.error("expected a name in UTF-8") from None


def save_param_dict(params: Mapping[str, np.ndarray]) -> bytes:
    """The bytes `relay.save_param_dict` of TVM 0.18 would write, names in the order given."""
    out = [struct.pack("<QQQ", _DICT_MAGIC, 0, len(params))]
    for name in params:
        encoded = name.encode()
        out.append(struct.pack("<Q", len(encoded)) + encoded)
    out.append(struct.pack("<Q", len(params)))
    out.extend(_ndarray_bytes(name, array) for name, array in params.items())
    return b"".join(out)


def _ndarray_bytes(name: str, array: np.ndarray) -> bytes:
    key = _WRITE.get(array.dtype.newbyteorder("=") if array.dtype.kind in "iuf" else array.dtype)
    if key is None:
        raise InputError(f"expected a dtype Relay stores, got {array.dtype}", where=name)
    raw = array.astype(array.dtype.newbyteorder("<")) if array.dtype.kind in "iuf" else array
    head = struct.pack("<QQiiiBBH", _ARRAY_MAGIC, 0, 1, 0, array.ndim, *key, 1)
    return head + struct.pack(f"<{array.ndim}qq", *array.shape, array.nbytes) + raw.tobytes()


def open_params(path: str | Path) -> NpzFile | dict[str, np.ndarray]:
    """Tensors by name from a .npz, a .safetensors or a Relay parameter dictionary file (told by content).

    Those of a .npz, which may be far larger than the file, are not read yet.
    """
    file = file_path(path)
    require_regular(file, "parameters")
    try:
        with file.open("rb") as stream:
            start = stream.read(10)
        if start.startswith((b"PK\x03\x04", b"PK\x05\x06", b"\x93NUMPY")):
            return NpzFile(file)
        if start[8:9] == b"{" or file.suffix == ".safetensors":
            return _load_safetensors(file)
        return load_param_dict(read_bounded(file, MAX_BYTES, "file of parameters"), str(file))
    except OSError as error:
        raise InputError(f"cannot read the parameters: {error.strerror or error}", where=str(file)) from None


def load_params(path: str | Path) -> dict[str, np.ndarray]:
    """All tensors of `open_params`."""
    params = open_params(path)
    return params.read(params.headers) if isinstance(params, NpzFile) else params


def _load_safetensors(file: Path) -> dict[str, np.ndarray]:
    try:
        return dict(safetensors.numpy.load_file(file))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise _unreadable("a .safetensors file of plain arrays", error, file) from None


def _unreadable(expected: str, error: Exception, file: Path) -> InputError:
    return InputError(f"expected {expected}, got: {' '.join(str(error).split())[:200]}", where=str(file))
