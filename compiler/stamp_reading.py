"""Stamps of all blocks of one replay -> spans of launches and of their blocks on each multiprocessor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.codegen.stamps import ARRIVAL, END, PROCESSOR, START
from tilewright.profile import LaunchSpan, ProcessorSpan
from tilewright.runtime.plan import ExecutionPlan

NANOSECOND = 1e-9

Stamps = np.ndarray[Any, np.dtype[np.uint64]]


def span_ns(stamps: Stamps) -> int:
    """Nanoseconds from the first block's start to the last block's end; 0 without blocks."""
    return int(stamps[:, END].max() - stamps[:, START].min()) if len(stamps) else 0


def resolution_ns(stamps: Stamps) -> int:
    """The smallest positive difference between any two stamps; 0 where all are equal."""
    steps = np.diff(np.unique(stamps[:, [ARRIVAL, START, END]]))
    return int(steps.min()) if len(steps) else 0


def launch_spans(plan: ExecutionPlan, stamps: Stamps, first_rows: Sequence[int]) -> tuple[LaunchSpan, ...]:
    """One span per launch of `plan`; rows `first_rows[i]` and on of `stamps` are the blocks of launch i."""
    zero = _zero(stamps)
    ends = [*first_rows[1:], len(stamps)]
    spans = []
    for index, (launch, low, high) in enumerate(zip(plan.launches, first_rows, ends, strict=True)):
        own = _relative(stamps[low:high], zero)
        spans.append(
            LaunchSpan(
                index, launch.kernel, launch.origin, launch.stream, launch.deps, launch.grid, launch.block,
                arrived_s=float(own[:, ARRIVAL].min()) * NANOSECOND,
                start_s=float(own[:, START].min()) * NANOSECOND,
                end_s=float(own[:, END].max()) * NANOSECOND,
                processors=tuple(_processor_spans(own)),
            )
        )  # fmt: skip
    return tuple(spans)


def processor_busy_s(stamps: Stamps) -> dict[int, float]:
    """By multiprocessor, seconds in which at least one block of any launch ran on it."""
    return {p.processor: p.busy_s for p in _processor_spans(_relative(stamps, _zero(stamps)))}


def _zero(stamps: Stamps) -> np.uint64:
    return stamps[:, ARRIVAL].min() if len(stamps) else np.uint64(0)


def _relative(stamps: Stamps, zero: np.uint64) -> np.ndarray[Any, np.dtype[np.int64]]:
    own = stamps.astype(np.int64)
    own[:, [ARRIVAL, START, END]] -= np.int64(zero)
    return own


def _processor_spans(own: np.ndarray[Any, np.dtype[np.int64]]) -> list[ProcessorSpan]:
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
