"""Stamps of all blocks of one replay -> spans of launches and of their blocks on each multiprocessor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.codegen.emit.stamps import ARRIVAL, END, PROCESSOR, START
from tilewright.profiling.launch_marks import MarkedPlan
from tilewright.profiling.replay_record import LaunchSpan, ProcessorSpan
from tilewright.runtime.plan.execution_plan import ExecutionPlan

NANOSECOND = 1e-9

Stamps = np.ndarray[Any, np.dtype[np.uint64]]
Relative = np.ndarray[Any, np.dtype[np.int64]]


def span_ns(stamps: Stamps) -> int:
    """Nanoseconds from the first block's start to the last block's end; 0 without blocks."""
    return int(stamps[:, END].max() - stamps[:, START].min()) if len(stamps) else 0


def resolution_ns(stamps: Stamps) -> int:
    """The smallest positive difference between any two stamps; 0 where all are equal."""
    steps = np.diff(np.unique(stamps[:, [ARRIVAL, START, END]]))
    return int(steps.min()) if len(steps) else 0


def launch_spans(
    plan: ExecutionPlan, stamps: Stamps, first_rows: Sequence[int], marked: MarkedPlan | None = None
) -> tuple[LaunchSpan, ...]:
    """One span per launch of `plan`.

    Rows `first_rows[i]` and on of `stamps` are the blocks of launch i of the plan that stamps: `plan` itself,
    or where some of its launches cannot stamp, `marked`. Those span from the last end before to the first
    start behind them.
    """
    zero = _zero(stamps)
    ends = [*first_rows[1:], len(stamps)]
    own = [_relative(stamps[low:high], zero) for low, high in zip(first_rows, ends, strict=True)]
    places = marked.places if marked is not None else range(len(own))
    between = _bounds(plan, own, marked) if marked is not None else {}
    spans = []
    for index, (launch, place) in enumerate(zip(plan.launches, places, strict=True)):
        rows = own[place]
        if index in between:
            arrived, start, end = between[index][0], *between[index]
        else:
            arrived, start, end = rows[:, ARRIVAL].min(), rows[:, START].min(), rows[:, END].max()
        spans.append(
            LaunchSpan(
                index, launch.kernel, launch.origin, launch.stream, launch.deps, launch.grid, launch.block,
                arrived_s=float(arrived) * NANOSECOND,
                start_s=float(start) * NANOSECOND,
                end_s=float(end) * NANOSECOND,
                processors=tuple(_processor_spans(rows)),
                bounded=index in between,
            )
        )  # fmt: skip
    return tuple(spans)


def _bounds(plan: ExecutionPlan, own: Sequence[Relative], marked: MarkedPlan) -> dict[int, tuple[int, int]]:
    """By launch that cannot stamp, nanoseconds of the last end before it and of the first start behind it.

    own: the stamps of every launch of `marked`.
    """
    started = {i: int(own[p][:, START].min()) for i, p in enumerate(marked.places) if len(own[p])}
    behind: dict[int, list[int]] = {i: [] for i in marked.bounded}
    for index, launch in enumerate(plan.launches):
        for dep in launch.deps:
            if dep in behind and index in started:
                behind[dep].append(started[index])
    found = {}
    for index in sorted(marked.bounded):
        last = max(int(own[p][:, END].max()) for p in marked.launches[marked.places[index]].deps)
        if index in marked.after:
            behind[index].append(int(own[marked.after[index]][0, START]))
        # timers of two multiprocessors may be a step apart
        found[index] = (last, max(last, min(behind[index])))
    return found


def processor_busy_s(stamps: Stamps) -> dict[int, float]:
    """By multiprocessor, seconds in which at least one block of any launch ran on it."""
    return {p.processor: p.busy_s for p in _processor_spans(_relative(stamps, _zero(stamps)))}


def _zero(stamps: Stamps) -> np.uint64:
    return stamps[:, ARRIVAL].min() if len(stamps) else np.uint64(0)


def _relative(stamps: Stamps, zero: np.uint64) -> Relative:
    own = stamps.astype(np.int64)
    own[:, [ARRIVAL, START, END]] -= np.int64(zero)
    return own


def _processor_spans(own: Relative) -> list[ProcessorSpan]:
    own = own[np.lexsort((own[:, START], own[:, PROCESSOR]))]
    cuts = np.flatnonzero(np.diff(own[:, PROCESSOR])) + 1
    out = []
    for blocks in np.split(own, cuts) if len(own) else ():
        starts, ends = blocks[:, START], np.maximum.accumulate(blocks[:, END])
        pauses = np.maximum(starts[1:] - ends[:-1], 0).sum()
        out.append(
            ProcessorSpan(
                processor=int(blocks[0, PROCESSOR]),
                start_s=float(starts[0]) * NANOSECOND,
                end_s=float(ends[-1]) * NANOSECOND,
                busy_s=float(ends[-1] - starts[0] - pauses) * NANOSECOND,
                blocks=len(blocks),
            )
        )
    return out
