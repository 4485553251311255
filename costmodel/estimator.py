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
    Geometry,
    ceil_div,
    contract_geometry,
    resident_blocks,
    staged_shared_bytes,
)
from tilewright.costmodel.hardware import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.parameters import ContractSpace
from tilewright.costmodel.problem import ContractProblem
from tilewright.costmodel.windows import FloatArray, IntArray, distinct_rows

_ADDRESS_REGISTERS = 30
_INSTRUCTIONS_PER_STAGED_WORD = 6.0
_INSTRUCTIONS_PER_OUTPUT = 4.0
_LOOP_INSTRUCTIONS = 8.0
_EXPOSED_LOAD_SHARE = 0.5
_OVERLAP_LOSS = 0.15
_L2_EFFICIENCY = 0.6


@dataclass(frozen=True, eq=False)
class _Iteration:
    """Cycles of one iteration of one block: what it takes from the SM, and what it takes when alone."""

    throughput_clk: FloatArray
    fetch_clk: FloatArray
    serial_clk: FloatArray


def estimate_contract(problem: ContractProblem, space: ContractSpace, hardware: Hardware) -> FloatArray:
    """Estimated seconds of every point; inf where a block cannot be resident."""
    g = contract_geometry(problem, space)
    if isinstance(hardware, CpuHardware):
        return estimate_contract_cpu(problem, space, hardware, g)
    return _estimate_gpu(problem, space, hardware, g)


def _estimate_gpu(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry
) -> FloatArray:
    occupancy = resident_blocks(
        hardware, g.warps, staged_shared_bytes(problem, space), estimated_registers(problem, space)
    )
    per_sm = ceil_div(g.blocks, hardware.sm_count)
    resident = np.minimum(occupancy, per_sm).clip(1)
    step = _iteration(problem, space, hardware, g)
    stores = (g.warps * g.accumulators).astype(np.float64)
    epilogue_clk = stores * (_INSTRUCTIONS_PER_OUTPUT / hardware.schedulers_per_sm)
    full_rounds, rest = per_sm // resident, per_sm % resident
    busy_clk = full_rounds * _round(resident, step, epilogue_clk, space, hardware, g)
    busy_clk = busy_clk + np.where(rest > 0, _round(rest, step, epilogue_clk, space, hardware, g), 0.0)
    fetched = problem.element_bytes * g.blocks * g.fill_words_average
    l2_s = (fetched + problem.output_bytes + problem.extra_bytes) / (hardware.l2_bytes_per_s * _L2_EFFICIENCY)
    dram_s = problem.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    busy_s = busy_clk / hardware.clock_hz
    longest = np.maximum(np.maximum(busy_s, l2_s), dram_s)
    seconds = hardware.launch_floor_s + longest + _OVERLAP_LOSS * (busy_s + l2_s + dram_s - longest)
    return np.where(occupancy > 0, seconds, np.inf)


def estimated_registers(problem: ContractProblem, space: ContractSpace) -> IntArray:
    """Registers per thread: accumulators, one row of operands, addresses."""
    operands = space.k_t + distinct_rows(space.w_t, problem.axis_w)
    registers = np.minimum(space.accumulators + operands + _ADDRESS_REGISTERS, 255)
    return np.asarray(registers, dtype=np.int64)


def _round(
    resident: IntArray,
    step: _Iteration,
    epilogue_clk: FloatArray,
    space: ContractSpace,
    hardware: GpuHardware,
    g: Geometry,
) -> FloatArray:
    """Cycles of `resident` blocks that run side by side on one SM from start to end."""
    crowd_clk = resident * step.throughput_clk
    fetch_and_compute = np.where(
        space.stages > 1,
        np.maximum(step.fetch_clk, step.serial_clk) + hardware.estimate_barrier_clk,
        step.fetch_clk + step.serial_clk + 2 * hardware.estimate_barrier_clk,
    )
    longer, shorter = np.maximum(crowd_clk, fetch_and_compute), np.minimum(crowd_clk, fetch_and_compute)
    start_clk = hardware.estimate_block_clk + hardware.estimate_lat_dram_clk
    return start_clk + g.iterations * (longer + _OVERLAP_LOSS * shorter) + resident * epilogue_clk


def _iteration(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry
) -> _Iteration:
    threads_w = space.w_b // space.w_t
    pixels_of_warp = np.minimum(threads_w * (space.h_b // space.h_t), WARP)
    fma = g.accumulators * space.c_step * problem.taps
    input_words = (
        space.n_t * distinct_rows(space.h_t, problem.axis_h) * distinct_rows(space.w_t, problem.axis_w)
    )
    input_vec = np.minimum(space.w_t & -space.w_t, 4) if problem.f_w == problem.stride_w == 1 else 1
    input_loads = space.c_step * input_words / input_vec
    weight_loads = space.c_step * (space.k_t * problem.taps) / space.vec
    stage_words = staged_shared_bytes(problem, space) / (problem.element_bytes * space.stages)
    stage_per_thread = stage_words / g.threads
    compute = fma + input_loads + weight_loads + 2.0 * space.c_step + _LOOP_INSTRUCTIONS
    instructions = compute + _INSTRUCTIONS_PER_STAGED_WORD * stage_per_thread
    issue_clk = g.warps * instructions / (hardware.schedulers_per_sm * hardware.estimate_issue_efficiency)
    fma_clk = g.warps * fma * (WARP / hardware.fma_per_sm_per_clk)
    lane_stride = np.gcd(space.w_t * problem.stride_w // input_vec, WARP)
    conflict = np.maximum(1.0, np.ceil(threads_w.clip(max=WARP) * lane_stride / WARP))
    input_waves = np.maximum(conflict, np.ceil(pixels_of_warp * input_vec / WARP))
    smem_clk = g.warps * (input_loads * input_waves + weight_loads) + stage_words / WARP
    l2_clk = (
        problem.element_bytes
        * g.fill_words_average
        / g.iterations
        / hardware.estimate_l2_bytes_per_sm_per_clk
    )
    throughput_clk = np.maximum(np.maximum(issue_clk, fma_clk), np.maximum(smem_clk, l2_clk))
    chain_clk = space.c_step * problem.taps * hardware.lat_fma_clk
    issue_alone = compute * (WARP * hardware.schedulers_per_sm / hardware.fma_per_sm_per_clk)
    serial_clk = np.maximum(chain_clk, issue_alone)
    serial_clk = serial_clk + _EXPOSED_LOAD_SHARE * space.c_step * hardware.lat_smem_clk
    fetch_clk = hardware.estimate_lat_l2_clk + _INSTRUCTIONS_PER_STAGED_WORD * stage_per_thread
    return _Iteration(throughput_clk, fetch_clk, serial_clk)
