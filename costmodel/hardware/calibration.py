"""A calibration: constants measured on one device, laid over the record that comes with Tilewright.

Constants of the bound only move to the optimistic side, so that measuring never makes the bound unsound;
those of the estimators are replaced, unless they were fitted together to whole kernels.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from tilewright.costmodel.hardware.description import SHIPPED, GpuHardware, Hardware
from tilewright.ir.errors import InputError

FORMAT = 1
SOURCE = "measured by tilewright calibrate"
MAX_BYTES = 1 << 20

#: `raise`: the greater of shipped and measured; `lower`: the smaller; `replace`: the measured one
Role = Literal["raise", "lower", "replace"]

GPU_ROLES: Mapping[str, Role] = {
    "clock_hz": "raise",
    "dram_bytes_per_s": "raise",
    "l2_bytes_per_clk": "raise",
    "smem_bytes_per_sm_per_clk": "raise",
    "mma_sync_share": "raise",
    "launch_floor_s": "lower",
    "lat_fetch_clk": "lower",
    "lat_smem_clk": "lower",
    "lat_fma_clk": "lower",
    "lat_mma_clk": "lower",
    "lat_l2_clk": "lower",
    "estimate_launch_s": "replace",
    "estimate_barrier_clk": "replace",
    "estimate_dram_efficiency": "replace",
    "estimate_l2_bytes_per_sm_per_clk": "replace",
    "estimate_mma_efficiency": "replace",
}
CPU_ROLES: Mapping[str, Role] = {
    "clock_hz": "raise",
    "dram_bytes_per_s": "raise",
    "launch_floor_s": "lower",
    "estimate_clock_hz": "replace",
    "estimate_dram_bytes_per_s": "replace",
    "estimate_launch_s": "replace",
    "estimate_work_group_s": "replace",
}
#: constants that are shares of something
_SHARES = frozenset({"mma_sync_share", "estimate_dram_efficiency", "estimate_mma_efficiency"})
#: a measured constant this many times greater or smaller than the shipped one is no measurement
_PLAUSIBLE = 1000.0
_FITTED = "fitted"


@dataclass(frozen=True)
class Measured:
    """One measured quantity: value, unit, timed runs, and their quartile distance over their median."""

    value: float
    unit: str
    samples: int
    spread: float


@dataclass(frozen=True)
class Calibration:
    """A measurement of one device: its constants, where and when.

    record: the name of the record it belongs to. device, driver: as the driver reports them. measured: ISO
    date and time. constants: by field of the record. facts: quantities that enter no record, by name.
    """

    record: str
    device: str
    driver: str
    measured: str
    constants: tuple[tuple[str, Measured], ...]
    facts: tuple[tuple[str, Measured], ...] = ()

    @property
    def origin(self) -> str:
        """The origin of the constants of a calibrated record, in a few words."""
        return f"calibrated {self.measured} on {self.device} ({self.driver})"


def roles_of(hardware: Hardware) -> Mapping[str, Role]:
    """The constants of a record that can be measured, and how a measured one is taken."""
    return GPU_ROLES if isinstance(hardware, GpuHardware) else CPU_ROLES


def calibrated(hardware: Hardware, calibration: Calibration, where: str = "") -> Hardware:
    """The record with what was measured, which its `origin` tells.

    Raises InputError where the calibration belongs to another record or holds what cannot have been measured.
    """
    if calibration.record != hardware.name:
        raise InputError(
            f"expected a calibration of the record {hardware.name}, got one of {calibration.record!r:.80}",
            where=where,
        )
    roles, fitted = roles_of(hardware), fitted_constants(hardware)
    changes: dict[str, Any] = {}
    for name, quantity in calibration.constants:
        if name not in roles:
            raise InputError(f"unknown constant {name!r:.80} in a calibration", where=where)
        shipped = float(getattr(hardware, name))
        _check_plausible(name, quantity.value, shipped, where)
        if name not in fitted:
            changes[name] = _taken(roles[name], shipped, quantity.value)
    return replace(_own(hardware, changes), **changes, origin=calibration.origin)


def calibrated_constants(hardware: Hardware) -> dict[str, float]:
    """Return the constants that a calibrated record holds in place of shipped ones; none for a shipped
    one.
    """
    if hardware.origin == SHIPPED:
        return {}
    return {name: float(getattr(hardware, name)) for name in roles_of(hardware)}


def with_constants(
    shipped: Hardware, constants: Mapping[str, object], origin: str, where: str = ""
) -> Hardware:
    """The record that `calibrated_constants` was asked of; raises InputError for what none can hold."""
    roles, changes = roles_of(shipped), {}
    for name, value in constants.items():
        if name not in roles or not isinstance(value, float):
            raise InputError(f"expected calibrated constants, got {name!r:.80} = {value!r:.40}", where=where)
        _check_plausible(name, value, float(getattr(shipped, name)), where)
        changes[name] = value
    return replace(_own(shipped, changes), **changes, origin=origin)  # type: ignore[arg-type]


def _own(hardware: Hardware, measured: Mapping[str, object]) -> Hardware:
    """The record without the source devices of the constants that a measurement here replaces."""
    changed = {name for name, value in measured.items() if value != getattr(hardware, name)}
    return replace(hardware, devices=tuple(entry for entry in hardware.devices if entry[0] not in changed))


def fitted_constants(hardware: Hardware) -> frozenset[str]:
    """Constants of the estimators that a measurement does not replace.

    They were fitted together to whole kernels of this device: one of them alone says nothing.
    """
    roles = roles_of(hardware)
    return frozenset(
        name
        for name, source in hardware.sources
        if roles.get(name) == "replace" and source.startswith(_FITTED)
    )


def _taken(role: Role, shipped: float, measured: float) -> float:
    if role == "replace":
        return measured
    return max(shipped, measured) if role == "raise" else min(shipped, measured)


def _check_plausible(name: str, value: float, shipped: float, where: str) -> None:
    low, high = shipped / _PLAUSIBLE, 1.0 if name in _SHARES else shipped * _PLAUSIBLE
    if not low <= value <= high:
        raise InputError(f"expected {name} from {low:g} to {high:g}, got {value:g}", where=where)


def calibration_text(calibration: Calibration) -> str:
    """The calibration as TOML, one line per quantity; `read_calibration` reads it."""
    head = {name: getattr(calibration, name) for name in _TEXTS}
    lines = [f"format = {FORMAT}", *(f"{name} = {_quoted(text)}" for name, text in head.items())]
    for table in _TABLES:
        lines += ["", f"[{table}]"]
        for name, m in getattr(calibration, table):
            lines.append(
                f"{name} = {{ value = {float(m.value)!r}, unit = {_quoted(m.unit)}, "
                f"source = {_quoted(SOURCE)}, samples = {m.samples}, spread = {float(m.spread)!r} }}"
            )
    return "\n".join(lines) + "\n"


def read_calibration(raw: bytes, where: str) -> Calibration:
    """A calibration from the bytes of its file; raises InputError naming the file and the faulty key."""
    try:
        table = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"expected a calibration as TOML in UTF-8: {error}", where=where) from error
    keys = {"format", *_TEXTS, *_TABLES}
    if set(table) != keys:
        odd = sorted(set(table) ^ keys)[0]
        fault = "unknown" if odd in table else "missing"
        raise InputError(f"{fault} key {odd!r:.80} in a calibration", where=where)
    if type(table["format"]) is not int or table["format"] != FORMAT:
        raise InputError(
            f"expected format {FORMAT} of a calibration, got {table['format']!r:.40}", where=where
        )
    for name in _TEXTS:
        if not isinstance(table[name], str) or not table[name].isprintable() or not table[name]:
            raise InputError(
                f"expected {name} to be a text of one line, got {table[name]!r:.80}", where=where
            )
    known = {*GPU_ROLES, *CPU_ROLES}
    tables = [_quantities(table[name], known if name == "constants" else None, where) for name in _TABLES]
    return Calibration(*(table[name] for name in _TEXTS), *tables)


_TEXTS = ("record", "device", "driver", "measured")
_TABLES = ("constants", "facts")
_ENTRY = {f.name for f in fields(Measured)} | {"source"}


def _quantities(table: object, known: set[str] | None, where: str) -> tuple[tuple[str, Measured], ...]:
    if not isinstance(table, dict):
        raise InputError("expected a table of measured quantities in a calibration", where=where)
    for name in table:
        if not name.isprintable() or (known is not None and name not in known):
            raise InputError(f"unknown constant {name!r:.80} in a calibration", where=where)
    return tuple((name, _measured(name, entry, where)) for name, entry in table.items())


def _measured(name: str, entry: object, where: str) -> Measured:
    if not isinstance(entry, dict) or set(entry) != _ENTRY:
        raise InputError(
            f"expected {name} = {{ value, unit, source, samples, spread }}, got {entry!r:.80}", where=where
        )
    if entry["source"] != SOURCE or not isinstance(entry["unit"], str) or not entry["unit"].isprintable():
        raise InputError(f"expected {name} with a unit and the source {SOURCE!r}", where=where)
    if type(entry["samples"]) is not int or not 1 <= entry["samples"] <= 1 << 31:
        raise InputError(f"expected {name} of at least one sample, got {entry['samples']!r:.40}", where=where)
    for key in ("value", "spread"):
        if type(entry[key]) is not float or not 0.0 <= entry[key] < math.inf:
            raise InputError(f"expected a {key} of {name} of at least 0, got {entry[key]!r:.40}", where=where)
    return Measured(entry["value"], entry["unit"], entry["samples"], entry["spread"])


def _quoted(text: str) -> str:
    """A TOML basic string; what is not printable ASCII becomes a question mark."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
