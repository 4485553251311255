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


def keep_carve_out(context: Context, plan: ExecutionPlan, functions: Iterable[Any]) -> None:
    """Let the functions of a plan that has relays all prefer the same share of shared memory."""
    if not any(kernel.releases for kernel in plan.kernels):
        return
    key = context.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
    for function in functions:
        context.call(
            "cuFuncSetAttribute", function, key, CARVE_OUT_PERCENT, doing="one division of on-chip memory"
        )
