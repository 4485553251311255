"""Orders of work of a streamed run: when which step's weights are fetched, and for which micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["parameter-resident", "activation-resident"]
#: by the short names of the BigCuts paper
SCHEDULES: dict[str, Schedule] = {"pr": "parameter-resident", "ar": "activation-resident"}


@dataclass(frozen=True)
class Visit:
    """One filling of a slot: step `step` is fetched, then works on `batches` one after the other."""

    step: int
    batches: tuple[int, ...]


def visits(schedule: Schedule, steps: int, batches: int) -> Iterator[Visit]:
    """The order of one run.

    Parameter-resident: every step is fetched once and all micro-batches pass through it. Activation-resident:
    every micro-batch goes through all steps, which are fetched again for each.
    """
    if schedule == "parameter-resident":
        yield from (Visit(step, tuple(range(batches))) for step in range(steps))
    else:
        yield from (Visit(step, (batch,)) for batch in range(batches) for step in range(steps))
