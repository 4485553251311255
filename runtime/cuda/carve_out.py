"""One division of on-chip memory into cache and shared memory for all kernels of a plan with relays.

The driver chooses it anew for each kernel, and a multiprocessor changes it only when it is empty: a launch
with another division cannot start beside the one before it, however much room there is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch

if TYPE_CHECKING:
    from tilewright.runtime.cuda.context import Context


def keep_carve_out(context: Context, plan: ExecutionPlan, functions: Iterable[Any]) -> None:
    """Let the functions of a plan that has relays all prefer the same share of shared memory."""
    if not any(kernel.releases for kernel in plan.kernels):
        return
    percent = carve_out_percent(
        plan,
        sm_count=context.attribute("MULTIPROCESSOR_COUNT"),
        sm_bytes=context.attribute("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        reserved_bytes=context.attribute("RESERVED_SHARED_MEMORY_PER_BLOCK"),
    )
    key = context.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    for function in functions:
        context.call("cuFuncSetAttribute", function, key, percent, doing="one division of on-chip memory")


def carve_out_percent(plan: ExecutionPlan, *, sm_count: int, sm_bytes: int, reserved_bytes: int) -> int:
    """The least share of shared memory, in per cent, that holds each launch and each relay of two launches.

    sm_bytes: shared memory of a multiprocessor at most. reserved_bytes: what the device takes of a block. A
    launch counts with the blocks that a multiprocessor has of it where they are spread evenly, but with no
    more than fit alone.
    """

    def needed(launch: Launch) -> int:
        resources = plan.kernel_by_name[launch.kernel].resources
        own = launch.shared_bytes + (resources.shared_bytes if resources else 0)
        if own == 0:
            return 0  # the device's bytes alone need no share of their own
        blocks = min(-(-math.prod(launch.grid) // sm_count), max(1, sm_bytes // (own + reserved_bytes)))
        return blocks * (own + reserved_bytes)

    most = max((needed(launch) for launch in plan.launches), default=0)
    most = max([most, *(needed(u) + needed(v) for u, v in _relays(plan))])
    return min(100, -(-100 * most // sm_bytes))


def _relays(plan: ExecutionPlan) -> Iterator[tuple[Launch, Launch]]:
    for launch in plan.launches:
        for dep in launch.deps:
            if plan.kernel_by_name[plan.launches[dep].kernel].releases:
                yield plan.launches[dep], launch
