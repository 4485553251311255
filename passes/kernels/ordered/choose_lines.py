"""Chooses parameters of kernels whose threads walk along lines step by step: scans and ordered updates."""

from __future__ import annotations

from functools import lru_cache

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.problem import LineProblem
from tilewright.ir import Func
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.kernel_problem import line_problem, only_op
from tilewright.passes.kernels.ordered.lowering import ScanParameters, ScatterParameters

_GPU_THREADS = (32, 64, 128, 256)
_CPU_THREADS = (1, 4, 16)
_OWNERS = (1, 4, 16, 64, 256)


@lru_cache(maxsize=4096)
def choose_lines(problem: LineProblem, hardware: Hardware) -> ParameterChoice[ScatterParameters]:
    """Threads per block and owners per line.

    Every owner takes all steps, so more of them pay only where lines are few.

    The estimate is one latency chain per round of resident threads; scans use one owner.
    """
    cpu = isinstance(hardware, CpuHardware)
    owners = [o for o in _OWNERS if o <= problem.elements] if not cpu else [1]
    space = [ScatterParameters(t, o) for t in (_CPU_THREADS if cpu else _GPU_THREADS) for o in owners]
    estimates = [_seconds(problem, hardware, p) for p in space]
    best = min(range(len(space)), key=estimates.__getitem__)
    return ParameterChoice(space[best], global_bound(problem, hardware), estimates[best], len(space))


def _seconds(problem: LineProblem, hardware: Hardware, p: ScatterParameters) -> float:
    per_thread = problem.steps + -(-problem.elements // p.owners)
    threads = problem.lines * p.owners
    if isinstance(hardware, GpuHardware):
        resident = hardware.sm_count * hardware.max_threads_per_sm
        chain = -(-threads // resident) * (
            hardware.estimate_fetch_clk + per_thread * hardware.ordered.step_clk
        )
        moved = problem.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
        return hardware.launch_floor_s + max(chain / hardware.clock_hz, moved)
    groups = -(-threads // p.threads)
    per_core = -(-groups // hardware.cores)
    clk = per_core * p.threads * per_thread * hardware.stream.step_clk
    return (
        hardware.estimate_launch_s
        + clk / hardware.estimate_clock_hz
        + per_core * hardware.estimate_work_group_s
    )


def choose_walks(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel of one scan, or of ordered updates, with its parameters; None for other kernels."""
    op = only_op(kernel, "tensor.scan", "tensor.scatter")
    if op is None:
        return None
    lines = choose_lines(line_problem(kernel, op), hardware)
    if op.name == "tensor.scan":
        return decided(kernel, "scan", lines, ScanParameters(lines.parameters.threads))
    return decided(kernel, "scatter", lines)
