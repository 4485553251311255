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
    Fetch,
    Geometry,
    ceil_div,
    contract_fetch,
    contract_geometry,
    estimated_registers,
    resident_blocks,
)
from tilewright.costmodel.hardware import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.parameters import ContractSpace
from tilewright.costmodel.problem import ContractProblem
from tilewright.costmodel.windows import FloatArray, IntArray

_INSTRUCTIONS_PER_OUTPUT = 4.0
_INSTRUCTIONS_PER_CHANNEL = 2.0
_LOOP_INSTRUCTIONS = 8.0
_L2_EFFICIENCY = 0.6
_EXPOSED_SHARE = 0.15


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
    occupancy = resident_blocks(hardware, g.warps, shared_bytes, estimated_registers(space, fetch))
    per_sm = ceil_div(g.blocks, hardware.sm_count)
    resident = np.minimum(occupancy, per_sm).clip(1)
    step = _iteration(problem, space, hardware, g, fetch)
    full_rounds, rest = per_sm // resident, per_sm % resident
    busy_clk = full_rounds * _round_clk(resident, step, hardware, g)
    busy_clk = busy_clk + np.where(rest > 0, _round_clk(rest, step, hardware, g), 0.0)
    fetched = problem.element_bytes * g.blocks * g.fill_words_average
    l2_s = (fetched + problem.output_bytes + problem.extra_bytes) / (hardware.l2_bytes_per_s * _L2_EFFICIENCY)
    dram_s = problem.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    busy_s = busy_clk / hardware.clock_hz
    longest = np.maximum(np.maximum(busy_s, l2_s), dram_s)
    hidden = busy_s + l2_s + dram_s - longest
    seconds = hardware.estimate_launch_s + longest + _EXPOSED_SHARE * hidden
    return np.where(occupancy > 0, seconds, np.inf)


def _round_clk(resident: IntArray, step: _Iteration, hardware: GpuHardware, g: Geometry) -> FloatArray:
    """Cycles of `resident` blocks that run side by side on one SM from start to end."""
    crowd_clk = resident * step.throughput_clk
    longer, shorter = np.maximum(crowd_clk, step.alone_clk), np.minimum(crowd_clk, step.alone_clk)
    stores = resident * g.warps * g.accumulators
    epilogue_clk = stores * (_INSTRUCTIONS_PER_OUTPUT / hardware.schedulers_per_sm)
    loop_clk = g.iterations * (longer + hardware.estimate_overlap_loss * shorter)
    return np.asarray(hardware.estimate_block_clk + loop_clk + epilogue_clk)


def _iteration(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry, fetch: Fetch
) -> _Iteration:
    """What the issue slots, FMA lanes, shared-memory and L2 ports take; and what one warp takes alone."""
    threads_w = space.w_b // space.w_t
    fma = g.accumulators * space.c_step * problem.taps
    input_loads = (space.c_step * problem.taps) * (space.n_t * space.h_t * space.w_t)
    weight_loads = space.c_step * (space.k_t * problem.taps) / space.vec
    compute = fma + input_loads + weight_loads + _INSTRUCTIONS_PER_CHANNEL * space.c_step + _LOOP_INSTRUCTIONS
    instructions = compute + hardware.estimate_copy_instructions * fetch.steps
    issue_clk = g.warps * instructions / (hardware.schedulers_per_sm * hardware.estimate_issue_efficiency)
    fma_clk = g.warps * fma * (WARP / hardware.fma_per_sm_per_clk)
    bank_stride = np.gcd(problem.stride_w, WARP)
    input_waves = np.maximum(1.0, np.ceil(threads_w.clip(max=WARP) * bank_stride / WARP))
    smem_clk = g.warps * (input_loads * input_waves + weight_loads) + fetch.words / WARP
    l2_bytes = problem.element_bytes * g.fill_words_average / g.iterations
    l2_clk = l2_bytes / hardware.estimate_l2_bytes_per_sm_per_clk
    multiply_clk = hardware.estimate_clk_per_instruction * compute
    multiply_clk = multiply_clk + hardware.estimate_clk_per_tap * (space.c_step * problem.taps)
    copy_clk = hardware.estimate_copy_clk * fetch.steps
    alone_clk = np.where(
        space.stages > 1,
        np.maximum(copy_clk + multiply_clk, hardware.estimate_fetch_clk + copy_clk),
        copy_clk + hardware.estimate_fetch_clk + multiply_clk,
    )
    return _Iteration(
        throughput_clk=np.maximum(np.maximum(issue_clk, fma_clk), np.maximum(smem_clk, l2_clk)),
        alone_clk=alone_clk + 2 * hardware.estimate_barrier_clk,
    )
