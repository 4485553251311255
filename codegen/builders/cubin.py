"""Reads what a CUBIN says of its kernels: registers, stack frame, shared memory. A CUBIN is an ELF64 file.

The record formats are those that `cuobjdump -elf` prints: `.nv.info` holds (format, attribute, size)
headers; attributes 0x2f (register count), 0x11 (frame size) and 0x12 (minimum stack size) pair a symbol
index with a value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from tilewright.ir.errors import WorkError

#: shared memory that the system keeps per block from sm_90 on, counted in the kernel's section
SYSTEM_SHARED_BYTES = 1024
_SIZED_VALUE = 0x04
_REGISTER_COUNT, _FRAME_SIZE, _MIN_STACK_SIZE = 0x2F, 0x11, 0x12
_FUNCTION_SYMBOL, _GLOBAL_BINDING = 2, 1


@dataclass(frozen=True)
class Resources:
    """Registers and bytes of local memory (spills included) per thread, static shared bytes per block."""

    registers: int
    spill_bytes: int
    static_shared_bytes: int


@dataclass(frozen=True)
class _Section:
    name: str
    offset: int
    size: int
    link: int
    entry: int


def read_resources(cubin: bytes) -> dict[str, Resources]:
    """Resources by kernel name; raises WorkError where the CUBIN does not say."""
    try:
        sections = _sections(cubin)
        symbols = _functions(cubin, sections)
        values = _attributes(cubin, next(s for s in sections if s.name == ".nv.info"))
    except (struct.error, StopIteration, IndexError, UnicodeDecodeError) as e:
        raise WorkError(f"expected a CUBIN with .nv.info, got something else ({e})") from e
    shared = {
        s.name.removeprefix(".nv.shared."): s.size for s in sections if s.name.startswith(".nv.shared.")
    }
    reserved = SYSTEM_SHARED_BYTES if "reserved.0" in shared else 0
    resources: dict[str, Resources] = {}
    for index, name in symbols.items():
        registers = values.get((_REGISTER_COUNT, index))
        if registers is None:
            raise WorkError(f"the CUBIN does not report the registers of kernel {name!r}")
        stack = max(values.get((_FRAME_SIZE, index), 0), values.get((_MIN_STACK_SIZE, index), 0))
        resources[name] = Resources(registers, stack, max(0, shared.get(name, 0) - reserved))
    return dict(sorted(resources.items()))


def _sections(data: bytes) -> list[_Section]:
    if data[:5] != b"\x7fELF\x02":
        raise WorkError("expected a CUBIN (64-bit ELF)")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry, count, names = struct.unpack_from("<HHH", data, 0x3A)
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(count)]
    strings = raw[names][4]
    return [_Section(_text(data, strings + r[0]), r[4], r[5], r[6], r[9]) for r in raw]


def _functions(data: bytes, sections: list[_Section]) -> dict[int, str]:
    """Names of the global functions (kernels) by symbol index."""
    table = next(s for s in sections if s.name == ".symtab")
    strings = sections[table.link].offset
    out = {}
    for i in range(table.size // table.entry):
        name, info = struct.unpack_from("<IB", data, table.offset + i * table.entry)
        if info & 15 == _FUNCTION_SYMBOL and info >> 4 == _GLOBAL_BINDING:
            out[i] = _text(data, strings + name)
    return out


def _attributes(data: bytes, info: _Section) -> dict[tuple[int, int], int]:
    """(attribute, symbol index) -> value, for records that pair the two."""
    out = {}
    at, end = info.offset, info.offset + info.size
    while at + 4 <= end:
        kind, attribute, size = struct.unpack_from("<BBH", data, at)
        at += 4
        if kind == _SIZED_VALUE:
            if size == 8:
                symbol, value = struct.unpack_from("<II", data, at)
                out[(attribute, symbol)] = value
            at += size
    return out


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode("ascii")
