"""When the launches of a rank ran (device's clock), and when it posted its communications (host's clock)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tilewright.compilation.option_values import Pick
from tilewright.runtime.communication.communicator import HostCommunicator, Pending
from tilewright.runtime.dtypes import Array
from tilewright.runtime.plan.communication_kernel import CommunicationKernel

Span = tuple[float, float]


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
    ) -> Pending:
        """See `Communicator.start`."""
        self._posted.append(time.monotonic())
        return self._inner.start(kernel, operands, results, doing=doing, stream=stream)

    def taken(self) -> list[float]:
        """When the communications since the last call were posted, in their order."""
        found, self._posted = self._posted, []
        return found

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
    """What one rank saw of several replays.

    kernels: by launch, its communication, None for one that computes. spans: per replay, start and end of
    every launch since the first start. posted: per replay, when every communication was posted, by a clock
    that all ranks share.
    """

    kernels: Sequence[CommunicationKernel | None]
    spans: Sequence[Sequence[Span]]
    posted: Sequence[Sequence[float]]

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        texts = [None if k is None else k.to_json() for k in self.kernels]
        return {"kernels": texts, "spans": self.spans, "posted": self.posted}

    @staticmethod
    def from_plain(data: dict[str, Any]) -> RankTrace:
        """Read `to_plain`."""
        kernels = [None if t is None else CommunicationKernel.from_json(t) for t in data["kernels"]]
        return RankTrace(kernels, data["spans"], data["posted"])

    def step_s(self, replay: int) -> float:
        """Seconds of one replay here."""
        return end_s(self.spans[replay])


def end_s(spans: Sequence[Span]) -> float:
    """When the last one ends."""
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
