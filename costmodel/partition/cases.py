"""What a device must do between two layers: keep, crop or fetch rows, decided by intervals.

Own output interval and required input interval in, case, crop and fetched pieces out; the printed decision
by size is not used, because intervals of equal size may be shifted.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from tilewright.costmodel.partition.naive import Interval
from tilewright.ir.errors import InputError


class Case(Enum):
    """The thesis' cases of its graph optimizer, and (f), which it leaves out."""

    FETCH = "b"
    KEEP = "c"
    CROP = "d"
    CROP_AND_FETCH = "e"
    FETCH_ALL = "f"


class Fetch(NamedTuple):
    """Rows that one device fetches from the device that owns them."""

    owner: int
    rows: Interval


def length(interval: Interval) -> int:
    """Rows of an interval; 0 for an empty one."""
    return max(0, interval[1] - interval[0])


def intersection(a: Interval, b: Interval) -> Interval:
    """Rows in both; [s, s) where there are none."""
    start = max(a[0], b[0])
    return start, max(start, min(a[1], b[1]))


def difference(a: Interval, b: Interval) -> list[Interval]:
    """Rows of `a` that are not in `b`: at most two non-empty intervals in order."""
    if not length(intersection(a, b)):
        return [a] if length(a) else []
    return [part for part in ((a[0], b[0]), (b[1], a[1])) if length(part)]


def case_of(own: Interval, required: Interval) -> Case:
    """Which case holds for rows `own` of a layer and rows `required` by the next; nothing required: CROP."""
    if own == required or not length(own) + length(required):
        return Case.KEEP
    if not length(required):
        return Case.CROP
    if not length(intersection(own, required)):
        return Case.FETCH_ALL
    if not difference(required, own):
        return Case.CROP
    return Case.FETCH if not difference(own, required) else Case.CROP_AND_FETCH


def fetched_rows(own: Interval, required: Interval) -> int:
    """|required without own|: the dependency of a device."""
    return length(required) - length(intersection(own, required))


def cropped_rows(own: Interval, required: Interval) -> int:
    """|own without required|: rows that were made and are not used (crop waste)."""
    return length(own) - length(intersection(own, required))


def fetches(owned: Sequence[Interval], required: Interval, device: int) -> list[Fetch]:
    """The rows `device` lacks, split by owner, in order of rows.

    A row owned by several devices comes from the first of them. Raises InputError where nobody owns a row.
    """
    found: list[Fetch] = []
    for start, end in difference(required, owned[device]):
        row = start
        while row < end:
            owner = next((i for i, (s, e) in enumerate(owned) if s <= row < e), None)
            if owner is None:
                raise InputError(
                    f"expected owners of all rows that device {device} needs, got none of row {row}"
                )
            borders = [b for i in range(owner + 1) for b in owned[i] if row < b < end]
            stop = min([*borders, end])
            if found and found[-1].owner == owner and found[-1].rows[1] == row:
                found[-1] = Fetch(owner, (found[-1].rows[0], stop))
            else:
                found.append(Fetch(owner, (row, stop)))
            row = stop
    return found


def fetch_matrix(owned: Sequence[Interval], required: Sequence[Interval]) -> list[list[int]]:
    """Rows that device i fetches from device j, as matrix[i][j]; InputError as in `fetches`."""
    matrix = [[0] * len(owned) for _ in required]
    for device, rows in enumerate(required):
        for fetch in fetches(owned, rows, device):
            matrix[device][fetch.owner] += length(fetch.rows)
    return matrix
