"""Estimated seconds of contract kernels on a CPU: SIMD FMA pipes, load ports, register pressure, caches,
work-groups.
"""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.hardware.description import CpuHardware
from tilewright.costmodel.kernels.geometry import Geometry, ceil_div, vector_width
from tilewright.costmodel.kernels.parameters import ContractSpace
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.windows import FloatArray


def estimate_contract_cpu(
    problem: ContractProblem, space: ContractSpace, hardware: CpuHardware, g: Geometry
) -> FloatArray:
    """Seconds: launch + the slowest core's work-groups, not faster than DRAM.

    One reduction step of a register tile takes the longest of its FMAs, its loads (k vectors of weights, one
    broadcast per pixel) and the latency of its accumulator chains; accumulators beyond the vector registers
    spill.
    """
    fit = hardware.contract
    k_vectors = space.k_t // vector_width(space.k_t, hardware.simd_lanes)
    pixels = space.n_t * space.h_t * space.w_t
    accumulators = k_vectors * pixels
    fma_clk = accumulators / hardware.fma_per_core_per_clk
    load_clk = (k_vectors + pixels) / hardware.loads_per_core_per_clk
    step_clk = np.maximum(np.maximum(fma_clk, load_clk), hardware.lat_fma_clk)
    spilled = accumulators + np.minimum(k_vectors, pixels) + fit.other_registers
    spilled = (spilled - hardware.vector_registers).clip(0)
    step_clk = step_clk + fit.spill_clk * spilled + hardware.estimate_loop_clk / max(problem.f_w, 1)
    steps = problem.c * problem.taps
    tail = np.where(problem.k % space.k_t, fit.tail_factor, 1.0)
    compute_clk = g.threads * steps * step_clk * tail
    move_clk = _cache_clk(problem, space, hardware, g)
    per_core = ceil_div(g.blocks, hardware.cores)
    group_s = np.maximum(compute_clk, move_clk) / hardware.estimate_clock_hz + hardware.estimate_work_group_s
    dram_s = problem.compulsory_bytes / hardware.estimate_dram_bytes_per_s
    busy_s = per_core * group_s
    return np.asarray(
        hardware.estimate_launch_s
        + np.maximum(busy_s, dram_s)
        + hardware.estimate_exposed_share * np.minimum(busy_s, dram_s)
    )


def _cache_clk(
    problem: ContractProblem, space: ContractSpace, hardware: CpuHardware, g: Geometry
) -> FloatArray:
    """Cycles of one work-group to bring its operands to the first level, from L2 or, if too big for it, from
    L3.

    Work-items of one group share what fits in the first level; otherwise each brings its own.
    """
    weights = problem.element_bytes * space.k_t * (problem.c * problem.taps)
    group_bytes = problem.element_bytes * g.fill_words_average
    item_bytes = problem.element_bytes * g.load_words
    from_l1 = group_bytes <= hardware.l1_bytes
    moved = np.where(from_l1, group_bytes, item_bytes * g.threads)
    slow = weights + group_bytes > hardware.contract.l2_reuse_share * hardware.l2_bytes
    rate = np.where(
        slow, hardware.estimate_l3_bytes_per_core_per_clk, hardware.estimate_l2_bytes_per_core_per_clk
    )
    return np.asarray(moved / rate, dtype=np.float64)
