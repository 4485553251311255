"""Orders of work of a streamed run, and how long they take by the model.

An order says when which step's weights are fetched, and for which micro-batches. The model is a pipeline of
storage, copies to the device, and compute over two slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


@dataclass(frozen=True)
class StepCosts:
    """Seconds of each step for its parts.

    storage_s: reading its constants. copy_s: from host to device memory, 0 where they are one. compute_s: one
    micro-batch. move_s: values of one micro-batch in and out, where they do not stay on the device.
    """

    storage_s: tuple[float, ...]
    copy_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    move_s: tuple[float, ...]


@dataclass(frozen=True)
class Prediction:
    """Seconds of a run and what each part takes alone.

    fill_s: before the first step can compute. total_s: with all parts overlapped as far as two slots allow.
    """

    schedule: Schedule
    batches: int
    total_s: float
    storage_s: float
    copy_s: float
    compute_s: float
    fill_s: float

    @property
    def slower_s(self) -> float:
        """Seconds of the slowest part, below which no overlap can go."""
        return max(self.storage_s, self.copy_s, self.compute_s)


def predict(
    schedule: Schedule,
    order: Sequence[Visit],
    batches: int,
    costs: StepCosts,
    *,
    staged: bool,
) -> Prediction:
    """Follow the visits through the pipeline.

    A read needs a free buffer, a copy its data and a slot that no kernel uses, a kernel the copy. Where all
    steps take the same time, this is max(storage, copy, compute) per step plus the time to fill and drain the
    pipeline.

    Steps that are resident take no time for storage and copies. staged: whether reads land in buffers of
    their own, free when they are copied, or in the slots themselves, free when kernels are done.
    """
    read_end = copy_end = kernel_end = 0.0
    kernels: list[float] = []
    freed: list[float] = []
    storage = copy = compute = fill = 0.0
    for number, visit in enumerate(order):
        own_read, own_copy = costs.storage_s[visit.step], costs.copy_s[visit.step]
        own_compute = len(visit.batches) * (costs.compute_s[visit.step] + costs.move_s[visit.step])
        read_end = max(read_end, freed[number - 2] if number > 1 else 0.0) + own_read
        copy_end = max(read_end, copy_end, kernels[number - 2] if number > 1 and staged else 0.0) + own_copy
        if number == 0:
            fill = copy_end
        kernel_end = max(copy_end, kernel_end) + own_compute
        kernels.append(kernel_end)
        freed.append(copy_end if staged else kernel_end)
        storage, copy, compute = storage + own_read, copy + own_copy, compute + own_compute
    return Prediction(schedule, batches, kernel_end, storage, copy, compute, fill)
