"""How much of the time of reading was hidden behind work: one record per step, and their sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.runtime.storage.source import Transfer


@dataclass(frozen=True)
class UsedStep:
    """A step that a user of a prefetcher took; seconds of `time.perf_counter`.

    asked_s: when the user asked for it; got_s: when it had it. What lies between is time lost to storage.
    """

    transfer: Transfer
    asked_s: float
    got_s: float

    @property
    def waited_s(self) -> float:
        """Seconds for which the user stood still."""
        return self.got_s - self.asked_s


@dataclass(frozen=True)
class OverlapFacts:
    """Sums over used steps.

    busy_s: seconds in which at least one step was being read. waited_s: seconds of the user standing still;
    first_wait_s of them were for the first step, before which there is nothing to do.
    span_s: from the first read's beginning to when the last step was there.
    """

    steps: int
    nbytes: int
    busy_s: float
    waited_s: float
    first_wait_s: float
    span_s: float

    @property
    def hidden_share(self) -> float:
        """The share of the reading time that the user did not stand still, 0 to 1; 1 if nothing was read."""
        if self.busy_s <= 0:
            return 1.0
        return min(1.0, max(0.0, 1 - self.waited_s / self.busy_s))

    @property
    def read_bytes_per_s(self) -> float:
        """Bytes over the seconds in which reads were under way; 0 if nothing was read."""
        return self.nbytes / self.busy_s if self.busy_s > 0 else 0.0


def overlap_facts(used: Sequence[UsedStep]) -> OverlapFacts:
    """Sum up; an empty sequence gives zeros."""
    if not used:
        return OverlapFacts(0, 0, 0.0, 0.0, 0.0, 0.0)
    intervals = sorted((u.transfer.began_s, u.transfer.ended_s) for u in used)
    busy, reached = 0.0, intervals[0][0]
    for began, ended in intervals:
        busy += max(0.0, ended - max(began, reached))
        reached = max(reached, ended)
    return OverlapFacts(
        steps=len(used),
        nbytes=sum(u.transfer.nbytes for u in used),
        busy_s=busy,
        waited_s=sum(u.waited_s for u in used),
        first_wait_s=used[0].waited_s,
        span_s=max(u.got_s for u in used) - intervals[0][0],
    )
