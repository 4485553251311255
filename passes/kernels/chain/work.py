"""Estimate and lower bound of chain kernels: several stages run by the same block, one after the other.

The bound is T >= max(bytes / bandwidth, waves x sum of the stages' times), where the stages of one block add
up because each waits for the one before. The estimate adds what a block waits for: fetches, barriers, issue.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import Bound
from tilewright.ir.hardware_facts import WARP


@dataclass(frozen=True)
class ChainStageWork:
    """The work of one block for one stage.

    instructions: issued by its busiest thread; warps: that have work; multiply_adds: by all threads together;
    fetched_bytes: from global memory; round_trips: waits for global memory, one after the other;
    chunks: staged pieces of operands, each with barriers of its own; taps: reduction indices one thread walks
    through, one after the other; staged: global memory is read by cooperative copies; lines: of the cache
    that the loads of all warps look up, one after the other where lanes read far apart.
    """

    instructions: float
    warps: int
    multiply_adds: float
    fetched_bytes: float
    round_trips: float
    chunks: int
    taps: float = 0.0
    staged: bool = False
    lines: float = 0.0


@dataclass(frozen=True)
class ChainWork:
    """A chain kernel with chosen parameters.

    registers: per thread, estimated; compulsory_bytes: inputs and results once; flops: useful ones, without
    what blocks recompute.
    """

    blocks: int
    threads: int
    shared_bytes: int
    registers: int
    compulsory_bytes: int
    flops: float
    stages: tuple[ChainStageWork, ...]


def resident_chains(work: ChainWork, hardware: GpuHardware) -> int:
    """Blocks that fit one multiprocessor; 0 where none does."""
    if work.shared_bytes > hardware.smem_per_block_max_bytes:
        return 0
    threads = -(-work.threads // WARP) * WARP
    if threads > hardware.max_threads_per_block or work.registers > hardware.max_registers_per_thread:
        return 0
    shared = work.shared_bytes + hardware.smem_reserved_per_block_bytes
    return min(
        hardware.max_blocks_per_sm,
        hardware.max_threads_per_sm // threads,
        hardware.smem_per_sm_bytes // shared,
        hardware.registers_per_sm // (threads * work.registers),
    )


def estimate_chain(work: ChainWork, hardware: GpuHardware) -> float:
    """Estimated seconds; inf where a block cannot be resident."""
    occupancy = resident_chains(work, hardware)
    if occupancy == 0:
        return float("inf")
    per_sm = -(-work.blocks // hardware.sm_count)
    rounds, rest = divmod(per_sm, min(occupancy, per_sm))
    busy_clk = rounds * _round_clk(min(occupancy, per_sm), work, hardware)
    if rest:
        busy_clk += _round_clk(rest, work, hardware)
    busy_s = busy_clk / hardware.clock_hz
    fetched = work.blocks * sum(s.fetched_bytes for s in work.stages)
    l2_s = fetched / (hardware.l2_bytes_per_s * hardware.chain.l2_efficiency)
    dram_s = work.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    longest = max(busy_s, l2_s, dram_s)
    return (
        hardware.contract.launch_s
        + longest
        + hardware.estimate_exposed_share * (busy_s + l2_s + dram_s - longest)
    )


def _round_clk(resident: int, work: ChainWork, hardware: GpuHardware) -> float:
    """Cycles of `resident` blocks that run side by side on one multiprocessor."""
    return hardware.contract.block_clk + sum(_stage_clk(resident, s, hardware) for s in work.stages)


def _stage_clk(resident: int, s: ChainStageWork, hardware: GpuHardware) -> float:
    fit = hardware.contract
    issue = s.warps * s.instructions / (hardware.schedulers_per_sm * fit.issue_efficiency)
    looked_up = s.lines * hardware.chain.line_clk
    crowd = resident * max(issue, s.fetched_bytes / fit.l2_bytes_per_sm_per_clk, looked_up)
    alone = s.instructions * fit.clk_per_instruction + s.taps * fit.clk_per_tap
    alone += s.round_trips * (fit.fetch_clk if s.staged else hardware.chain.read_clk)
    longer, shorter = max(crowd, alone), min(crowd, alone)
    barriers = hardware.chain.barriers_per_stage * max(1, s.chunks) * hardware.estimate_barrier_clk
    return longer + fit.overlap_loss * shorter + barriers


def bound_chain(work: ChainWork, hardware: GpuHardware) -> Bound:
    """The sound lower bound: compulsory bytes from warm caches, multiply-adds per multiprocessor, launch."""
    waves = -(-work.blocks // hardware.sm_count)
    block_clk = sum(s.multiply_adds for s in work.stages) / hardware.fma_per_sm_per_clk
    terms = {
        "L2": work.compulsory_bytes / hardware.l2_bytes_per_s,
        "WB": waves * block_clk / hardware.clock_hz,
        "LAUNCH": hardware.launch_floor_s,
    }
    limit = max(terms, key=terms.__getitem__)
    seconds = terms[limit]
    return Bound(min(1.0, work.flops / (seconds * hardware.peak_flops_per_s)), seconds, limit, seconds)
