"""One division of on-chip memory into cache and shared memory for all kernels of a plan with relays.

The driver chooses it anew for each kernel, and a multiprocessor changes it only when it is empty: a launch
with another division cannot start beside the one before it, however much room there is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tilewright.runtime.plan.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    from tilewright.runtime.cuda.context import Context

#: share of shared memory in per cent: all of it, so that two launches find room side by side. On an H200 in
#: fp16 at batch 1 the least share that holds every relay took as long in BERT-base and MobileNetV2 (290 and
#: 87 us) and longer in ResNet-50 (194 us for 185), what the driver chooses 304, 90 and 213 us.
CARVE_OUT_PERCENT = 100
#: share of the launches that must release the next one. All others lose what they had of the cache: networks
#: of large batches, with one launch in fifty that releases, took 1 to 4 % longer with the most shared memory.
LEAST_RELEASING = 0.5


def keep_carve_out(context: Context, plan: ExecutionPlan, functions: Iterable[Any]) -> None:
    """Let the functions of a plan of relays all prefer the same share of shared memory."""
    if not wants_one_carve_out(plan):
        return
    key = context.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    doing = "one division of on-chip memory"
    for function in functions:
        context.call("cuFuncSetAttribute", function, key, CARVE_OUT_PERCENT, doing=doing)


def wants_one_carve_out(plan: ExecutionPlan) -> bool:
    """Return whether so many launches of a plan release the next one that all kernels divide memory alike."""
    releasing = sum(plan.kernel_by_name[launch.kernel].releases for launch in plan.launches)
    return releasing > 0 and releasing >= LEAST_RELEASING * len(plan.launches)
