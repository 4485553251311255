"""How long a group of micro-batches of a streamed training step takes, from what each part takes alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.streaming.parts.schedule import Schedule
from tilewright.streaming.parts.training_visits import TrainingVisit


@dataclass(frozen=True)
class VisitCosts:
    """Seconds of one visit, each part alone: storage reads and writes, kernels with values moved.

    copy_s: of state to the device before the kernels and back behind them; 0 where slots are its memory.
    """

    read_s: float
    write_s: float
    compute_s: float
    copy_s: float = 0.0


@dataclass(frozen=True)
class TrainingPrediction:
    """Predicted seconds of a group: all of it, and each component. wait_s: kernels wait for storage."""

    schedule: Schedule
    batches: int
    total_s: float
    read_s: float
    write_s: float
    compute_s: float
    wait_s: float
    commit_s: float
    copy_s: float = 0.0


def predict_group(
    schedule: Schedule,
    visits: Sequence[TrainingVisit],
    costs: Sequence[VisitCosts],
    *,
    batches: int,
    slots: int,
    commit_s: float,
) -> TrainingPrediction:
    """Follow the visits through slots, storage and kernels.

    A slot is read for a visit when what the visit before it in the slot changed is written, and when visits
    that write what is read have done so. Storage that works for two slots at once gives each half of its
    rate. A visit is copied and computes when it is read and the one before has computed and is copied back.
    """
    lanes: list[list[tuple[str, int]]] = [[] for _ in range(slots)]
    for i in range(len(visits)):
        lanes[i % slots] += [("read", i), ("write", i)]
    at = [0] * slots  # the task of each lane
    left: list[float | None] = [None] * slots  # seconds of storage alone that its task still needs
    read_end: dict[int, float] = {}
    written: dict[int, float] = {}
    computed: dict[int, float] = {}
    now = wait = 0.0
    while any(at[k] < len(lanes[k]) for k in range(slots)):
        for k in range(slots):
            if at[k] == len(lanes[k]) or left[k] is not None:
                continue
            kind, i = lanes[k][at[k]]
            if kind == "read" and all(written.get(j, float("inf")) <= now for j in visits[i].after):
                left[k] = costs[i].read_s
            elif kind == "write" and computed.get(i, float("inf")) <= now:
                left[k] = costs[i].write_s
        busy = [k for k in range(slots) if left[k] is not None]
        # the next event: a transfer ends, or a visit has computed
        events = [now + (left[k] or 0.0) * len(busy) for k in busy]
        events += [t for t in computed.values() if t > now]
        if not events:
            break
        then = min(events)
        for k in busy:
            remaining = (left[k] or 0.0) - (then - now) / len(busy)
            left[k] = remaining
        now = then
        for k in busy:
            if (left[k] or 0.0) <= 1e-12:
                kind, i = lanes[k][at[k]]
                left[k] = None
                at[k] += 1
                if kind == "write":
                    written[i] = now
                    continue
                read_end[i] = now
        # kernels follow one another
        for i in range(len(visits)):
            if i in computed:
                continue
            if i not in read_end or (i and i - 1 not in computed):
                break
            free = computed[i - 1] if i else 0.0
            wait += max(0.0, read_end[i] - free)
            computed[i] = max(free, read_end[i]) + costs[i].copy_s + costs[i].compute_s
    end = max([now, *computed.values()])
    wait += max(0.0, end - max(computed.values(), default=0.0))
    return TrainingPrediction(
        schedule,
        batches,
        end + commit_s,
        sum(c.read_s for c in costs),
        sum(c.write_s for c in costs),
        sum(c.compute_s for c in costs),
        wait,
        commit_s,
        sum(c.copy_s for c in costs),
    )
