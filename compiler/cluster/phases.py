"""The phases of a plan: what is done now, and how many seconds each part of it took."""

from __future__ import annotations

import sys
import time


class Phases:
    """Phases that follow one another; each ends where the next one begins.

    shown: whether their beginnings are told on standard error, with the seconds since the first one.
    """

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._first_s = shown, time.monotonic()
        self._begun: list[tuple[str, float]] = []

    def begin(self, name: str) -> None:
        """The next phase; `name` completes the sentence "it is ..."."""
        now = time.monotonic()
        self._begun.append((name, now))
        if self._shown:
            print(f"{now - self._first_s:6.1f} s: {name}", file=sys.stderr, flush=True)

    def seconds(self) -> list[dict[str, str | float]]:
        """Name and seconds of every phase so far, for JSON."""
        ends = [begin for _, begin in self._begun[1:]] + [time.monotonic()]
        return [
            {"name": name, "seconds": end - begin}
            for (name, begin), end in zip(self._begun, ends, strict=True)
        ]


def phases_line(phases: list[dict[str, str | float]]) -> str:
    """The phases in one line of a report."""
    total = sum(float(p["seconds"]) for p in phases)
    each = ", ".join(f"{p['name']} {float(p['seconds']):.1f} s" for p in phases)
    return f"took {total:.1f} s: {each}"
