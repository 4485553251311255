"""`Profile`: the record of one replay, with the forms in which a user takes it away."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.profiling.replay_record import ReplayRecord
from tilewright.profiling.table import profile_table
from tilewright.profiling.trace import trace_of, trace_text, write_trace


@dataclass(frozen=True)
class Profile(ReplayRecord):
    """One replay of a plan: its numbers (see `ReplayRecord`), as a trace for Perfetto, and as text."""

    def trace(self) -> dict[str, Any]:
        """The replay in Chrome's trace event format, for Perfetto (https://ui.perfetto.dev)."""
        return trace_of(self)

    def to_json(self) -> str:
        """`trace()` as text."""
        return trace_text(self)

    def write_trace(self, path: str | Path) -> None:
        """Write `trace()` to a file, replaced at once; raises InputError where that is impossible."""
        write_trace(self, path)

    def __str__(self) -> str:
        return profile_table(self)
