"""The replay of a plan as the model sees it, in the form of a profile: for machines without the device."""

from __future__ import annotations

from tilewright.profiling.profile import Profile
from tilewright.profiling.replay_record import LaunchSpan
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.streams import Work
from tilewright.runtime.streams.device_model import DeviceRoom
from tilewright.runtime.streams.event_loop import simulate


def modelled_profile(plan: ExecutionPlan, work: Work, device: str) -> Profile:
    """Launches start in plan order, one kernel boundary after what they wait for, while their shares fit.

    work: times without boundaries, shares, and seconds of a boundary, of the launches
    (`tilewright.measuring.stream_choice.work_of`).
    device: the name of what is modelled. The serial plan takes the sum of all times and the boundaries
    between them; on one stream it is the plan itself, and not compared.
    """
    starts, end_s = _simulated(plan, work)
    launches = tuple(
        LaunchSpan(
            i, x.kernel, x.origin, x.stream, x.deps, x.grid, x.block,
            arrived_s=starts[i], start_s=starts[i], end_s=starts[i] + work.costs[i],
        )
        for i, x in enumerate(plan.launches)
    )  # fmt: skip
    boundaries = max(0, len(plan.launches) - 1)
    return Profile(
        target=plan.target,
        device=device,
        clock="model",
        repeats=0,
        launches=launches,
        total_s=end_s,
        recorded_s=None,
        resolution_s=0.0,
        serial_s=sum(work.costs) + boundaries * work.sync_cost
        if len({x.stream for x in launches}) > 1
        else None,
    )


def _simulated(plan: ExecutionPlan, work: Work) -> tuple[dict[int, float], float]:
    if not plan.launches:
        return {}, 0.0
    return simulate(plan.dag, work.costs, DeviceRoom(work), lambda v: v, lambda u, v: work.sync_cost)
