"""How the commands of one replay are ordered on an OpenCL queue: by the queue itself, or by events."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.runtime.plan.execution_plan import ExecutionPlan


@dataclass(frozen=True)
class ReplayOrder:
    """What each command of a replay waits for, where the queue does not keep the order.

    `deps[i]`: launches that launch i waits for, those of the plan. `copies[i]`: positions of the inputs it
    uses, whose copies to the device it waits for. `last`: launches that no other waits for; copies to the
    host wait for these, which are after all others. `out_of_order` is false where the queue keeps the order
    and nothing waits; `reason` says in words why it is so.
    """

    out_of_order: bool
    reason: str
    deps: tuple[tuple[int, ...], ...]
    copies: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]


def order_of(plan: ExecutionPlan, *, wanted: bool | None, supported: bool, device: str) -> ReplayOrder:
    """The order of a plan's replays.

    wanted: out of order or not; None means for plans of several streams, where one of communications alone is
    none: these run beside the queue. supported: whether the device has
    queues that are out of order. Without them a plan runs in order, which keeps every dependency as well.
    """
    talking = {kernel.name for kernel in plan.kernels if kernel.language == "communication"}
    streams = len({launch.stream for launch in plan.launches if launch.kernel not in talking})
    used = f"{streams} stream{'' if streams == 1 else 's'}"
    if wanted is False:
        out_of_order, reason = False, "in order, as asked for"
    elif wanted is None and streams < 2:
        out_of_order, reason = False, f"in order: the plan has {used}"
    elif not supported:
        out_of_order, reason = False, f"in order: {device} has no queues that are out of order ({used})"
    else:
        out_of_order, reason = True, f"out of order: the plan has {used}"
    position = {name: i for i, name in enumerate(plan.inputs)}
    copies = []
    for launch in plan.launches:
        owners = {plan.locate(name)[0] for name in launch.args}
        copies.append(tuple(sorted(position[o.name] for o in owners if o.kind == "input" and o.size)))
    awaited = {dep for launch in plan.launches for dep in launch.deps}
    last = tuple(i for i in range(len(plan.launches)) if i not in awaited)
    return ReplayOrder(
        out_of_order, reason, tuple(launch.deps for launch in plan.launches), tuple(copies), last
    )
