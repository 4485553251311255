"""Records every outermost pass of a run: time, whether it changed anything, and the module after it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from tilewright.ir import Module, walk
from tilewright.passes import Instrument, Step


@dataclass(frozen=True)
class Record:
    """One pass that ran: its text, summary, wall time, and the module before and after."""

    name: str
    summary: str
    seconds: float
    before: Module
    after: Module

    @property
    def changed(self) -> bool:
        """False when the pass gave back the very module it got."""
        return self.after is not self.before


class Recorder(Instrument):
    """Collects records; passes run by other passes belong to the outer one."""

    def __init__(self, module: Module) -> None:
        self.start = module
        self.passes: list[Record] = []
        self._open: list[float] = []

    def before(self, step: Step, module: Module) -> None:
        self._open.append(time.perf_counter())

    def after(self, step: Step, before: Module, after: Module) -> None:
        seconds = time.perf_counter() - self._open.pop()
        if not self._open:
            definition = step.configured.definition
            self.passes.append(Record(str(step.configured), definition.summary, seconds, before, after))

    def failed(self, step: Step, module: Module, error: BaseException) -> None:
        self._open.pop()

    def records(self) -> list[dict[str, Any]]:
        """One JSON object per pass."""
        return [
            {
                "name": r.name,
                "seconds": r.seconds,
                "changed": r.changed,
                "ops_before": op_count(r.before),
                "ops_after": op_count(r.after),
            }
            for r in self.passes
        ]


def op_count(module: Module) -> int:
    """Number of ops, bodies included."""
    return sum(1 for f in module.funcs for _ in walk(f.body))
