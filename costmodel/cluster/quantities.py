"""Quantities as people write them ("16 GB/s", "24 GiB", "5 us"): text in, a number in SI base units out."""

from __future__ import annotations

import re

from tilewright.ir.errors import InputError

_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)\s*(\S.*?)\s*")
_DECIMAL = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BYTES = {
    **{f"{prefix}B": factor for prefix, factor in _DECIMAL.items()},
    **{f"{prefix}iB": 1024.0**power for power, prefix in enumerate("KMGTP", 1)},
}
#: dimension -> (example, unit -> factor to the base unit)
DIMENSIONS: dict[str, tuple[str, dict[str, float]]] = {
    "bytes": ("24 GiB", _BYTES),
    "bytes_per_s": ("16 GB/s", {f"{unit}/s": factor for unit, factor in _BYTES.items()}),
    "seconds": ("5 us", {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}),
    "flops_per_s": ("125 TFLOP/s", {f"{prefix}FLOP/s": factor for prefix, factor in _DECIMAL.items()}),
}


def quantity(value: object, dimension: str, where: str) -> float:
    """`value` in base units of `dimension` (a key of DIMENSIONS): bytes, bytes/s, seconds or FLOP/s.

    Raises InputError at `where` (file and field) for anything that is not a number with such a unit.
    """
    example, units = DIMENSIONS[dimension]
    found = _NUMBER.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[2] not in units:
        raise InputError(f'expected a quantity such as "{example}", got {value!r:.60}', where=where)
    result = float(found[1]) * units[found[2]]
    if not result < 1e30:
        raise InputError(f"expected less than 1e30 base units, got {value!r:.60}", where=where)
    return result
