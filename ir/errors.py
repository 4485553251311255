"""Errors that every part of Tilewright raises, and the checks of arguments that public functions share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


class TilewrightError(Exception):
    """Base of all errors that are reported as one clear sentence."""


class InputError(TilewrightError):
    """The input or the arguments are bad (exit code 2).

    `where` names the place: a file, `file:line:column`, or an op.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class WorkError(TilewrightError):
    """The work failed: wrong result, no device, a broken pass (exit code 1)."""


class UnsupportedError(InputError):
    """The input is valid, but uses something this version does not implement."""


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
