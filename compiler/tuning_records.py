"""What a tuning database holds: measurements by key, their checks, and their JSON lines."""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterable
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

from tilewright.ir import InputError
from tilewright.runtime.atomic_file import atomic_file
from tilewright.runtime.errors import RuntimeInputError
from tilewright.runtime.strict_json import Fields, load_strict_json

#: the first line of a file of JSON lines
_HEADER = {"tilewright_tuning": 1}


@dataclass(frozen=True, order=True)
class Key:
    """What was measured and where.

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


Row = tuple[Key, Measurement]


def fault_of(key: Key, m: Measurement) -> str:
    """What no measurement can be in a row, in a few words; empty where it is well-formed."""
    if not all(isinstance(text, str) for text in astuple(key)) or not key.program:
        return "expected a key of texts with a program"
    if not isinstance(m.seconds, float) or not 0 < m.seconds < math.inf:
        return f"expected positive finite seconds, got {m.seconds!r:.40}"
    if not isinstance(m.spread_s, float) or not 0 <= m.spread_s < math.inf:
        return f"expected a finite spread, got {m.spread_s!r:.40}"
    if type(m.repeats) is not int or m.repeats < 1:
        return f"expected at least one repeat, got {m.repeats!r:.40}"
    if type(m.measured_at) is not int or m.measured_at < 0:
        return f"expected Unix seconds, got {m.measured_at!r:.40}"
    return ""


def checksum(key: Key, m: Measurement) -> int:
    """CRC-32 of a row: SQLite itself does not notice a flipped bit in a number."""
    return zlib.crc32(json.dumps([*astuple(key), *astuple(m)]).encode())


def write_lines(path: str | os.PathLike[str], rows: Iterable[Row]) -> None:
    """Write one JSON object per measurement; the file is replaced at once, only when complete."""
    lines = [json.dumps(_HEADER), *(json.dumps({**asdict(k), **asdict(m)}) for k, m in rows)]
    try:
        with atomic_file(Path(path)) as file:
            file.write(("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=str(path)) from error


def read_lines(path: str | os.PathLike[str]) -> list[Row]:
    """The measurements of a file of `write_lines`; raises InputError naming the line that is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise InputError(f"cannot be read ({reason})", where=str(path)) from error
    lines = text.splitlines()
    if not lines or lines[0] != json.dumps(_HEADER):
        raise InputError(f"expected exported measurements, with {json.dumps(_HEADER)} first", where=str(path))
    if not text.endswith("\n"):
        raise InputError("the last line is cut off", where=f"{path}:{len(lines)}")
    return [_row(line, f"{path}:{number}") for number, line in enumerate(lines[1:], 2)]


_KEY, _MEASUREMENT = tuple(Key.__annotations__), tuple(Measurement.__annotations__)


def _row(line: str, where: str) -> Row:
    try:
        found = Fields(load_strict_json(line, where), where, (*_KEY, *_MEASUREMENT)).data
    except RuntimeInputError as error:
        raise InputError(str(error)) from None
    key = Key(*(found[name] for name in _KEY))
    measurement = Measurement(*(found[name] for name in _MEASUREMENT))
    fault = fault_of(key, measurement)
    if fault:
        raise InputError(fault, where=where)
    return key, measurement
