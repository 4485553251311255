"""Reads hardware records from TOML: by device name, by target string, or from a user's file."""

from __future__ import annotations

import platform
import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast, get_type_hints

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.errors import InputError
from tilewright.ir.machine import usable_cores

_RECORDS = Path(__file__).parent / "records"
_KINDS: dict[str, type[GpuHardware] | type[CpuHardware]] = {"gpu": GpuHardware, "cpu": CpuHardware}
#: the tables of coefficients that a record of a kind has, by name
_COEFFICIENTS: dict[str, dict[str, type[Any]]] = {
    kind: {
        name: cast("type[Any]", form) for name, form in get_type_hints(record).items() if is_dataclass(form)
    }
    for kind, record in _KINDS.items()
}
#: the architecture that has instructions of warpgroups; neither older nor newer ones, nor sm_90 have them
WARPGROUP_ARCH = "sm_90a"


class _Limits(NamedTuple):
    """Shared memory of a block and of a multiprocessor in KiB; threads and blocks of a multiprocessor."""

    block_kib: int
    sm_kib: int
    threads: int
    blocks: int


#: limits of architectures without a record that are below those of their closest relatives; CUDA C++
#: Programming Guide, technical specifications per compute capability
_LIMITS = {
    "sm_86": _Limits(99, 100, 1536, 16),
    "sm_87": _Limits(163, 164, 1536, 16),
    "sm_89": _Limits(99, 100, 1536, 24),
    "sm_120": _Limits(99, 100, 1536, 24),
    "sm_121": _Limits(99, 100, 1536, 24),
}
#: constants that may be 0
_MAY_BE_ZERO = frozenset(
    {
        "smem_reserved_per_block_bytes",
        "tensor_fma_16bit_per_sm_per_clk",
        "tensor_fma_tf32_per_sm_per_clk",
        "wgmma_share",
        "matrix.warpgroup_overlapped_clk",
    }
)
#: a lane of a SIMD register holds a float32; processors with registers of 512 bits have 32 of them, as those
#: of ARM have, other x86 processors 16 (their manuals of the instruction set)
_LANE_BITS, _WIDEST_BITS = 32, 512
_ARM = ("aarch64", "arm64")
#: constants of records of older versions, which nothing reads any more: they are passed over
_DROPPED = frozenset(
    {
        "estimate_block_clk",
        "estimate_clk_per_instruction",
        "estimate_overlap_loss",
        "lat_smem_printed_clk",
        "smem_per_block_default_bytes",
    }
)
#: prefixes of constants that are coefficients of a table now: records of older versions have no others, and
#: take those from the record that all were fitted for
_FORMER_PREFIXES = {"contract_": "contract", "fusion_": "fusion", "estimate_matrix_": "matrix"}
_FORMER_LENDER = "H100"
_KEYS = frozenset({"name", "kind", "targets", "device_names", "coefficients_of", "constants"})
_IDENTITY = ("name", "targets", "device_names", "sources", "origin", "devices", "stands_for")
_MAX_RECORD_BYTES = 1 << 20


def load_hardware(name: str) -> Hardware:
    """The record called `name`: a record name ("H100"), a target ("cuda:sm_90a", "opencl") or a device name.

    A device name as a driver reports it ("NVIDIA H100 80GB HBM3") matches a record whose `device_names` entry
    it contains as a word. Raises InputError naming the known records and targets.
    """
    if (record := find_hardware(name)) is not None:
        return record
    raise _unknown(name)


def find_hardware(name: str) -> Hardware | None:
    """The record that `load_hardware` gives, or None where there is none of that name.

    Raises InputError where a device name matches several records, and where a record is damaged.
    """
    key = name.strip().lower()
    records = known_hardware()
    for record in records:
        if key == record.name.lower():
            return record
        if key in record.targets:
            return compiled_for(record, key.partition(":")[2])
    hits = [(part, r) for r in records for part in r.device_names if _has_word(key, part.lower())]
    # "H100 NVL" counts, not the "H100" within it
    hits = [(p, r) for p, r in hits if not any(p != other and _has_word(other, p) for other, _ in hits)]
    if len({r.name for _, r in hits}) > 1:
        raise _unknown(name)
    return hits[0][1] if hits else None


