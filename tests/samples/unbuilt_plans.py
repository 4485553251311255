"""Plans of networks whose kernels are emitted and not compiled: for tests of launches, buffers and memory."""

from typing import Any

from tilewright.compilation.kernel_builds import kernel_codes
from tilewright.compilation.lowering import lower
from tilewright.compilation.planning import plan_module
from tilewright.devices.targets import resolve_target
from tilewright.ir import Module
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.streams import plan_streams
from tilewright.runtime.streams.assignment import with_streams


def plan_of(module: Module, target: str = "cuda:sm_90a", **choices: Any) -> ExecutionPlan:
    """The plan of `module`, its launches ordered by their data alone; `choices` are those of `lower`."""
    resolved = resolve_target(target)
    lowered = lower(module, resolved, **choices)
    return plan_module(lowered.thread, lowered.sources, kernel_codes(lowered.sources, resolved), target)


def on_one_stream(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan with all launches in one order, and its memory planned for that."""
    return with_streams(plan, plan_streams(plan.dag, "serial"))
