"""The entries of a tuning database: measurements and choices by key, their checks, and their JSON lines."""

from __future__ import annotations

import json
import math
import os
import zlib
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path

from tilewright.ir import InputError
from tilewright.ir.bounded_file import read_bounded
from tilewright.runtime.atomic_file import atomic_file
from tilewright.runtime.strict_json import JsonFields, load_strict_json

#: part of what makes measurements comparable: another name wherever the way of timing changes
METHOD = "chained launches in one replay, random data"
#: the first line of a file of JSON lines
_HEADER = {"tilewright_tuning": 2, "method": METHOD}
MAX_RECORD_CHARS = 1 << 20
#: files of JSON lines larger than this are refused unread
MAX_FILE_BYTES = 1 << 30
#: what a column of SQLite holds
MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True, order=True)
class Key:
    """The key of a measurement: its program and the machine.

    program: SHA-256 of the kernels' text and of how they are launched and timed. device: its name. driver:
    its version. compiler: what turned the text into machine code.
    """

    program: str
    device: str
    driver: str
    compiler: str


@dataclass(frozen=True)
class Measurement:
    """Median seconds of one run, the distance of the quartiles in seconds, timed runs, and Unix time."""

    seconds: float
    spread_s: float
    repeats: int
    measured_at: int

    def fault(self, key: Key) -> str:
        """The fault of a row of a measurement in a few words; empty where it is well-formed."""
        if not all(isinstance(text, str) for text in astuple(key)) or not key.program:
            return "expected a key of texts with a program"
        if not isinstance(self.seconds, float) or not 0 < self.seconds < math.inf:
            return f"expected positive finite seconds, got {self.seconds!r:.40}"
        if not isinstance(self.spread_s, float) or not 0 <= self.spread_s < math.inf:
            return f"expected a finite spread, got {self.spread_s!r:.40}"
        if type(self.repeats) is not int or not 1 <= self.repeats <= MAX_INTEGER:
            return f"expected at least one repeat, got {self.repeats!r:.40}"
        if type(self.measured_at) is not int or not 0 <= self.measured_at <= MAX_INTEGER:
            return f"expected Unix seconds, got {self.measured_at!r:.40}"
        return ""


@dataclass(frozen=True)
class StoredChoice:
    """A decision on a kernel, a convolution or a network by measurement, as the text of a JSON object.

    It stands under a key whose `program` names what was decided (`kernel:...`), and says by which programs;
    decided_at: Unix time. Whoever reads the record checks what it says (see `tilewright.tuning.choices`).
    """

    record: str
    decided_at: int

    def fault(self, key: Key) -> str:
        """The fault of a row of a choice in a few words; empty where it is well-formed."""
        if not all(isinstance(text, str) for text in astuple(key)) or ":" not in key.program:
            return "expected a key of texts with what was chosen"
        if type(self.decided_at) is not int or not 0 <= self.decided_at <= MAX_INTEGER:
            return f"expected Unix seconds, got {self.decided_at!r:.40}"
        if not isinstance(self.record, str) or len(self.record) > MAX_RECORD_CHARS:
            return f"expected a record of at most {MAX_RECORD_CHARS} characters"
        try:
            record = load_strict_json(self.record, "record")
        except InputError as error:
            return str(error)
        return "" if isinstance(record, dict) else "expected a record that is an object"


Row = tuple[Key, Measurement]
ChoiceRow = tuple[Key, StoredChoice]


@dataclass(frozen=True)
class Entries:
    """Measurements and choices, as they travel from one database to another."""

    rows: tuple[Row, ...] = ()
    choices: tuple[ChoiceRow, ...] = ()


def checksum(key: Key, value: Measurement | StoredChoice) -> int:
    """CRC-32 of a row: SQLite itself does not notice a flipped bit in a number."""
    return zlib.crc32(json.dumps([*astuple(key), *astuple(value)]).encode())


def write_lines(path: str | os.PathLike[str], entries: Entries) -> None:
    """Write `lines_of` to a file, which is replaced at once, only when complete."""
    try:
        with atomic_file(Path(path)) as file:
            file.write(lines_of(entries).encode())
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=str(path)) from error


def lines_of(entries: Entries) -> str:
    """One JSON object per measurement and per choice, behind a line that names format and method."""
    entries_by_key: list[tuple[Key, Measurement | StoredChoice]] = [*entries.rows, *entries.choices]
    lines = [json.dumps(_HEADER), *(json.dumps({**asdict(k), **asdict(x)}) for k, x in entries_by_key)]
    return "\n".join(lines) + "\n"


def read_lines(path: str | os.PathLike[str]) -> Entries:
    """The entries of a file of `write_lines`; raises InputError naming the line that is wrong."""
    try:
        text = read_bounded(Path(path), MAX_FILE_BYTES, "file of measurements").decode()
    except UnicodeDecodeError:
        raise InputError("cannot read the file of measurements: not UTF-8 text", where=str(path)) from None
    return entries_of(text, str(path))


def entries_of(text: str, where: str) -> Entries:
    """The entries of `lines_of`; raises InputError naming the line that is wrong."""
    lines = text.splitlines()
    _check_header(lines[0] if lines else "", where)
    if not text.endswith("\n"):
        raise InputError("the last line is cut off", where=f"{where}:{len(lines)}")
    rows: list[Row] = []
    choices: list[ChoiceRow] = []
    for number, line in enumerate(lines[1:], 2):
        key, found = _entry(line, f"{where}:{number}")
        if isinstance(found, StoredChoice):
            choices.append((key, found))
        else:
            rows.append((key, found))
    return Entries(tuple(rows), tuple(choices))


def _check_header(line: str, where: str) -> None:
    try:
        found = load_strict_json(line, where)
    except InputError:
        found = None
    if not isinstance(found, dict) or found.get("tilewright_tuning") != _HEADER["tilewright_tuning"]:
        raise InputError(f"expected exported measurements, with {json.dumps(_HEADER)} first", where=where)
    if found.get("method") != METHOD:
        raise InputError(
            f"expected times measured by the method {METHOD!r}, got {found.get('method')!r:.100}: they cannot"
            " be compared",
            where=where,
        )


def _entry(line: str, where: str) -> tuple[Key, Measurement | StoredChoice]:
    try:
        data = load_strict_json(line, where)
        kind = StoredChoice if isinstance(data, dict) and "record" in data else Measurement
        own, of_key = (tuple(f.name for f in fields(k)) for k in (kind, Key))
        values = JsonFields(data, where, (*of_key, *own)).data
    except InputError as error:
        raise InputError(str(error)) from None
    key, entry = Key(*(values[name] for name in of_key)), kind(*(values[name] for name in own))
    if fault := entry.fault(key):
        raise InputError(fault, where=where)
    return key, entry
