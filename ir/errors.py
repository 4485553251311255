"""The errors that every part raises, taken from the runtime, and checks of arguments of public functions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from tilewright.runtime.errors import InputError, TilewrightError, UnsupportedError, WorkError

__all__ = ["InputError", "TilewrightError", "UnsupportedError", "WorkError", "expect", "file_path"]

T = TypeVar("T")


def expect(value: Any, kind: type[T], what: str) -> T:
    """Return the value, known to be of `kind`; raise InputError that says `what` was expected."""
    if not isinstance(value, kind):
        raise InputError(f"expected {what}, got {type(value).__name__}")
    return value


def file_path(path: Any) -> Path:
    """Return the path of a file; raise InputError for other types and for a NUL, which no file name has."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected the path of a file, got {type(path).__name__}")
    name = os.fsdecode(path)
    if "\0" in name:
        raise InputError(f"expected the path of a file, got one with a NUL character: {name!r:.200}")
    return Path(name)
