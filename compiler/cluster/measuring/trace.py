"""Times of the launches and communications of all ranks, and the seconds of each rank's components.

Kernels and communications are timed by the device's clock, launch by launch. How much of a communication is
waiting for other ranks follows from when each of them came to it by the host's clock, which all processes of
a machine share.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.cluster.planning.parallel_plan import ParallelPlan
from tilewright.cluster.planning.prediction import RankTimes, component_of
from tilewright.compilation.option_values import Pick
from tilewright.passes.analysis.backward_pass import OPTIMIZER
from tilewright.runtime.communication.communicator import HostCommunicator, PendingCommunication
from tilewright.runtime.dtypes import Array
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import ExecutionPlan

Span = tuple[float, float]


def update_launches(plan: ExecutionPlan) -> list[int]:
    """The launches of a training step whose kernels only update parameters."""
    return [i for i, launch in enumerate(plan.launches) if launch.origin == (OPTIMIZER,)]


def picked(seconds: Sequence[float], pick: Pick) -> int:
    """The place of the run that counts among runs that took so long."""
    order = sorted(range(len(seconds)), key=seconds.__getitem__)
    return order[0 if pick == "fastest" else (len(order) - 1) // 2]


class TimedCommunicator:
    """A host communicator that notes when every communication was posted."""

    space: Literal["host"] = "host"

    def __init__(self, inner: HostCommunicator) -> None:
        self._inner = inner
        self.rank, self.size, self.timeout_s = inner.rank, inner.size, inner.timeout_s
        self._posted: list[float] = []

    def start(
        self,
        kernel: CommunicationKernel,
        operands: Sequence[Array],
        results: Sequence[Array],
        *,
        doing: str,
        stream: int = 0,
    ) -> PendingCommunication:
        """See `Communicator.start`."""
        self._posted.append(time.monotonic())
        return self._inner.start(kernel, operands, results, doing=doing, stream=stream)

    def taken(self) -> list[float]:
        """Return the times at which the communications since the last call were posted, in their order."""
        posted, self._posted = self._posted, []
        return posted

    def gather_texts(self, text: str, *, doing: str) -> list[str]:
        """See `Communicator.gather_texts`."""
        return self._inner.gather_texts(text, doing=doing)

    def check_peers(self, peers: Sequence[int], *, doing: str) -> None:
        """See `Communicator.check_peers`."""
        self._inner.check_peers(peers, doing=doing)

    def fail(self, reason: str) -> None:
        """See `Communicator.fail`."""
        self._inner.fail(reason)

    def close(self) -> None:
        """See `Communicator.close`."""
        self._inner.close()


@dataclass(frozen=True)
class RankTrace:
    """The launches and communications of several replays on one rank.

    kernels: by launch, its communication, None for one that computes. spans: per replay, start and end of
    every launch since the first start. posted: per replay, when every communication was posted, by a clock
    that all ranks share. updates: the launches that only update parameters.
    """

    kernels: Sequence[CommunicationKernel | None]
    spans: Sequence[Sequence[Span]]
    posted: Sequence[Sequence[float]]
    updates: Sequence[int] = ()

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        texts = [None if k is None else k.to_json() for k in self.kernels]
        return {"kernels": texts, "spans": self.spans, "posted": self.posted, "updates": self.updates}

    @staticmethod
    def from_plain(data: dict[str, Any]) -> RankTrace:
        """Read `to_plain`."""
        kernels = [None if t is None else CommunicationKernel.from_json(t) for t in data["kernels"]]
        return RankTrace(kernels, data["spans"], data["posted"], data["updates"])

    def step_s(self, replay: int) -> float:
        """Seconds of one replay here."""
        return end_s(self.spans[replay])


def end_s(spans: Sequence[Span]) -> float:
    """Return the end of the last span."""
    return max((end for _, end in spans), default=0.0)


def busy_s(spans: Sequence[Span]) -> float:
    """Seconds in which there is at least one."""
    return sum(end - begin for begin, end in union(spans))


def union(spans: Sequence[Span]) -> list[Span]:
    """The same time as intervals that do not touch, in order."""
    out: list[Span] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = out[-1][0], max(out[-1][1], end)
        else:
            out.append((begin, end))
    return out


#: one meeting of ranks: kind, members or ends and tag, and which of its sort
_Meeting = tuple[Any, ...]


def measured_times(traces: Sequence[RankTrace], plan: ParallelPlan, pick: Pick = "median") -> list[RankTimes]:
    """Seconds of every rank by component, in the replay whose slowest rank is the median (or fastest) one."""
    slowest = [max(t.step_s(i) for t in traces) for i in range(len(traces[0].spans))]
    replay = picked(slowest, pick)
    waits = _waits(traces, replay)
    return [
        _components(trace, trace.spans[replay], waits[rank], plan, rank) for rank, trace in enumerate(traces)
    ]


def _waits(traces: Sequence[RankTrace], replay: int) -> list[list[float]]:
    """By rank and communication: seconds from its post to that of the last rank it needs something from."""
    meetings = [_meetings(trace.kernels, rank) for rank, trace in enumerate(traces)]
    posts: dict[_Meeting, list[float]] = defaultdict(list)
    for trace, of_rank in zip(traces, meetings, strict=True):
        for begin, own in zip(trace.posted[replay], of_rank, strict=True):
            for meeting, role in own:
                if role != "taken":
                    posts[meeting].append(begin)
    return [
        [
            max([0.0, *(t - begin for meeting, role in own if role != "sent" for t in posts[meeting])])
            for begin, own in zip(trace.posted[replay], of_rank, strict=True)
        ]
        for trace, of_rank in zip(traces, meetings, strict=True)
    ]


def _meetings(kernels: Sequence[CommunicationKernel | None], rank: int) -> list[list[tuple[_Meeting, str]]]:
    """By communication of a rank: its meetings, and what it gives: `sent`, `taken` of others, or `both`."""
    seen: dict[tuple[Any, ...], int] = defaultdict(int)
    out: list[list[tuple[_Meeting, str]]] = []
    for kernel in filter(None, kernels):
        keys: list[tuple[_Meeting, str]]
        if kernel.members:
            keys = [((kernel.kind, kernel.members), "both")]
        else:
            keys = [(("message", rank, m.peer, m.tag), "sent") for m in kernel.sends]
            keys += [(("message", m.peer, rank, m.tag), "taken") for m in kernel.receives]
        out.append([])
        for key, role in keys:
            out[-1].append(((*key, seen[key, role]), role))
            seen[key, role] += 1
    return out


def _components(
    trace: RankTrace, spans: Sequence[Span], waits: Sequence[float], plan: ParallelPlan, rank: int
) -> RankTimes:
    """Kernels count in full, then of each communication what no kernel and no earlier one covers."""
    out = RankTimes()
    busy = [span for kernel, span in zip(trace.kernels, spans, strict=True) if kernel is None]
    covered = union(busy)
    rest = [
        span
        for i, (kernel, span) in enumerate(zip(trace.kernels, spans, strict=True))
        if kernel is None and i not in trace.updates
    ]
    out.components_s["compute"] = busy_s(rest)
    out.components_s["optimizer"] = busy_s(busy) - out.components_s["compute"]
    talks = [(k, span) for k, span in zip(trace.kernels, spans, strict=True) if k is not None]
    for (kernel, (begin, end)), wait in zip(talks, waits, strict=True):
        if not kernel.results:
            continue  # what a host only sends holds nobody up
        exposed = max(0.0, end - begin - _overlap(covered, begin, end))
        moving = min(exposed, max(0.0, end - begin - wait))
        out.components_s[component_of(kernel.peers, plan, rank)] += moving
        out.components_s["wait"] += exposed - moving
        covered = union([*covered, (begin, end)])
    out.components_s["overhead"] = max(0.0, end_s(spans) - out.total_s)
    return out


def _overlap(covered: Sequence[Span], begin: float, end: float) -> float:
    return sum(max(0.0, min(end, e) - max(begin, b)) for b, e in covered)
