"""Is a stream plan right for a graph: does it order every edge, and nothing that is independent?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tilewright.runtime.dag import Dag, members
from tilewright.runtime.errors import InputError
from tilewright.runtime.streams.stream_plan import StreamPlan


def find_plan_faults(dag: Dag, plan: StreamPlan, *, concurrent: bool = False) -> list[str]:
    """Return the faults of `plan` as short clauses.

    Streams must hold each node once, synchronisations must join different streams, everything together must
    be free of cycles and order each edge of `dag`, and the launch order must go along. With `concurrent`, the
    plan must also order no two nodes that the graph leaves independent.
    """
    faults = list(_faults_of_parts(dag, plan))
    if faults:
        return faults
    try:
        enforced = plan.happens_before
    except InputError as error:
        return [f"streams and synchronisations contradict each other: {error}"]
    rank = {node: index for index, node in enumerate(plan.order)}
    faults += [
        f"{v} is launched before {u}, which it waits for" for u, v in enforced.edges if rank[u] > rank[v]
    ]
    faults += [f"edge [{u}, {v}] is not enforced" for u, v in dag.edges if not enforced.ordered(u, v)]
    if concurrent:
        for u in range(dag.n):
            surplus = enforced.descendants[u] & ~dag.descendants[u]
            faults += [f"{v} waits for {u}, on which it does not depend" for v in members(surplus)]
    return faults


def check_plan(dag: Dag, plan: StreamPlan, *, concurrent: bool = False) -> None:
    """Raise `InputError` with what `find_plan_faults` finds."""
    faults = find_plan_faults(dag, plan, concurrent=concurrent)
    if faults:
        more = f"; and {len(faults) - 20} more" if len(faults) > 20 else ""
        raise InputError(f"the stream plan is wrong: {'; '.join(faults[:20])}{more}")


def _faults_of_parts(dag: Dag, plan: StreamPlan) -> Iterator[str]:
    placed = Counter(node for nodes in plan.streams for node in nodes)
    for what, counts in (("on the streams", placed), ("in the launch order", Counter(plan.order))):
        for node in sorted(counts.keys() | set(range(dag.n))):
            expected = int(0 <= node < dag.n)
            if counts[node] != expected:
                yield f"node {node} is {counts[node]} times {what}, expected {expected}"
    stream_of = {node: index for index, nodes in enumerate(plan.streams) for node in nodes}
    for u, v in plan.syncs:
        if u not in stream_of or v not in stream_of:
            yield f"synchronisation [{u}, {v}] names a node that is on no stream"
        elif stream_of[u] == stream_of[v]:
            yield f"synchronisation [{u}, {v}] joins nodes of one stream"
