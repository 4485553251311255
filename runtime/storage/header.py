"""The header of a store: a safetensors file whose data begin at a page and whose steps are whole pages.

The format allows spaces behind its JSON and forbids holes between tensors, so gaps are tensors of bytes named
`__padding__.N`. Every safetensors reader reads a store; this one takes only headers it would write itself.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.direct_file import DirectFile
from tilewright.runtime.storage.layout import (
    BLOCK_BYTES,
    PAGE_BYTES,
    StepSpec,
    StoreLayout,
    TensorSpec,
    plan_layout,
    round_up,
)
from tilewright.runtime.strict_json import MAX_JSON_CHARS, JsonFields, load_strict_json

STORE_VERSION = 1
_FORMAT = "tilewright-store"
_PADDING = "__padding__."
_METADATA = "__metadata__"
_DTYPE_NAMES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
}  # fmt: skip
_DTYPES_BY_NAME = {name: dtype for dtype, name in _DTYPE_NAMES.items()}

Checksums = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class StoreHeader:
    """A store's steps and where they lie in the file, and per step the CRC-32 of each `BLOCK_BYTES` of it."""

    layout: StoreLayout
    checksums: tuple[Checksums, ...]


def block_count(nbytes: int) -> int:
    """Return the number of checksums of a step of `nbytes`."""
    return -(-nbytes // BLOCK_BYTES)


def encode_header(header: StoreHeader) -> bytes:
    """The bytes in front of the first step, whole pages; their number does not depend on the checksums.

    Offsets in `header.layout` count from the first step. Raises `InputError` for names the format
    keeps to itself and for more names and blocks than a reader takes.
    """
    prefix = _prefix()
    text = f'{prefix}"header_crc32":"{0:08x}",{_body(header)}'
    if len(text) > MAX_JSON_CHARS - PAGE_BYTES:
        raise InputError(
            f"expected a header of at most {MAX_JSON_CHARS} bytes, got {len(text)}: split the tensors into "
            "several stores"
        )
    nbytes = round_up(8 + len(text), PAGE_BYTES)
    return _sealed(struct.pack("<Q", nbytes - 8) + text.ljust(nbytes - 8).encode())


def _sealed(data: bytes) -> bytes:
    """The header with its checksum, which is that of a header with zeros in its place."""
    at = 8 + len(f'{_prefix()}"header_crc32":"')
    blank = data[:at] + b"0" * 8 + data[at + 8 :]
    return data[:at] + f"{zlib.crc32(blank):08x}".encode() + data[at + 8 :]


def _prefix() -> str:
    return f'{{"{_METADATA}":{{"format":"{_FORMAT}","version":"{STORE_VERSION}",'


def _body(header: StoreHeader) -> str:
    steps = [[step.name, len(step.tensors)] for step in header.layout.steps]
    checksums = np.concatenate([np.empty(0, np.uint32), *header.checksums])
    metadata = {
        "block_bytes": str(BLOCK_BYTES),
        "crc32": checksums.astype(">u4").tobytes().hex(),
        "steps": _compact(steps),
    }
    tensors = _entries(header.layout)
    return f"{_compact(metadata)[1:]}{',' if tensors else ''}{_compact(tensors)[1:]}"


def _entries(layout: StoreLayout) -> dict[str, Any]:
    """The entry of every tensor and of every gap, in the order of their bytes."""
    entries: dict[str, Any] = {}
    end = 0

    def pad_to(offset: int) -> None:
        if offset > end:
            entries[f"{_PADDING}{len(entries)}"] = _entry("U8", (offset - end,), end, offset)

    for step in layout.steps:
        for tensor, start in zip(step.tensors, step.starts, strict=True):
            if tensor.name.startswith(_PADDING) or tensor.name == _METADATA:
                raise InputError(f"tensor {tensor.name!r:.100}: the file format keeps this name to itself")
            begin = step.offset + start
            pad_to(begin)
            end = begin + tensor.nbytes
            entries[tensor.name] = _entry(_DTYPE_NAMES[tensor.dtype], tensor.shape, begin, end)
        pad_to(step.offset + step.nbytes)
        end = step.offset + step.nbytes
    return entries


def _entry(dtype: str, shape: tuple[int, ...], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def _compact(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"))


def read_header(file: DirectFile) -> StoreHeader:
    """The header of an open store, offsets counted from the beginning of the file.

    Anything but what this version writes, and a file of another size than the header says, is one
    `InputError` naming the file; work and memory are bounded by the size of the file and 32 MiB.
    Raises `StorageError` where storage fails.
    """
    try:
        data = _header_bytes(file)
        header = _decoded(data)
        size, expected = file.state().nbytes, len(data) + header.layout.nbytes
        if size != expected:
            raise InputError(f"expected {expected} bytes, as its header says, got {size}")
    except InputError as error:
        raise InputError(f"{file.path}: {error}") from None
    return StoreHeader(header.layout.shifted(len(data)), header.checksums)


def _header_bytes(file: DirectFile) -> bytes:
    size = file.state().nbytes
    head = file.read_start(min(size, PAGE_BYTES))
    prefix = _prefix().encode()
    if not head[8:].startswith(prefix.split(b'"version"')[0]):
        raise InputError("expected a store of tensors in steps, got another or a damaged file")
    if not head[8:].startswith(prefix):
        raise InputError(f"expected a store of version {STORE_VERSION}, got another version")
    nbytes = int(struct.unpack("<Q", head[:8])[0]) + 8
    if nbytes > min(size, MAX_JSON_CHARS) or nbytes % PAGE_BYTES:
        raise InputError(f"its header claims {nbytes} bytes; the file has {size}")
    data = file.read_start(nbytes)
    if _sealed(data) != data:
        raise InputError("its header is damaged: it has not the checksum that it states")
    return data


def _decoded(data: bytes) -> StoreHeader:
    try:
        entries = load_strict_json(data[8:].decode("ascii"), "header")
    except UnicodeDecodeError:
        raise InputError("header: expected ASCII text") from None
    metadata = JsonFields(
        entries.pop(_METADATA),
        _METADATA,
        ("format", "version", "header_crc32", "block_bytes", "crc32", "steps"),
    )
    named = [(name, entry) for name, entry in entries.items() if not name.startswith(_PADDING)]
    steps = load_strict_json(metadata.text("steps"), "steps")
    layout = plan_layout(_step_specs(steps, [_tensor_spec(name, entry) for name, entry in named]))
    header = StoreHeader(layout, _split_checksums(metadata.text("crc32"), layout))
    # Whatever else it says wrong (offsets, padding, order, spaces) shows here.
    if encode_header(header) != data:
        raise InputError("header: its offsets and sizes are not those that belong to its tensors")
    return header


def _tensor_spec(name: str, entry: Any) -> TensorSpec:
    fields = JsonFields(entry, f"tensor {name!r:.100}", ("dtype", "shape", "data_offsets"))
    dtype = _DTYPES_BY_NAME.get(fields.text("dtype"))
    if dtype is None:
        raise InputError(f"tensor {name!r:.100}: unknown element type {fields.text('dtype')!r:.100}")
    return TensorSpec(name, dtype, fields.integers("shape"))


def _step_specs(steps: Any, tensors: list[TensorSpec]) -> list[StepSpec]:
    """The steps, each with as many of the tensors as it says."""
    specs: list[StepSpec] = []
    taken = 0
    for number, step in enumerate(steps if isinstance(steps, list) else [steps]):
        if not (isinstance(step, list) and [type(part) for part in step] == [str, int] and step[1] >= 0):
            raise InputError(f"step {number}: expected a name and a count of tensors, got {step!r:.100}")
        specs.append(StepSpec(step[0], tuple(tensors[taken : taken + step[1]])))
        taken += step[1]
    if taken != len(tensors):
        raise InputError(f"steps: expected {len(tensors)} tensors in all, got {taken}")
    return specs


def _split_checksums(text: str, layout: StoreLayout) -> tuple[Checksums, ...]:
    try:
        data = bytes.fromhex(text)
    except ValueError:
        raise InputError("crc32: expected hexadecimal digits") from None
    counts = [block_count(step.nbytes) for step in layout.steps]
    if len(data) != 4 * sum(counts):
        raise InputError(f"crc32: expected {sum(counts)} checksums, got {len(data) / 4:g}")
    checksums = np.frombuffer(data, ">u4").astype(np.uint32)
    return tuple(np.split(checksums, np.cumsum(counts)[:-1]))
