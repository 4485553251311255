"""Chooses parameters of window kernels on GPUs whose threads compute boxes of outputs."""

from __future__ import annotations

from functools import lru_cache

from tilewright.costmodel.bound import global_bound
from tilewright.costmodel.choose import Choice
from tilewright.costmodel.hardware import GpuHardware
from tilewright.costmodel.parameters import WindowParameters
from tilewright.costmodel.problem import WindowProblem
from tilewright.costmodel.windows import staged_rows

_THREADS = (128, 256)
_ROWS = (1, 2, 4, 8)
_COLUMNS = (1, 2, 4)
_WARP = 32
_VECTOR_BYTES = 16
#: sums one thread keeps in registers at most
_MOST_SUMS = 32
#: instructions of a thread before its first read, and of one read or write with its bounds checks
_START_INSTRUCTIONS = 60.0
_ACCESS_INSTRUCTIONS = 6.0
#: registers (4 bytes) that what one thread reads at once takes at most
_MOST_PATCH = 128
#: registers beside sums and patch
_OTHER_REGISTERS = 40
#: clock cycles from the start of a block to its first read, beside the read itself
_BLOCK_START_CLK = 600.0
#: bytes an SM must have asked for to keep the memory busy
_BYTES_IN_FLIGHT_PER_SM = 40_000


@lru_cache(maxsize=4096)
def choose_tiles(problem: WindowProblem, hardware: GpuHardware, lanes: int) -> Choice[WindowParameters]:
    """Threads per block and the box of outputs of a thread.

    lanes: extent of the innermost dimension, where windows do not slide along it; `planes` counts it. Vectors
    lie along it, and divide it. 0: windows slide along the innermost dimension; no vectors then, and
    neighbouring threads take neighbouring outputs.
    """
    widest = _VECTOR_BYTES // problem.element_bytes
    widths = [v for v in (8, 4, 2, 1) if v <= widest and lanes % v == 0] if lanes else [1]
    space = [
        WindowParameters(t, c, v, r)
        for v in widths
        for r in _ROWS
        for c in (_COLUMNS if lanes else (1,))
        for t in _THREADS
        if r < 2 * problem.h and c < 2 * problem.w and (r == c == 1 or _fits(problem, r, c, v))
    ]
    estimates = [_seconds(problem, hardware, p) for p in space]
    best = min(range(len(space)), key=estimates.__getitem__)
    return Choice(space[best], global_bound(problem, hardware), estimates[best], len(space))


def _patch(problem: WindowProblem, rows: int, columns: int) -> int:
    """Vectors that a box of outputs reads of the first operand."""
    return int(staged_rows(rows, problem.axis_h)) * int(staged_rows(columns, problem.axis_w))


def _fits(problem: WindowProblem, rows: int, columns: int, vec: int) -> bool:
    words = _patch(problem, rows, columns) * vec * problem.element_bytes // 4
    return rows * columns * vec <= _MOST_SUMS and words <= _MOST_PATCH


def _seconds(problem: WindowProblem, hardware: GpuHardware, p: WindowParameters) -> float:
    """Issue slots, memory and L2 traffic, latency of all rounds of threads: whichever takes longest."""
    rows, columns, vec = p.rows_per_thread, p.outputs_per_thread, p.vec
    outputs = rows * columns
    patch_rows = int(staged_rows(rows, problem.axis_h))
    patch = _patch(problem, rows, columns)
    reads = patch + (problem.taps if problem.weight_bytes else 0)
    converted = vec if problem.element_bytes < 4 else 0
    instructions = (
        _START_INSTRUCTIONS
        + (reads + outputs) * (_ACCESS_INSTRUCTIONS + converted)
        + outputs * problem.taps * vec * (1 if problem.weight_bytes or not converted else 2)
    )
    threads = problem.planes // vec * -(-problem.h // rows) * -(-problem.w // columns)
    warps = -(-threads // _WARP)
    issue = hardware.schedulers_per_sm * hardware.estimate_issue_efficiency
    issue_clk = -(-warps // hardware.sm_count) * instructions / issue
    registers = _OTHER_REGISTERS + outputs * vec + patch * vec * problem.element_bytes // 4
    blocks = max(1, hardware.registers_per_sm // registers // p.threads)
    resident = min(hardware.max_threads_per_sm, blocks * p.threads)
    per_sm = -(-threads // hardware.sm_count)
    chain_clk = hardware.estimate_fetch_clk + _BLOCK_START_CLK + instructions
    rounds = -(-per_sm // resident)
    flying = min(per_sm, resident) * reads * vec * problem.element_bytes
    rate = hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency
    moved_s = problem.compulsory_bytes / (rate * min(1.0, flying / _BYTES_IN_FLIGHT_PER_SM))
    again = patch_rows * -(-problem.h // rows) / max(1, problem.h_in)
    pixels = problem.planes * problem.h_in * problem.w_in
    through_l2 = problem.element_bytes * (max(1.0, again) * pixels + problem.outputs)
    l2_rate = hardware.estimate_l2_bytes_per_sm_per_clk * hardware.sm_count * hardware.clock_hz
    busy_s = max(issue_clk, rounds * chain_clk) / hardware.clock_hz
    terms = sorted((busy_s, moved_s, through_l2 / l2_rate))
    return hardware.launch_floor_s + terms[-1] + 0.15 * terms[-2]
