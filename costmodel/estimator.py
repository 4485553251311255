"""Estimated seconds of contract kernels: not a bound, used to order points whose bounds tie and to choose
unmeasured.

GPU: waves x (prologue + iterations x max(issue, FMA, shared-memory, L2 cycles; latency chain) + epilogue),
with the DRAM and L2 floors and the launch. CPU: see `tilewright.costmodel.cpu_estimator`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.costmodel.cpu_estimator import estimate_contract_cpu
from tilewright.costmodel.geometry import (
    WARP,
    WIDEST_COPY_BYTES,
    Fetch,
    Geometry,
    ceil_div,
    contract_fetch,
    contract_geometry,
    likely_registers,
    resident_blocks,
    vector_width,
)
from tilewright.costmodel.hardware import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.parameters import ContractSpace
from tilewright.costmodel.problem import ContractProblem
from tilewright.costmodel.warp_reads import read_runs, row_wavefronts
from tilewright.costmodel.windows import FloatArray, IntArray, staged_rows

_L2_SHARE = 0.33
_EXPOSED_SHARE = 0.15
SECTOR_BYTES = 32


@dataclass(frozen=True, eq=False)
class _Iteration:
    """Cycles of one iteration of one block: what it takes from the SM, and what one warp takes alone."""

    throughput_clk: FloatArray
    alone_clk: FloatArray


def estimate_contract(problem: ContractProblem, space: ContractSpace, hardware: Hardware) -> FloatArray:
    """Estimated seconds of every point; inf where a block cannot be resident."""
    g = contract_geometry(problem, space)
    if isinstance(hardware, CpuHardware):
        return estimate_contract_cpu(problem, space, hardware, g)
    return _estimate_gpu(problem, space, hardware, g)


def _estimate_gpu(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry
) -> FloatArray:
    fetch = contract_fetch(problem, space)
    shared_bytes = problem.element_bytes * fetch.words
    occupancy = resident_blocks(hardware, g.warps, shared_bytes, likely_registers(space, fetch))
    per_sm = ceil_div(g.blocks, hardware.sm_count)
    resident = np.minimum(occupancy, per_sm).clip(1)
    step = _iteration(problem, space, hardware, g, fetch)
    full_rounds, rest = per_sm // resident, per_sm % resident
    busy_clk = full_rounds * _round_clk(resident, step, hardware, g)
    busy_clk = busy_clk + np.where(rest > 0, _round_clk(rest, step, hardware, g), 0.0)
    fetched = problem.element_bytes * g.blocks * g.fill_words_average
    l2_s = (fetched + problem.output_bytes + problem.extra_bytes) / (hardware.l2_bytes_per_s * _L2_SHARE)
    dram_s = problem.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    busy_s = busy_clk / hardware.clock_hz
    longest = np.maximum(np.maximum(busy_s, l2_s), dram_s)
    hidden = busy_s + l2_s + dram_s - longest
    seconds = hardware.contract_launch_s + longest + _EXPOSED_SHARE * hidden
    return np.where(occupancy > 0, np.maximum(seconds, hardware.launch_floor_s), np.inf)


def _round_clk(resident: IntArray, step: _Iteration, hardware: GpuHardware, g: Geometry) -> FloatArray:
    """Cycles of `resident` blocks that run side by side on one SM from start to end."""
    crowd_clk = resident * step.throughput_clk
    longer, shorter = np.maximum(crowd_clk, step.alone_clk), np.minimum(crowd_clk, step.alone_clk)
    outputs = resident * g.warps * g.accumulators
    epilogue_clk = outputs * (hardware.contract_epilogue_instructions / hardware.schedulers_per_sm)
    loop_clk = g.iterations * (longer + hardware.contract_overlap_loss * shorter)
    return np.asarray(hardware.contract_block_clk + loop_clk + epilogue_clk)


def _iteration(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry, fetch: Fetch
) -> _Iteration:
    """What the issue slots, FMA lanes, shared-memory and L2 ports take; and what one warp takes alone."""
    runs = read_runs(problem, space)
    points = space.c_step * problem.taps
    fma = g.accumulators * points
    weight_loads = points * space.k_t / vector_width(space.k_t, WIDEST_COPY_BYTES // problem.element_bytes)
    input_loads = points * (space.n_t * space.h_t * space.w_t) / runs
    compute = fma + input_loads + weight_loads
    stores = fetch.input_steps * (1 if problem.rows_inner else fetch.input_width)
    copies = _copy_instructions(problem, hardware, fetch)
    turned = 0 if problem.rows_inner else stores
    issue_clk = g.warps * (compute + copies + turned) / hardware.schedulers_per_sm
    issue_clk = issue_clk / hardware.contract_issue_efficiency
    fma_clk = g.warps * fma * (WARP / hardware.fma_per_sm_per_clk)
    waves = input_loads * row_wavefronts(problem, space) + weight_loads
    smem_clk = g.warps * (waves + hardware.contract_store_wavefronts * stores) + fetch.weight_words / WARP
    moved = problem.element_bytes * (fetch.input_words * _overfetch(problem, space) + fetch.weight_words)
    l2_clk = moved / hardware.contract_l2_bytes_per_sm_per_clk
    multiply_clk = hardware.contract_clk_per_instruction * compute + hardware.contract_clk_per_tap * points
    copy_clk = hardware.contract_copy_clk * copies
    alone_clk = np.where(
        space.stages > 1,
        copy_clk + np.maximum(multiply_clk, hardware.contract_fetch_clk),
        copy_clk + multiply_clk + hardware.contract_fetch_clk,
    )
    busiest = np.maximum(np.maximum(issue_clk, fma_clk), np.maximum(smem_clk, l2_clk))
    return _Iteration(throughput_clk=busiest, alone_clk=alone_clk)


def _copy_instructions(problem: ContractProblem, hardware: GpuHardware, fetch: Fetch) -> FloatArray:
    """Instructions of one warp that copy both tiles: boxes of several rows cost addresses and checks."""
    box = hardware.contract_box_instructions if problem.h > 1 else 0.0
    per_step = hardware.contract_copy_instructions
    return np.asarray(fetch.input_steps * (per_step + box) + fetch.weight_steps * per_step)


def _overfetch(problem: ContractProblem, space: ContractSpace) -> FloatArray:
    """Bytes of the 32-byte sectors that a fetch of the first operand touches, over the bytes it needs."""
    if not problem.rows_inner:
        run = problem.element_bytes * space.c_step
        return np.asarray(ceil_div(run, SECTOR_BYTES) * SECTOR_BYTES / run)
    columns = staged_rows(space.w_b, problem.axis_w)
    whole = (problem.f_w == 1) & (problem.stride_w == 1) & (columns >= problem.w)
    run = problem.element_bytes * np.where(whole, 10 * columns, columns)
    gap = problem.stride_w if problem.f_w == 1 else 1
    return np.asarray(gap * (ceil_div(run, SECTOR_BYTES) * SECTOR_BYTES + SECTOR_BYTES // 2) / run)
