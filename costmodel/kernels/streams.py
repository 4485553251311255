"""Chooses parameters of map, window and row-reduce kernels: small spaces, enumerated whole, ordered by
estimate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.parameters import MapParameters, RowReduceParameters, WindowParameters
from tilewright.costmodel.kernels.problem import GlobalProblem, RowReduceProblem, StreamProblem, WindowProblem
from tilewright.ir.hardware_facts import WARP

Q = TypeVar("Q")

_CPU_THREADS = (1, 2, 4, 8)
_GPU_THREADS = (64, 128, 256, 512)
#: elements of the widest vector of a GPU, for threads that then have at least one operation in so many less
WIDE_VECTOR, LEAST_SAVED = 8, 5

#: how much longer a map may take that has fewer blocks: with 1,536 blocks in place of 192 twelve maps of
#: BERT-base at batch 1 took 1 us longer each on an H200, where their launches start early, and alone as long
NEARLY = 1.03


@lru_cache(maxsize=4096)
def choose_map(problem: StreamProblem, hardware: Hardware) -> ParameterChoice[MapParameters]:
    """Threads, vector width, vectors per thread of an elementwise kernel; `vec` divides the elements.

    A GPU has vectors of 8 where neighbours share much of their work, as the words of one random call.
    The choice is that with the most bytes under way for its time, and where all blocks run at once the one of
    the fewest blocks among those that are nearly as fast: blocks start one after the other, which shows where
    launches follow closely. What it takes is no longer than one latency
    for each round of blocks beside the traffic: a map asks for all that it reads at once.
    """
    widths = [v for v in _vector_widths(hardware) if problem.elements % v == 0]
    if isinstance(hardware, GpuHardware) and problem.elements % WIDE_VECTOR == 0:
        wide, usual = problem.flops_beside(WIDE_VECTOR), problem.flops_beside(widths[-1])
        widths += [WIDE_VECTOR] if LEAST_SAVED * (usual - wide) >= usual else []
    threads = _CPU_THREADS if isinstance(hardware, CpuHardware) else _GPU_THREADS
    items = (1, 4, 16, 64, 256) if isinstance(hardware, CpuHardware) else (1, 2, 4)
    space = [MapParameters(t, v, i) for t in threads for v in widths for i in items]

    def seconds(p: MapParameters) -> float:
        work = p.vec * p.items
        instructions = problem.flops_beside(p.vec) / problem.elements * work + 3.0 * p.items
        threads = -(-problem.elements // work)
        if isinstance(hardware, CpuHardware):
            instructions += (
                p.vec * hardware.stream.gather_clk * problem.gathers * work
            )  # one by one, not as vectors
        else:
            instructions += hardware.stream.gather_instructions * problem.gathers * work
        return _stream_seconds(
            problem, hardware, p.threads, threads, instructions, p.vec, max(1, problem.reads)
        )

    times = {p: seconds(p) for p in space}
    best = min(space, key=times.__getitem__)
    if isinstance(hardware, GpuHardware):
        if _threads(problem, best) <= hardware.sm_count * hardware.max_threads_per_sm:
            near = [p for p in space if times[p] <= NEARLY * times[best]]
            best = min(near, key=lambda p: (-(-_threads(problem, p) // p.threads), times[p]))
        times[best] = min(times[best], _at_once_s(problem, hardware, best))
    return ParameterChoice(best, global_bound(problem, hardware), times[best], len(space))


def _threads(problem: StreamProblem, p: MapParameters) -> int:
    """Threads of all blocks."""
    return -(-problem.elements // (p.vec * p.items))


def _at_once_s(problem: StreamProblem, hardware: GpuHardware, p: MapParameters) -> float:
    """Seconds of a map whose every thread has asked for all that it reads: a latency per round, the traffic
    at the memory's rate, and the issue slots.
    """
    work = p.vec * p.items
    instructions = problem.flops_beside(p.vec) / problem.elements * work + 3.0 * p.items
    instructions += hardware.stream.gather_instructions * problem.gathers * work
    instructions += hardware.stream.address_instructions
    warps = -(-p.threads // WARP)
    blocks = -(-problem.elements // (work * p.threads))
    per_sm = -(-blocks // hardware.sm_count)
    resident = min(hardware.max_blocks_per_sm, hardware.max_threads_per_sm // (warps * WARP))
    issue_clk = (
        per_sm * warps * instructions / hardware.schedulers_per_sm / hardware.estimate_issue_efficiency
    )
    chain_clk = hardware.estimate_fetch_clk + instructions
    waiting_clk = rounds_clk(-(-per_sm // resident), chain_clk, hardware) + further_results_clk(
        problem, hardware
    )
    waiting_s = waiting_clk / hardware.clock_hz
    rate = hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency
    return (
        hardware.launch_floor_s + waiting_s + issue_clk / hardware.clock_hz + problem.compulsory_bytes / rate
    )


@lru_cache(maxsize=4096)
def choose_window(problem: WindowProblem, hardware: Hardware) -> ParameterChoice[WindowParameters]:
    """Threads per block and outputs along w per thread of a pooling or depthwise kernel.

    The width of stores divides both the outputs per thread and the output width, so that each is aligned.
    """
    threads = _CPU_THREADS if isinstance(hardware, CpuHardware) else _GPU_THREADS
    outputs = [o for o in (1, 2, 4, 7, 8, 14, 16) if o < 2 * problem.w]
    widths = [v for v in _vector_widths(hardware) if problem.w % v == 0]
    space = [(t, o, v) for t in threads for o in outputs for v in widths if o % v == 0]

    def seconds(point: tuple[int, int, int]) -> float:
        threads, outputs, vec = point
        strips = -(-problem.w // outputs)
        span = (outputs - 1) * problem.stride_w + (problem.f_w - 1) * problem.dilation_w + 1
        instructions = outputs * (problem.taps + 1 / vec)
        if isinstance(hardware, CpuHardware):
            instructions += hardware.stream.window_point_clk * problem.f_h * min(span, outputs * problem.f_w)
        else:
            shared = 1 if problem.weight_bytes else 0  # all outputs of a thread take the same weights
            instructions += hardware.stream.tap_instructions * problem.taps * (outputs + shared)
        return _stream_seconds(
            problem, hardware, threads, problem.planes * problem.h * strips, instructions, vec
        )

    best, estimate_s = _best(space, seconds)
    parameters = WindowParameters(*best[:2])
    return ParameterChoice(parameters, global_bound(problem, hardware), estimate_s, len(space))


@lru_cache(maxsize=4096)
def choose_row_reduce(problem: RowReduceProblem, hardware: Hardware) -> ParameterChoice[RowReduceParameters]:
    """Threads that share a row, rows per block and load width of a row reduction; `vec` divides the row
    length.

    On a GPU the block holds whole warps or, for short rows, several rows in one warp; on a CPU one work-item
    has a row.
    """
    widths = [v for v in _vector_widths(hardware) if problem.row_length % v == 0]
    if isinstance(hardware, CpuHardware):
        shapes = [(1, r) for r in _CPU_THREADS]
    else:
        shapes = [
            (t, r) for t in (1, 4, 8, 16, 32, 64, 128, 256, 512) for r in (1, 2, 4, 8, 16, 32, 64, 128)
            if WARP <= t * r <= 512 and (t <= WARP or r == 1)
        ]  # fmt: skip
    space = [RowReduceParameters(t, r, v) for t, r in shapes for v in widths]

    def seconds(p: RowReduceParameters) -> float:
        share = -(-problem.row_length // (p.threads_per_row * p.vec))
        combine = 8.0 * (p.threads_per_row.bit_length() - 1) + (60.0 if p.threads_per_row > WARP else 0.0)
        per_element = 1.0 + problem.flops_beside(p.vec) / (problem.rows * problem.row_length)
        instructions = problem.passes * (share * (2.0 + p.vec * per_element) + combine)
        threads = p.threads_per_row * p.rows_per_block
        return _stream_seconds(
            problem, hardware, threads, problem.rows * p.threads_per_row, instructions, p.vec
        )

    best, estimate_s = _best(space, seconds)
    return ParameterChoice(best, global_bound(problem, hardware), estimate_s, len(space))


def _vector_widths(hardware: Hardware) -> tuple[int, ...]:
    if isinstance(hardware, GpuHardware):
        return (1, 2, 4)
    return tuple(1 << e for e in range(hardware.simd_lanes.bit_length()))


def _stream_seconds(
    problem: GlobalProblem,
    hardware: Hardware,
    threads: int,
    work_items: int,
    instructions: float,
    vec: int,
    reads: int = 1,
) -> float:
    """Seconds of `work_items` threads in blocks of `threads` that run `instructions` each and move the bytes
    once, `reads` vectors at a time.
    """
    blocks = -(-work_items // threads)
    if isinstance(hardware, CpuHardware):
        return _cpu_seconds(problem, hardware, blocks, threads, instructions / vec)
    in_flight = threads * 4 * vec * reads
    instructions += hardware.stream.address_instructions
    return _gpu_seconds(problem, hardware, blocks, threads, instructions, in_flight)


def _cpu_seconds(
    problem: GlobalProblem, hardware: CpuHardware, blocks: int, threads: int, instructions: float
) -> float:
    per_core = -(-blocks // hardware.cores)
    clk = threads * (instructions + hardware.stream.address_clk)
    busy_s = per_core * (clk / hardware.estimate_clock_hz + hardware.estimate_work_group_s)
    moved_s = problem.compulsory_bytes / hardware.estimate_dram_bytes_per_s
    return (
        hardware.estimate_launch_s
        + max(busy_s, moved_s)
        + hardware.estimate_exposed_share * min(busy_s, moved_s)
    )


def _gpu_seconds(
    problem: GlobalProblem,
    hardware: GpuHardware,
    blocks: int,
    threads: int,
    instructions: float,
    block_bytes: int,
) -> float:
    """Little's law for the bandwidth with `block_bytes` of a block in flight, issue slots for the
    instructions, one latency chain per round of blocks.
    """
    warps = -(-threads // WARP)
    resident = min(hardware.max_blocks_per_sm, hardware.max_threads_per_sm // (warps * WARP))
    per_sm = -(-blocks // hardware.sm_count)
    rounds = -(-per_sm // resident)
    chain_clk = hardware.estimate_fetch_clk + instructions
    issue_clk = (
        per_sm * warps * instructions / hardware.schedulers_per_sm / hardware.estimate_issue_efficiency
    )
    in_flight = min(per_sm, resident) * block_bytes * min(blocks, hardware.sm_count) / hardware.sm_count
    rate = hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency
    rate *= min(1.0, in_flight / hardware.stream.bytes_in_flight_per_sm)
    waiting_clk = rounds_clk(rounds, chain_clk, hardware)
    if isinstance(problem, StreamProblem):
        waiting_clk += further_results_clk(problem, hardware)
    busy_s = max(waiting_clk, issue_clk) / hardware.clock_hz
    moved_s = problem.compulsory_bytes / rate
    return (
        hardware.launch_floor_s
        + max(busy_s, moved_s)
        + hardware.estimate_exposed_share * min(busy_s, moved_s)
    )


def rounds_clk(rounds: int, chain_clk: float, hardware: GpuHardware) -> float:
    """Cycles of so many rounds of blocks, each of which takes a chain of latencies from its first read on.

    The start of the first blocks is part of the launch: kernels that do nothing have it, too.
    """
    return rounds * chain_clk + (rounds - 1) * hardware.stream.block_start_clk


def further_results_clk(problem: StreamProblem, hardware: GpuHardware) -> float:
    """Cycles for which threads wait for what their further results read, once those before are written."""
    return (problem.results - 1) * hardware.stream.result_wait_clk


def _best(space: Sequence[Q], seconds: Callable[[Q], float]) -> tuple[Q, float]:
    """The point with the smallest estimate, the first one of equals, and that estimate."""
    return min(((point, seconds(point)) for point in space), key=lambda found: found[1])
