"""Chooses parameters of kernels whose threads walk along lines step by step: scans and ordered updates."""

from __future__ import annotations

from functools import lru_cache

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.problem import LineProblem
from tilewright.ir import Func
from tilewright.ir.hardware_facts import WARP
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.kernel_problem import line_problem
from tilewright.passes.kernels.ordered.lowering import (
    COPIED_AT_ONCE,
    ScanParameters,
    ScatterParameters,
    elements_together,
    tests_at_once,
)

_GPU_THREADS = (32, 64, 128, 256)
_CPU_THREADS = (1, 4, 16)
_OWNERS = (1, 4, 16, 64, 256, 1024)
#: instructions of the test whether an update is an owner's own, and of the copy of an element
_TEST_INSTRUCTIONS, _COPY_INSTRUCTIONS = 8.0, 3.0


@lru_cache(maxsize=4096)
def choose_lines(problem: LineProblem, hardware: Hardware) -> ParameterChoice[ScatterParameters]:
    """Threads per block and owners per line.

    Every owner takes all steps, so more of them pay only where lines are few.

    The estimate is one latency chain per round of resident threads, or the instructions of all tests; scans
    use one owner.
    """
    cpu = isinstance(hardware, CpuHardware)
    owners = [o for o in _OWNERS if o <= problem.elements] if not cpu else [1]
    space = [ScatterParameters(t, o) for t in (_CPU_THREADS if cpu else _GPU_THREADS) for o in owners]
    estimates = [_seconds(problem, hardware, p) for p in space]
    best = min(range(len(space)), key=estimates.__getitem__)
    return ParameterChoice(space[best], global_bound(problem, hardware), estimates[best], len(space))


def _seconds(problem: LineProblem, hardware: Hardware, p: ScatterParameters) -> float:
    if isinstance(hardware, GpuHardware):
        moved_s = problem.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
        walk_clk = _owners_clk if p.owners > 1 else _line_clk
        return hardware.launch_floor_s + max(
            walk_clk(problem, hardware, p.owners) / hardware.clock_hz, moved_s
        )
    per_thread = problem.steps + -(-problem.elements // p.owners)
    threads = problem.lines * p.owners
    groups = -(-threads // p.threads)
    per_core = -(-groups // hardware.cores)
    clk = per_core * p.threads * per_thread * hardware.stream.step_clk
    return (
        hardware.estimate_launch_s
        + clk / hardware.estimate_clock_hz
        + per_core * hardware.estimate_work_group_s
    )


def _line_clk(problem: LineProblem, hardware: GpuHardware, owners: int) -> float:
    """Cycles of threads that each walk along a line of their own."""
    per_thread = problem.steps + problem.elements
    rounds = -(-problem.lines // (hardware.sm_count * hardware.max_threads_per_sm))
    return rounds * (hardware.estimate_fetch_clk + per_thread * hardware.ordered.step_clk)


def _owners_clk(problem: LineProblem, hardware: GpuHardware, owners: int) -> float:
    """Cycles of owners that copy their elements, test all updates and apply their own."""
    together = elements_together(problem.lines)
    threads = -(-problem.lines // together) * owners
    copies, own = -(-problem.elements // owners), -(-problem.steps // owners)
    chain = hardware.estimate_fetch_clk * (1 + copies / COPIED_AT_ONCE + own)
    chain += problem.steps * (hardware.ordered.step_clk / tests_at_once(problem.steps) + _TEST_INSTRUCTIONS)
    instructions = problem.steps * _TEST_INSTRUCTIONS + copies * together * _COPY_INSTRUCTIONS
    issue = hardware.sm_count * hardware.schedulers_per_sm * hardware.estimate_issue_efficiency
    resident = hardware.sm_count * hardware.max_threads_per_sm
    return max(-(-threads // WARP) * instructions / issue, -(-threads // resident) * chain)


def choose_walks(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel of one scan, or of ordered updates, with its parameters; None for other kernels."""
    *before, op, _ = kernel.body.ops if len(kernel.body.ops) > 1 else (None, None)
    scan = op is not None and op.name == "tensor.scan" and not before
    updates = op is not None and op.name == "tensor.scatter" and all(o.name == "tensor.map" for o in before)
    if op is None or not (scan or updates):
        return None
    lines = choose_lines(line_problem(kernel, op), hardware)
    if scan:
        return decided(kernel, "scan", lines, ScanParameters(lines.parameters.threads))
    return decided(kernel, "scatter", lines)
