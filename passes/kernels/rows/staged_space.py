"""Chooses parameters of row kernels on GPUs whose blocks stage whole contiguous rows in shared memory."""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bank_conflicts import wavefront_count
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.parameters import RowReduceParameters
from tilewright.costmodel.kernels.problem import RowReduceProblem
from tilewright.costmodel.kernels.streams import rounds_clk
from tilewright.ir.hardware_facts import LINE_BYTES, VECTOR_BYTES, WARP
from tilewright.passes.kernels.rows.space import (
    OTHER_REGISTERS,
    POWERS,
)

#: elements that stand in the code of a walk one after the other, and those of which a thread keeps computed
#: values from one walk to the next
UNROLLED_ELEMENTS = 128
KEPT_ELEMENTS = 16
#: threads of a block, at least and at most, and bytes it stages at most
_BLOCK = (128, 256)
_TILE_BYTES = 32_768
_WORD_BYTES = 4


@lru_cache(maxsize=4096)
def choose_staged(
    problem: RowReduceProblem, hardware: GpuHardware, element_bytes: int, walks: int = 1
) -> ParameterChoice[RowReduceParameters] | None:
    """Threads per row, rows per block, elements that a thread reads at once from shared memory.

    walks: how often a row is walked along; the last of several writes a row as long. None where no block's
    rows, or not all rows, are whole words.
    """
    length = problem.row_length
    space = [
        RowReduceParameters(t, r, v)
        for v in (8, 4, 2, 1)
        if v * element_bytes <= VECTOR_BYTES and length % v == 0
        for t in POWERS
        if t * v < 2 * length
        for r in POWERS
        if _BLOCK[0] <= t * r <= _BLOCK[1]
        and r * length * element_bytes <= _TILE_BYTES
        and copied_lanes(problem, r, element_bytes) * element_bytes >= _WORD_BYTES
        and (walks == 1 or -(-length // (t * v)) * v <= KEPT_ELEMENTS)
    ]
    if not space:
        return None
    estimates = [_seconds(problem, hardware, element_bytes, walks, p) for p in space]
    best = min(range(len(space)), key=estimates.__getitem__)
    return ParameterChoice(space[best], global_bound(problem, hardware), estimates[best], len(space))


def copied_lanes(problem: RowReduceProblem, rows: int, element_bytes: int) -> int:
    """Elements that one copy moves: they divide a block's rows and all rows."""
    return gcd(rows * problem.row_length, problem.rows * problem.row_length, VECTOR_BYTES // element_bytes)


def read_wavefronts(length: int, element_bytes: int, p: RowReduceParameters) -> int:
    """Wavefronts of one read of a warp from the staged rows, at its first step."""
    lane = np.arange(WARP)
    element = lane // p.threads_per_row * length + lane % p.threads_per_row * p.vec
    size = max(_WORD_BYTES, element_bytes * p.vec)
    return int(wavefront_count(element * element_bytes // size * (size // _WORD_BYTES), size))


def _seconds(
    problem: RowReduceProblem, hardware: GpuHardware, element_bytes: int, walks: int, p: RowReduceParameters
) -> float:
    """Memory traffic with the bytes in flight, issue slots, shared memory, or latency of rounds of blocks."""
    fit = hardware.rows
    length, threads, vec = problem.row_length, p.threads_per_row * p.rows_per_block, p.vec
    lanes = copied_lanes(problem, p.rows_per_block, element_bytes)
    tile_bytes = p.rows_per_block * length * element_bytes
    copies = -(-p.rows_per_block * length // (lanes * threads)) * min(walks, 2)
    steps = -(-length // (p.threads_per_row * vec))
    per_element = 1.0 + problem.flops_beside(vec) / (problem.rows * length)
    merged = max(1, walks - 1)
    exchanges = merged * (min(p.threads_per_row, WARP).bit_length() - 1)
    barriers = min(walks, 3) + merged * int(p.threads_per_row > WARP)
    instructions = fit.staged_start_instructions + copies * fit.staged_copy_instructions + 2.0 * exchanges
    instructions += steps * (walks * fit.staged_step_instructions + vec * per_element)
    wavefronts = walks * steps * read_wavefronts(length, element_bytes, p)
    wavefronts += copies * max(1, WARP * lanes * element_bytes // LINE_BYTES)
    waits = (
        barriers * fit.barrier_clk
        + exchanges * fit.exchange_clk
        + walks * (hardware.lat_smem_clk + steps * fit.add_clk)
    )
    chain_clk = hardware.estimate_fetch_clk + instructions + waits
    blocks = -(-problem.rows // p.rows_per_block)
    per_sm = -(-blocks // hardware.sm_count)
    registers = OTHER_REGISTERS + (vec if walks == 1 else steps * vec)
    taken = tile_bytes + hardware.smem_reserved_per_block_bytes
    resident = min(
        hardware.registers_per_sm // (registers * threads),
        hardware.max_threads_per_sm // threads,
        hardware.max_blocks_per_sm,
        hardware.smem_per_sm_bytes // taken,
    )
    resident = max(1, resident)
    warps = per_sm * threads / WARP
    issue_clk = warps * instructions / (hardware.schedulers_per_sm * hardware.estimate_issue_efficiency)
    waiting_clk = rounds_clk(-(-per_sm // resident), chain_clk, hardware)
    busy_s = max(issue_clk, warps * wavefronts, waiting_clk) / hardware.clock_hz
    flying = min(per_sm, resident) * tile_bytes
    rate = hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency
    moved_s = problem.compulsory_bytes / (rate * min(1.0, flying / hardware.stream.bytes_in_flight_per_sm))
    return (
        hardware.launch_floor_s
        + max(busy_s, moved_s)
        + hardware.estimate_exposed_share * min(busy_s, moved_s)
    )
