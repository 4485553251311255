"""Checks of what a caller gives to public functions: of another type is bad input, told in one sentence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from tilewright.ir.errors import InputError

T = TypeVar("T")


def given(value: Any, kind: type[T], what: str) -> T:
    """The value, known to be of `kind`; raises InputError that says `what` was expected."""
    if not isinstance(value, kind):
        raise InputError(f"expected {what}, got {type(value).__name__}")
    return value


def file_path(path: Any) -> Path:
    """The path of a file; raises InputError for what is none, or has a NUL in it, which no file name has."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"expected the path of a file, got {type(path).__name__}")
    found = Path(os.fsdecode(path))
    if "\0" in str(found):
        raise InputError(f"expected the path of a file, got one with a NUL character: {str(found)!r:.200}")
    return found