def nearest_hardware(arch: str) -> GpuHardware:
    """The record of the architecture `arch` ("sm_89"), else of the newest recorded one that is not newer.

    Of an architecture older than all recorded ones, the record of the oldest. Raises InputError where a
    record is damaged, or `arch` has no number.
    """
    if not (digits := re.search(r"\d+", arch)):
        raise InputError(f"expected an architecture such as sm_80 or sm_90a, got '{arch}'")
    number = int(digits[0])
    known = sorted(
        (int(match[1]), target, record)
        for record in known_hardware()
        for target in record.targets
        if isinstance(record, GpuHardware) and (match := re.fullmatch(r"cuda:sm_(\d+)a?", target))
    )
    not_newer = [entry for entry in known if entry[0] <= number]
    return (not_newer[-1] if not_newer else known[0])[2]


def _has_word(text: str, word: str) -> bool:
    """Return whether `word` stands in `text` by itself: "h200" does in "nvidia h200", and not in "nvidia
    gh200".
    """
    return re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", text) is not None


def _unknown(name: str) -> InputError:
    records = known_hardware()
    names = ", ".join(r.name for r in records)
    targets = ", ".join(t for r in records for t in r.targets)
    return InputError(
        f"expected a known device or target, got {name!r}; devices: {names}; targets: {targets}"
    )


def compiled_for(record: Hardware, arch: str) -> Hardware:
    """The record, of a device or of its closest relative, as code for an architecture ("sm_89") sees it.

    `wgmma` is of sm_90a alone; shared memory, threads and blocks are no more than the architecture has.
    """
    if not isinstance(record, GpuHardware):
        return record
    if arch != WARPGROUP_ARCH and record.wgmma_share:
        record = replace(record, wgmma_share=0.0)
    if (most := _LIMITS.get(arch.rstrip("af"))) is None:
        return record
    return replace(
        record,
        smem_per_block_max_bytes=min(record.smem_per_block_max_bytes, most.block_kib << 10),
        smem_per_sm_bytes=min(record.smem_per_sm_bytes, most.sm_kib << 10),
        max_threads_per_sm=min(record.max_threads_per_sm, most.threads),
        max_blocks_per_sm=min(record.max_blocks_per_sm, most.blocks),
    )


@cache
def known_hardware() -> tuple[Hardware, ...]:
    """Return all records that come with Tilewright, ordered by file name."""
    return tuple(_record_from_table(_shipped(path), str(path)) for path in sorted(_RECORDS.glob("*.toml")))


def load_hardware_file(path: str | Path) -> Hardware:
    """The record in the TOML file `path`. Raises InputError naming the file and the faulty key."""
    return _record_from_table(_toml(path), str(path))


@cache
def _shipped(path: Path) -> Mapping[str, Any]:
    return _toml(path)


def _toml(path: str | Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_bounded(path, _MAX_RECORD_BYTES, "hardware record").decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"expected TOML in UTF-8: {error}", where=str(path)) from error


def fill_from_machine(record: CpuHardware, vector_bits: int | None = None) -> CpuHardware:
    """`record` with cores, SIMD lanes and vector registers of the running machine.

    Cores are those this process may run on. vector_bits: width of the vectors that the compiler of the device
    takes, which may be older than the processor; None takes the widest that the processor's flags name, and
    what is recorded where the system does not show them.
    """
    lanes = _lanes_of_machine(record) if vector_bits is None else vector_bits // _LANE_BITS
    many = platform.machine() in _ARM or lanes * _LANE_BITS == _WIDEST_BITS
    return replace(record, cores=usable_cores(), simd_lanes=lanes, vector_registers=32 if many else 16)


def _lanes_of_machine(record: CpuHardware) -> int:
    if platform.machine() in _ARM:
        return 4
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return record.simd_lanes
    if "avx512f" in flags:
        return _WIDEST_BITS // _LANE_BITS
    return 8 if "avx2" in flags else 4


