"""Chooses parameters of row kernels on GPUs: along contiguous rows, kept in registers, or across rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2, sqrt

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.parameters import RowReduceParameters
from tilewright.costmodel.kernels.problem import RowReduceProblem
from tilewright.costmodel.kernels.streams import rounds_clk
from tilewright.ir.hardware_facts import PORT_BYTES_PER_CLK, SECTOR_BYTES, VECTOR_BYTES, WARP
from tilewright.passes.kernels.rows.partial_sums import LONGEST_CHAIN

POWERS = tuple(1 << e for e in range(11))
#: registers (4 bytes) of one thread that may hold its part of a row, and steps in which it reads them
_KEPT_REGISTERS = 32
_KEPT_STEPS = 16
#: registers beside kept values
OTHER_REGISTERS = 32
#: threads of a block, at least and at most
_BLOCK = (128, 512)
#: threads of a block that reads long rows again: fewer rows at once stay in the caches
_LARGEST_BLOCK = 1024
#: share of the L2 cache that rows may fill which are walked along again
_CACHED_SHARE = 0.7
#: steps of a walk whose reads are asked for together, at least and at most, and the bytes a thread asks for
_TOGETHER = (4, 8)
_ASKED_BYTES = 64


@dataclass(frozen=True)
class RowAccess:
    """The place of the rows of a problem in memory.

    inner: extent of the dimension along which elements are contiguous: the last one of a row, or, with
    `across`, of the rows. element_bytes: of the array read. kept_words: registers per element of a row that
    several walks need, 0 where nothing is kept. walks: how often a row is walked along. asked_bytes: what
    the threads of all rows ask caches for, across rows: more than compulsory where rows share elements.
    piece: elements of a row that lie one after the other, behind which those of other rows lie; 0 where all
    of a row does, and across rows. parts: arrays of the size of the largest one that the kernel reads as one
    parameter, such as the parts of a sum, which a thread asks for together.
    """

    inner: int
    element_bytes: int
    across: bool = False
    kept_words: float = 0.0
    walks: int = 1
    asked_bytes: int = 0
    piece: int = 0
    parts: float = 1.0


@lru_cache(maxsize=4096)
def choose_rows(
    problem: RowReduceProblem, hardware: GpuHardware, access: RowAccess
) -> ParameterChoice[RowReduceParameters] | None:
    """Threads per row, rows (with `across`: vectors of rows) per block, vector width.

    None where there are no such blocks. Rows that are too long to be kept are read anew by each walk.
    """
    widest = VECTOR_BYTES // access.element_bytes
    widths = [v for v in (8, 4, 2, 1) if v <= max(1, widest) and access.inner % v == 0]
    again = access.walks > 1 and not access.across and access.kept_words == 0.0
    most = _LARGEST_BLOCK if again else _BLOCK[1]
    space = [
        RowReduceParameters(t, r, v)
        for v in widths
        for t in POWERS
        for r in POWERS
        if _BLOCK[0] <= t * r <= most and _fits(problem, access, t, v)
    ]
    if not space and access.kept_words:  # rows that no block keeps are read again from caches
        return choose_rows(problem, hardware, replace(access, kept_words=0.0))
    if not space:
        return None
    estimates = [_seconds(problem, hardware, access, p) for p in space]
    best = min(range(len(space)), key=estimates.__getitem__)
    return ParameterChoice(space[best], global_bound(problem, hardware), estimates[best], len(space))


def _steps(problem: RowReduceProblem, access: RowAccess, threads: int, vec: int) -> int:
    return -(-problem.row_length // (threads * (1 if access.across else vec)))


def _fits(problem: RowReduceProblem, access: RowAccess, threads: int, vec: int) -> bool:
    if threads > 2 * problem.row_length:
        return False
    steps = _steps(problem, access, threads, vec)
    return keeps(steps, vec, access.kept_words)


def steps_together(vec: int, element_bytes: int) -> int:
    """Steps of a walk across rows whose vectors a thread asks for before it uses the first of them."""
    return max(_TOGETHER[0], min(_TOGETHER[1], _ASKED_BYTES // (vec * element_bytes)))


def keeps(steps: int, vec: int, words: float) -> bool:
    """Return whether a thread's registers hold its part of a row between walks: `words` for each element."""
    return words == 0.0 or (steps <= _KEPT_STEPS and steps * vec * words <= _KEPT_REGISTERS)


