"""Put a stream plan on an execution plan: launch order, streams, dependency edges, and memory under them."""

from __future__ import annotations

from dataclasses import replace

from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.streams.stream_plan import StreamPlan


def with_streams(plan: ExecutionPlan, streams: StreamPlan) -> ExecutionPlan:
    """The plan launched as `streams` says.

    Launches follow its order, carry its stream numbers, and depend on exactly the reduced edges of what it
    enforces: neighbours on a stream and waits across streams. Memory is placed anew, so buffers share bytes
    only where these edges keep their uses apart. Raises `InputError` where the streams are not of this
    plan's launches or leave a dependency of the plan open.
    """
    dag, order = plan.dag, streams.happens_before
    if sorted(streams.order) != list(range(dag.n)):
        raise InputError(f"expected streams of {dag.n} launches, got {len(streams.order)}")
    for u, v in dag.edges:
        if not order.ordered(u, v):
            raise InputError(f"the streams leave launch {v} free to run before launch {u}")
    number = {node: index for index, nodes in enumerate(streams.streams) for node in nodes}
    position = {node: index for index, node in enumerate(streams.order)}
    launches = tuple(
        replace(
            plan.launches[node],
            deps=tuple(sorted(position[u] for u in order.reduced_predecessors[node])),
            stream=number[node],
        )
        for node in streams.order
    )
    return validate(place_arena(plan.replace(launches=launches)))
