"""Arena buffers that are one place in memory because a launch may write its result over an operand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch


def places_of(plan: ExecutionPlan) -> Mapping[str, str]:
    """For each arena buffer the one whose place it takes: itself, unless it overwrites an operand.

    A result takes an operand's place where `Launch.in_place` allows it, every other use of the operand
    happens before that launch and every other use of the result after it. Each buffer is overwritten at most
    once and overwrites at most one; outputs are never overwritten.
    """
    arena = [b.name for b in plan.buffers if b.kind == "arena"]
    place = {name: name for name in arena}
    if not any(launch.in_place for launch in plan.launches):
        return place
    order = plan.dag
    uses = dict.fromkeys(arena, 0)
    for index, launch in enumerate(plan.launches):
        for name in launch.args:
            owner = plan.locate(name)[0].name
            if owner in uses:
                uses[owner] |= 1 << index
    gone = {plan.locate(name)[0].name for name in plan.outputs}
    for index, launch in enumerate(plan.launches):
        here = 1 << index
        for read, written in _pairs(launch):
            if read not in place or place.get(written) != written or read in gone:
                continue
            last = uses[read] & ~(here | order.ancestors[index]) == 0
            first = uses[written] & ~(here | order.descendants[index]) == 0
            if last and first and plan.buffer_by_name[read].nbytes == plan.buffer_by_name[written].nbytes:
                place[written] = place[read]
                gone.add(read)
    return place


def _pairs(launch: Launch) -> Iterator[tuple[str, str]]:
    """Names (read, written) of pairs whose buffers the launch takes once each."""
    for read, written in launch.in_place:
        names = launch.args[read], launch.args[written]
        if all(launch.args.count(name) == 1 for name in names):
            yield names
