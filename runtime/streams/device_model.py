"""A device that runs nodes side by side while their shares fit: the time of a plan, and a launch order."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from tilewright.runtime.dag import Dag, Edge
from tilewright.runtime.streams.event_loop import simulate
from tilewright.runtime.streams.stream_plan import StreamPlan
from tilewright.runtime.streams.work import Work

SLACK = 1e-9  # shares that add up to 1 may exceed it by rounding


class DeviceCapacity:
    """Room for nodes whose shares add up to at most 1."""

    def __init__(self, work: Work) -> None:
        self.shares = work.shares
        self.smallest = min(work.shares, default=0.0)
        self.used = 0.0

    @property
    def full(self) -> bool:
        return self.used + self.smallest > 1 + SLACK

    def take(self, node: int) -> bool:
        if self.used + self.shares[node] > 1 + SLACK:
            return False
        self.used += self.shares[node]
        return True

    def give_back(self, node: int) -> None:
        self.used = max(0.0, self.used - self.shares[node])


def replay_time(plan: StreamPlan, work: Work) -> float:
    """Modelled time of one replay, in the unit of `work`: nodes start in launch order as they fit.

    An estimate: real kernels also slow each other down while they share caches and memory.
    """
    rank = {node: index for index, node in enumerate(plan.order)}
    _, end = _run(plan.happens_before, set(plan.syncs), work, rank.__getitem__)
    return end


def in_resource_order(plan: StreamPlan, work: Work) -> StreamPlan:
    """The same streams launched in an order made for a device of limited room.

    Whenever something ends, ready nodes that fit are launched by one of these rules: the longest way to go
    first and of equal ones the smallest or the largest share, the largest share first, or the order that
    `plan` has. The rule with the shortest modelled replay counts.
    """
    dag = plan.happens_before
    left, shares = work.remaining(dag), work.shares
    rank = {node: index for index, node in enumerate(plan.order)}
    rules: tuple[Callable[[int], Any], ...] = (
        lambda v: (-left[v], shares[v], v),
        lambda v: (-left[v], -shares[v], v),
        lambda v: (-shares[v], -left[v], v),
        rank.__getitem__,
    )
    waits = set(plan.syncs)
    runs = [_run(dag, waits, work, rule) for rule in rules]
    starts, _ = min(runs, key=lambda run: run[1])
    return replace(plan, order=tuple(starts))


def _run(
    dag: Dag, waits: Collection[Edge], work: Work, priority: Callable[[int], Any]
) -> tuple[dict[int, float], float]:
    return simulate(
        dag,
        work.costs,
        DeviceCapacity(work),
        priority,
        lambda u, v: work.sync_cost if (u, v) in waits else 0.0,
    )
