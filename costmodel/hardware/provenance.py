"""The constants of a record that are numbers of another device, and the sentences that say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tilewright.costmodel.hardware.description import Hardware


def borrowed_constants(hardware: Hardware) -> dict[str, str]:
    """The constants of a record that were measured on, or fitted to, another device: name -> that device."""
    return {name: device for name, device in hardware.devices if device != hardware.name}


def borrowed_text(name: str, borrowed: Mapping[str, str], stands_for: str = "") -> str:
    """One line on the record `name`: what it borrows, and which device it is used for that has no record.

    borrowed: as `borrowed_constants` gives it. stands_for: see `GpuHardware`. Empty where the record has
    only numbers of its own device and is used for no other.
    """
    head = f"hardware record {name}"
    used = f"{head} is used for {stands_for}, which has none of its own" if stands_for else ""
    counts = Counter(borrowed.values()).most_common()
    if not counts:
        return used
    (device, most), *others = counts
    taken = f"takes {most} constant{'' if most == 1 else 's'} from the {device}"
    taken += "".join(f" and {count} from the {other}" for other, count in others)
    return f"{used}; it {taken}" if used else f"{head} {taken}"


def nearest_text(name: str, stands_for: str) -> str:
    """The warning where the record `name` is used for a device without one."""
    return (
        f"{stands_for} has no hardware record; the nearest one, of the {name}, is used: "
        f"bounds and estimates are those of the {name}"
    )
