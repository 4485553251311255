"""Seconds of the components of every rank, from traces of all ranks.

Kernels and communications are timed by the device's clock, launch by launch. How much of a communication is
waiting for other ranks follows from when each of them came to it by the host's clock, which all processes of
a machine share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tilewright.cluster.division import Division
from tilewright.cluster.execution_prediction import RankTimes, component_of
from tilewright.cluster.execution_trace import RankTrace, Span, busy_s, end_s, picked, union
from tilewright.compilation.option_values import Pick
from tilewright.runtime.plan.communication_kernel import CommunicationKernel

#: one meeting of ranks: kind, members or ends and tag, and which of its sort
_Meeting = tuple[Any, ...]


def measured_times(traces: Sequence[RankTrace], division: Division, pick: Pick = "median") -> list[RankTimes]:
    """Seconds of every rank by component, in the replay whose slowest rank is the median (or fastest) one."""
    slowest = [max(t.step_s(i) for t in traces) for i in range(len(traces[0].spans))]
    replay = picked(slowest, pick)
    waits = _waits(traces, replay)
    return [
        _components(trace, trace.spans[replay], waits[rank], division, rank)
        for rank, trace in enumerate(traces)
    ]


def _waits(traces: Sequence[RankTrace], replay: int) -> list[list[float]]:
    """By rank and communication: seconds from its post to that of the last rank it needs something from."""
    meetings = [_meetings(trace.kernels, rank) for rank, trace in enumerate(traces)]
    posts: dict[_Meeting, list[float]] = defaultdict(list)
    for trace, of_rank in zip(traces, meetings, strict=True):
        for begin, own in zip(trace.posted[replay], of_rank, strict=True):
            for meeting, given in own:
                if given != "taken":
                    posts[meeting].append(begin)
    return [
        [
            max([0.0, *(t - begin for meeting, given in own if given != "sent" for t in posts[meeting])])
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
        for key, given in keys:
            out[-1].append(((*key, seen[key, given]), given))
            seen[key, given] += 1
    return out


def _components(
    trace: RankTrace, spans: Sequence[Span], waits: Sequence[float], division: Division, rank: int
) -> RankTimes:
    """Kernels count in full, then of each communication what no kernel and no earlier one covers."""
    out = RankTimes()
    busy = [span for kernel, span in zip(trace.kernels, spans, strict=True) if kernel is None]
    covered = union(busy)
    out.components_s["compute"] = busy_s(busy)
    talks = [(k, span) for k, span in zip(trace.kernels, spans, strict=True) if k is not None]
    for (kernel, (begin, end)), wait in zip(talks, waits, strict=True):
        if not kernel.results:
            continue  # what a host only sends holds nobody up
        exposed = max(0.0, end - begin - _overlap(covered, begin, end))
        moving = min(exposed, max(0.0, end - begin - wait))
        out.components_s[component_of(kernel.peers, division, rank)] += moving
        out.components_s["wait"] += exposed - moving
        covered = union([*covered, (begin, end)])
    out.components_s["overhead"] = max(0.0, end_s(spans) - out.total_s)
    return out


def _overlap(covered: Sequence[Span], begin: float, end: float) -> float:
    return sum(max(0.0, min(end, e) - max(begin, b)) for b, e in covered)
