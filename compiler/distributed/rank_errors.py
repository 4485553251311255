"""Prints errors of ranks and mpirun once instead of once per rank, without mpirun's summary."""

from __future__ import annotations

import re
import sys
from typing import IO

_ERROR = re.compile(r"error: (rank \d+: )?(.*)")
_RULE = re.compile(r"-{40,}")
#: what every other rank says when one has failed
_CONSEQUENCE = "stopped, because"
#: mpirun's box about what the exit code says as well
_SUMMARY = "detected that one or more processes exited with non-zero status"
#: distinct errors that one message holds
_MOST = 3


class RankErrors:
    """Passes standard error of the ranks on, line by line, but keeps errors to tell them once at the end."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}
        self._box: list[str] | None = None

    def read(self, stream: IO[str]) -> None:
        """Read until the end of the stream."""
        for line in stream:
            self._take(line)
        self._end_box()

    def _take(self, line: str) -> None:
        if _RULE.fullmatch(line.strip()):
            if self._box is None:
                self._box = [line]
            else:
                self._box.append(line)
                self._end_box()
        elif self._box is not None:
            self._box.append(line)
        elif match := _ERROR.fullmatch(line.strip()):
            self._errors.setdefault(match[2], match[1] or "")
        else:
            print(line, end="", file=sys.stderr, flush=True)

    def _end_box(self) -> None:
        text, self._box = "".join(self._box or []), None
        if text.strip() and _SUMMARY not in text:
            print(text, end="", file=sys.stderr, flush=True)

    def told(self) -> str:
        """The first distinct errors, each with the first rank that told it; empty where none was told."""
        causes = [e for e in self._errors if not e.startswith(_CONSEQUENCE)] or list(self._errors)
        return "; ".join(self._errors[cause] + cause for cause in causes[:_MOST])
