"""Errors every part of Tilewright raises: what the user gave was bad, or the work itself failed."""

from __future__ import annotations


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