def _seconds(
    problem: RowReduceProblem, hardware: GpuHardware, access: RowAccess, p: RowReduceParameters
) -> float:
    """Memory traffic with the bytes in flight, issue slots, or the latency of all rounds of blocks."""
    fit = hardware.rows
    threads, vec = p.threads_per_row * p.rows_per_block, p.vec
    steps = _steps(problem, access, p.threads_per_row, vec)
    groups = problem.rows // vec if access.across else problem.rows
    blocks = -(-groups // p.rows_per_block)
    per_element = 1.0 + problem.flops_beside(vec) / (problem.rows * problem.row_length)
    warps_per_row = p.threads_per_row // WARP
    exchanges = (p.threads_per_row if access.across else min(p.threads_per_row, WARP)).bit_length() - 1
    barriers = exchanges if access.across else int(warps_per_row > 1)
    merge = exchanges * (2.0 * (vec if access.across else 1)) + (warps_per_row if barriers else 0)
    instructions = fit.start_instructions + steps * (fit.step_instructions * access.walks + vec * per_element)
    instructions += access.walks * (merge + (vec * sqrt(steps) if steps > LONGEST_CHAIN else 0.0))
    waits = access.walks * (exchanges * fit.exchange_clk + barriers * fit.barrier_clk)
    asked = steps_together(vec, access.element_bytes) if access.across else _TOGETHER[0]
    together = steps if access.kept_words else min(steps, asked)
    walks = 1 if access.kept_words else access.walks
    chain_clk = instructions + waits
    chain_clk += walks * -(-steps // together) * hardware.estimate_fetch_clk
    registers = OTHER_REGISTERS + (steps * vec * access.kept_words or together * vec)
    resident = int(hardware.registers_per_sm // (registers * threads))
    resident = max(1, min(resident, hardware.max_threads_per_sm // threads, hardware.max_blocks_per_sm))
    per_sm = -(-blocks // hardware.sm_count)
    issue = hardware.schedulers_per_sm * hardware.estimate_issue_efficiency
    issue_clk = per_sm * threads / WARP * instructions / issue
    active = min(1.0, problem.row_length / (p.threads_per_row * steps * (1 if access.across else vec)))
    flying = min(per_sm, resident) * threads * together * vec * access.element_bytes * access.parts * active
    rate = (
        hardware.dram_bytes_per_s
        * hardware.estimate_dram_efficiency
        * _run_rate(problem, hardware, access, p)
    )
    rate *= min(1.0, flying / hardware.stream.bytes_in_flight_per_sm)
    again_s = problem.compulsory_bytes / rate
    if not access.across:
        walked = min(per_sm, resident) * hardware.sm_count * problem.row_length * p.rows_per_block
        cached = walked * access.element_bytes <= _CACHED_SHARE * hardware.l2_bytes
        again_s = problem.bytes_read / (hardware.l2_bytes_per_s if cached else rate)
    l2_rate = hardware.sm_count * hardware.estimate_l2_bytes_per_sm_per_clk * hardware.clock_hz
    moved_s = max(problem.compulsory_bytes / rate + (walks - 1) * again_s, access.asked_bytes / l2_rate)
    # What few blocks read passes few ports, which takes longer than it would by all of them.
    port_s = problem.bytes_read / (PORT_BYTES_PER_CLK * hardware.clock_hz)
    moved_s += port_s * (1.0 / min(blocks, hardware.sm_count) - 1.0 / hardware.sm_count)
    waiting_clk = rounds_clk(-(-per_sm // resident), chain_clk, hardware)
    busy_s = max(issue_clk, waiting_clk) / hardware.clock_hz
    return (
        hardware.launch_floor_s
        + max(busy_s, moved_s)
        + hardware.estimate_exposed_share * min(busy_s, moved_s)
    )


def _run_rate(
    problem: RowReduceProblem, hardware: GpuHardware, access: RowAccess, p: RowReduceParameters
) -> float:
    """Share of the memory's rate that runs of neighbouring bytes of this length reach.

    Of a sector that several blocks read, each has the whole brought to it. Memory brings two sectors, which
    the L2 holds until others read the rest only where it holds all.
    """
    fit = hardware.rows
    side = min(p.rows_per_block, access.inner // p.vec) if access.across else p.threads_per_row
    apart = access.piece > 0 and problem.compulsory_bytes > hardware.l2_bytes
    length = access.inner if access.across else access.piece if apart else problem.row_length
    run = min(side * p.vec, length) * access.element_bytes
    brought = 2 * SECTOR_BYTES if apart else SECTOR_BYTES
    return min(1.0, run / brought) * (1.0 - fit.halving_share * log2(max(1.0, fit.run_bytes / run)))
