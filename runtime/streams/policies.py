"""Stream policies by name: from a graph to a plan, and the choice between plans by measurement."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.runtime.dag import Dag
from tilewright.runtime.errors import InputError
from tilewright.runtime.streams.chain_cover import (
    limited_chains,
    merged_chains,
    optimal_chains,
    published_chains,
)
from tilewright.runtime.streams.device_model import in_resource_order
from tilewright.runtime.streams.event_loop import simulate
from tilewright.runtime.streams.stages import Pruning, StageTime, barriers_of, find_stages, streams_of
from tilewright.runtime.streams.stream_plan import StreamPlan, plan_from_streams
from tilewright.runtime.streams.work import Work


def listed_streams(dag: Dag, limit: int, work: Work) -> list[list[int]]:
    """At most `limit` streams: the ready node with the longest way to go starts as soon as one is idle."""
    left = work.remaining(dag)
    room = StreamCapacity(dag, limit)
    simulate(dag, work.costs, room, lambda v: (-left[v], v))
    return room.streams


class StreamCapacity:
    """Streams that run one node at a time; a node prefers a stream that ends in a node it depends on."""

    def __init__(self, dag: Dag, limit: int) -> None:
        self.before = dag.reduced_predecessors
        self.streams: list[list[int]] = []
        self.limit = limit
        self.stream_of: dict[int, int] = {}
        self.idle: set[int] = set()

    @property
    def full(self) -> bool:
        return not self.idle and len(self.streams) == self.limit

    def take(self, node: int) -> bool:
        if self.full:
            return False
        stream = self._choose(node)
        self.idle.discard(stream)
        self.streams[stream].append(node)
        self.stream_of[node] = stream
        return True

    def give_back(self, node: int) -> None:
        self.idle.add(self.stream_of[node])

    def _choose(self, node: int) -> int:
        for u in self.before[node]:
            stream = self.stream_of[u]
            if stream in self.idle and self.streams[stream][-1] == u:
                return stream
        if len(self.streams) < self.limit:
            self.streams.append([])
            return len(self.streams) - 1
        return min(self.idle)


LIMITED = re.compile(r"limited\(([1-9][0-9]{0,8})\)")
AUTO_CANDIDATES = ("serial", "exact", "resource", "limited(2)", "limited(4)", "ios")


def serial(dag: Dag) -> StreamPlan:
    """Everything on one stream, in topological order."""
    return plan_from_streams(dag, [dag.order])


def exact(dag: Dag) -> StreamPlan:
    """No two independent nodes are ordered; of such plans fewest synchronisations, then fewest streams."""
    return plan_from_streams(dag, optimal_chains(dag))


def nimble(dag: Dag) -> StreamPlan:
    """Nimble as published: no two independent nodes are ordered and synchronisations are fewest."""
    return plan_from_streams(dag, published_chains(dag))


def nimble_code(dag: Dag) -> StreamPlan:
    """Nimble as released: chains are merged, and a node waits for every parent on another stream."""
    plan = plan_from_streams(dag, merged_chains(dag))
    stream_of = {node: index for index, nodes in enumerate(plan.streams) for node in nodes}
    syncs = tuple((u, v) for u, v in dag.edges if stream_of[u] != stream_of[v])
    return StreamPlan(plan.streams, syncs, plan.order)


def limited(dag: Dag, limit: int, work: Work) -> StreamPlan:
    """At most `limit` streams: as `exact` where that needs no more, else still without ordering independent
    nodes where the graph is no wider than `limit`, else a list schedule by the costs of `work`."""
    if limit < 1:
        raise InputError(f"expected at least 1 stream, got {limit}")
    chains = limited_chains(dag, limit)
    return plan_from_streams(dag, listed_streams(dag, limit, work) if chains is None else chains)


def resource(dag: Dag, work: Work) -> StreamPlan:
    """The streams of `exact`, launched in an order that fills a device of limited room."""
    return in_resource_order(exact(dag), work)


def ios(
    dag: Dag, work: Work, stage_time: StageTime | None = None, pruning: Pruning | None = None
) -> StreamPlan:
    """Stages with a barrier after each, by dynamic programming over `stage_time` (default: the model's)."""
    stages = find_stages(dag, stage_time or work.stage_time, pruning)
    return plan_from_streams(dag, streams_of(stages), barriers_of(stages))


POLICIES: Mapping[str, Callable[[Dag, Work], StreamPlan]] = {
    "exact": lambda dag, work: exact(dag),
    "serial": lambda dag, work: serial(dag),
    "nimble": lambda dag, work: nimble(dag),
    "nimble-code": lambda dag, work: nimble_code(dag),
    "ios": ios,
    "resource": resource,
}
NAMES = (*POLICIES, "limited(K)", "auto")


def plan_streams(dag: Dag, policy: str = "exact", work: Work | None = None) -> StreamPlan:
    """The plan of a policy by name: those of `POLICIES` or `limited(K)`; by default nodes take time 1 each.

    Raises `InputError` for any other name; `auto` needs a measurement: see `choose_plan`.
    """
    own = work or Work.of(dag.n)
    if policy in POLICIES:
        return POLICIES[policy](dag, own)
    if match := LIMITED.fullmatch(policy):
        return limited(dag, int(match[1]), own)
    if policy == "auto":
        raise InputError("policy auto measures plans: call choose_plan with a way to measure")
    raise InputError(f"expected one of the policies {', '.join(NAMES)}, got {policy!r:.60}")


@dataclass(frozen=True)
class StreamChoice:
    """The fastest plan, the policy it comes from, and the time of every policy that was measured."""

    policy: str
    plan: StreamPlan
    times: Mapping[str, float]


def choose_plan(
    dag: Dag,
    measure: Callable[[StreamPlan], float],
    work: Work | None = None,
    policies: Sequence[str] = AUTO_CANDIDATES,
    *,
    max_streams: int | None = None,
    gain: float = 1.0,
) -> StreamChoice:
    """Policy `auto`: plan by each policy, measure each distinct plan once and take the fastest.

    `measure` gives the time of one replay, in any unit. Plans of more than `max_streams` streams are left
    out. Of equally fast plans the first policy's wins, so list simple ones first; another than the first must
    be faster than it by the factor `gain`. Raises `InputError` where there is none to choose from.
    """
    planned = {name: plan_streams(dag, name, work) for name in policies}
    plans = {n: p for n, p in planned.items() if max_streams is None or len(p.streams) <= max_streams}
    if not plans:
        raise InputError("expected at least one policy to choose from")
    measured: dict[StreamPlan, float] = {}
    for plan in plans.values():
        if plan not in measured:
            measured[plan] = measure(plan)
    times = {name: measured[plan] for name, plan in plans.items()}
    first = next(iter(times))
    best = min(times, key=times.__getitem__)
    if times[best] * gain >= times[first]:
        best = first
    return StreamChoice(best, plans[best], times)
