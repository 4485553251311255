"""Batches through several instances of a plan, so that copies of one overlap with the kernels of another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from tilewright.runtime.interface.device import LoadedPlan


@runtime_checkable
class QueuesBatches(Protocol):
    """A loaded plan that can queue copy-in, kernels and copy-out without waiting for them."""

    def start(self, inputs: Sequence[object]) -> None:
        """Queue one batch and return at once."""
        ...

    def finish(self) -> list[np.ndarray]:
        """Wait for the batch that was started; its outputs."""
        ...


def stream_batches(
    plans: Sequence[LoadedPlan], batches: Iterable[Sequence[object]]
) -> Iterator[list[np.ndarray]]:
    """Outputs of every batch in order; each plan holds at most one batch at a time."""
    queueing: list[QueuesBatches] = [plan for plan in plans if isinstance(plan, QueuesBatches)]
    if len(queueing) < len(plans):
        for inputs in batches:
            yield plans[0].run(inputs)
        return
    free, under_way = deque(queueing), deque[QueuesBatches]()
    try:
        for inputs in batches:
            if not free:
                plan = under_way.popleft()
                free.append(plan)
                yield plan.finish()
            free[0].start(inputs)
            under_way.append(free.popleft())
        while under_way:
            yield under_way.popleft().finish()
    finally:
        # A caller that stops early, or a bad batch, leaves work behind that still writes its outputs.
        while under_way:
            under_way.popleft().finish()
