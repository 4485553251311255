"""Amounts of memory as people write them: `2GiB`, `512 MB`, `4096`."""

from __future__ import annotations

import re

from tilewright.ir import InputError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def memory_bytes(amount: int | str, *, where: str = "memory_cap") -> int:
    """Bytes of a number or of a text with a unit (KiB, MiB, GiB, TiB, or kB, MB, GB, TB of 1000 each).

    Raises InputError naming `where` for anything else and for less than one byte.
    """
    if isinstance(amount, str):
        match = _SIZE.fullmatch(amount)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise InputError(
                f"expected an amount of memory such as 2GiB or 512MB, got {amount!r}", where=where
            )
        nbytes = int(float(match[1]) * unit)
    elif type(amount) is int:
        nbytes = amount
    else:
        raise InputError(f"expected bytes or a text such as 2GiB, got {amount!r}", where=where)
    if nbytes < 1:
        raise InputError(f"expected at least 1 byte, got {amount!r}", where=where)
    return nbytes


def shown_bytes(nbytes: int) -> str:
    """The amount in the largest binary unit of which there is at least one, rounded up to two places."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if nbytes >= 1024**power:
            return f"{-(-nbytes * 100 // 1024**power) / 100:g}{unit}"
    return f"{nbytes}B"