def _record_from_table(table: Mapping[str, Any], where: str) -> Hardware:
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InputError(f'expected kind = "gpu" or "cpu", got {kind!r}', where=where)
    record_type = _KINDS[kind]
    coefficients = _COEFFICIENTS[kind]
    if unknown := sorted(set(table) - _KEYS - set(coefficients)):
        raise InputError(f"unknown key {unknown[0]!r} in a hardware record", where=where)
    name = table.get("name")
    if not isinstance(name, str) or not name:
        raise InputError(f"expected name to be a non-empty string, got {name!r}", where=where)
    constants = table.get("constants")
    if not isinstance(constants, dict):
        raise InputError("expected a table [constants]", where=where)
    tables = {key: table[key] for key in table if key not in _KEYS}
    lender = table.get("coefficients_of")
    if former := {key: entry for key, entry in constants.items() if key.startswith(tuple(_FORMER_PREFIXES))}:
        lender = lender or _FORMER_LENDER
    constants = {key: entry for key, entry in constants.items() if key not in {*former, *_DROPPED}}
    plain = {f.name: str(f.type) for f in fields(record_type) if f.name not in _IDENTITY}
    plain = {key: form for key, form in plain.items() if key not in coefficients}
    values, sources, devices = _read_constants(plain, constants, "", where)
    lent = _lent(coefficients, lender, where) if lender is not None else None
    for key, form in coefficients.items():
        forms = {f.name: str(f.type) for f in fields(form)}
        entries = dict(lent[key]) if lent is not None and key not in tables else tables.get(key)
        if not isinstance(entries, dict):
            raise InputError(
                f"expected a table [{key}] of coefficients, or coefficients_of naming a record with one",
                where=where,
            )
        for prefix in (p for p, owner in _FORMER_PREFIXES.items() if owner == key):
            entries |= {c[len(prefix) :]: entry for c, entry in former.items() if c.startswith(prefix)}
        more, of, on = _read_constants(forms, entries, f"{key}.", where)
        values[key], sources, devices = form(**more), sources + of, devices + on
    targets = _strings(table.get("targets", []), "targets", where)
    device_names = _strings(table.get("device_names", []), "device_names", where)
    return record_type(
        name=name, targets=targets, device_names=device_names, sources=sources, devices=devices, **values
    )


def _lent(forms: Mapping[str, type[Any]], lender: object, where: str) -> Mapping[str, Mapping[str, Any]]:
    """The tables of coefficients of the shipped record `lender`, which has all of its own."""
    path = _RECORDS / f"{str(lender).replace(' ', '').lower()}.toml"
    if path.is_file():
        table = _shipped(path)
        tables = {key: table[key] for key in forms if key in table}
        if table.get("name") == lender and len(tables) == len(forms):
            return tables
    raise InputError(
        f"expected coefficients_of to be the name of a record that has all of them, got {lender!r:.80}",
        where=where,
    )


def _read_constants(
    forms: Mapping[str, str], constants: Mapping[str, Any], prefix: str, where: str
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
    """Return the values of a table, the sources, and the devices of those that name one.

    forms: name -> type of each constant. prefix: of the names under which sources and devices are kept.
    """
    missing = [key for key in forms if key not in constants]
    unknown = sorted(set(constants) - set(forms))
    if missing or unknown:
        fault = "missing" if missing else "unknown"
        name = prefix + (missing or unknown)[0]
        raise InputError(f"{fault} constant {name!r} in the hardware record", where=where)
    values = {key: _value(constants[key], form == "int", prefix + key, where) for key, form in forms.items()}
    sources = tuple((prefix + key, constants[key]["source"]) for key in forms)
    devices = tuple((prefix + key, constants[key]["device"]) for key in forms if "device" in constants[key])
    return values, sources, devices


def _value(entry: object, whole: bool, key: str, where: str) -> float | int:
    shape = "{ value = NUMBER, source = TEXT } with device = TEXT where it was measured on one"
    if not isinstance(entry, dict) or set(entry) - {"device"} != {"value", "source"}:
        raise InputError(f"expected {key} = {shape}, got {entry!r:.80}", where=where)
    value, source = entry["value"], entry["source"]
    if not isinstance(source, str) or not source.strip():
        raise InputError(f"expected a source for {key}", where=where)
    device = entry.get("device", source)
    if not isinstance(device, str) or not device.strip():
        raise InputError(f"expected the device of {key} to be a name, got {device!r:.80}", where=where)
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < 1e18:
        word = "a whole number" if whole else "a number"
        raise InputError(f"expected {key} to be {word} from 0 to below 1e18, got {value!r:.40}", where=where)
    if value == 0 and key not in _MAY_BE_ZERO:
        raise InputError(f"expected {key} to be positive, got 0", where=where)
    return value if whole else float(value)


def _strings(value: object, key: str, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
        raise InputError(f"expected {key} to be a list of non-empty strings, got {value!r:.80}", where=where)
    return tuple(value)
