"""The sound bound of tensor-core kernels (mma.sync or wgmma), as fractions of the tensor cores' peak.

ub = COEF min(GM, L2, LAT, TQ WB min(RATE, SMB)); the seconds are max(flops / (peak ub), launch floor). GM
counts the least traffic of a matrix product with the L2 as fast memory (red-blue pebble game) or all operands
once, whichever is more.
"""

from __future__ import annotations

from math import sqrt

import numpy as np

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import BoundArrays
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP, SPECIFIED, Assumptions, wb
from tilewright.costmodel.kernels.geometry import ceil_div, resident_blocks
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.ir.thread.split_ops import PRODUCTS
from tilewright.passes.kernels.matrix.space import (
    MatrixProblem,
    MatrixSpace,
    ahead_of,
    blocks_of,
    chunks_in_order,
    legal,
    registers_of,
    shared_bytes,
    shared_rows,
    takes_groups,
    takes_roles,
)

#: only copies of this width go around the first-level cache
UNCACHED_BYTES = 16
#: registers that a kernel cannot do without beside its sums, of those the space counts
_SPARE_REGISTERS = 64


def matrix_bound(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, assumptions: Assumptions = SPECIFIED
) -> BoundArrays:
    """The sound bound of every point of `space`, in fractions of the tensor cores' dense peak."""
    blocks, chunks = blocks_of(problem, space), chunks_in_order(problem, space)
    executed = 2.0 * blocks * (space.m * space.n) * (chunks * space.k)
    peak = tensor_flops_per_s(problem, hardware)
    columns = {
        "GM": np.full(len(space), _gm(problem, hardware, peak, assumptions)),
        "L2": _l2(problem, space, hardware, peak, assumptions),
        "LAT": _lat(problem, space, hardware, blocks, chunks),
        "TQ": np.minimum(1.0, problem.flops / executed),
        "WB": wb(blocks, hardware.sm_count),
        "RATE": _rate(problem, space, hardware, blocks),
        "SMB": _smb(problem, space, hardware),
        "COEF": legal(problem, space, hardware).astype(np.float64),
    }
    local = columns["TQ"] * columns["WB"] * np.minimum(columns["RATE"], columns["SMB"])
    whole = np.minimum(np.minimum(columns["GM"], columns["L2"]), columns["LAT"])
    ub = columns["COEF"] * np.minimum(whole, local)
    with np.errstate(divide="ignore"):
        seconds = problem.flops / (peak * ub)
    floor = hardware.launch_floor_s
    warm_s = least_matrix_s(problem, hardware, MEASURED_LOOP)
    return BoundArrays(ub, np.maximum(seconds, floor), columns, floor, warm_s)


def tensor_fma(problem: MatrixProblem, hardware: GpuHardware) -> float:
    """Multiply-adds per SM and clock at the dense peak; of split factors six products count as one.

    8-bit floats that warpgroups do not take are multiplied as 16-bit ones.
    """
    if problem.split:
        return hardware.tensor_fma_16bit_per_sm_per_clk / problem.products
    if problem.promotes:
        by_groups = takes_groups(problem, hardware)
        peak = hardware.tensor_fma_float8_per_sm_per_clk
        return peak if by_groups else min(peak, hardware.tensor_fma_16bit_per_sm_per_clk)
    rates = {
        1: hardware.tensor_fma_8bit_per_sm_per_clk,
        2: hardware.tensor_fma_16bit_per_sm_per_clk,
        4: hardware.tensor_fma_tf32_per_sm_per_clk,
    }
    return rates[problem.element_bytes]


def tensor_flops_per_s(problem: MatrixProblem, hardware: GpuHardware) -> float:
    """Dense peak of the tensor cores."""
    return 2.0 * tensor_fma(problem, hardware) * hardware.sm_count * hardware.clock_hz


def least_matrix_s(
    problem: MatrixProblem, hardware: GpuHardware, assumptions: Assumptions = SPECIFIED
) -> float:
    """Seconds a product takes at least with any parameters: arithmetic, traffic, launch."""
    peak = tensor_flops_per_s(problem, hardware)
    by_groups = takes_groups(problem, hardware) or takes_roles(problem, hardware)
    rate = hardware.wgmma_share if by_groups else 0.0
    share = min(_gm(problem, hardware, peak, assumptions), max(rate, hardware.mma_sync_share))
    return max(problem.flops / (peak * share), hardware.launch_floor_s)


def _gm(problem: MatrixProblem, hardware: GpuHardware, peak: float, assumptions: Assumptions) -> float:
    cache = hardware.l2_bytes / problem.element_bytes
    pebbles = problem.flops / sqrt(cache) - 2.0 * cache * problem.batch if problem.taps == 1 else 0.0
    moved = max(problem.compulsory_bytes, problem.element_bytes * pebbles)
    if not assumptions.cold_l2:
        moved = max(assumptions.streamed_bytes, moved - hardware.l2_bytes)
    return min(1.0, problem.flops / moved * hardware.dram_bytes_per_s / peak) if moved else 1.0


def _l2(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, peak: float, assumptions: Assumptions
) -> FloatArray:
    size = problem.element_bytes
    depth = problem.batch * problem.taps * problem.channel * size
    first = depth * problem.m * problem.fetched * ceil_div(problem.n, space.n)
    second = depth * problem.n * ceil_div(problem.m, space.m)
    around = [
        copy * size >= UNCACHED_BYTES and not assumptions.l1_reuse
        for copy in (problem.first_copy, problem.second_copy)
    ]
    moved = np.full(len(space), float(problem.result_bytes))
    moved += first if around[0] else float(problem.first_bytes)
    moved += second if around[1] else float(problem.second_bytes)
    # Lines that several multiprocessors ask for together come faster by the copy engine: 12.9 TB/s were
    # measured on an H200, and nothing is known of the most.
    once = float(problem.result_bytes + problem.first_bytes + problem.second_bytes)
    moved = np.where(space.by_roles, once, moved)
    return np.minimum(1.0, problem.flops / moved * hardware.l2_bytes_per_s / peak)


def _resident(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, blocks: IntArray
) -> IntArray:
    """Blocks that run on one SM at a time at best."""
    registers = (registers_of(problem, space) - _SPARE_REGISTERS).clip(24)
    found = resident_blocks(hardware, space.warps, shared_bytes(problem, space), registers)
    return np.minimum(found.clip(1), ceil_div(blocks, hardware.sm_count))


def _lat(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, blocks: IntArray, chunks: IntArray
) -> FloatArray:
    """The chain of one block: a copy starts when an earlier one was used; sums are added in turn."""
    # A ring by roles never drains: the copies of one tile start while the one before is multiplied.
    waits = np.where(space.by_roles, chunks / space.stages, ceil_div(chunks, ahead_of(problem, space) + 1))
    copies = hardware.lat_l2_clk * waits
    steps = chunks * (space.k // (problem.depth * space.warps_k))
    # Nothing is known of the latency of warpgroups' multiplications, which follow each other by groups. Split
    # factors have two sums of their own in each step, which are added in turn.
    chain = steps * hardware.lat_mma_clk
    if problem.split:
        chain = max(map(len, PRODUCTS)) * hardware.lat_mma_clk + len(PRODUCTS) * steps * hardware.lat_fma_clk
    first = np.where(space.by_roles, 0.0, hardware.lat_l2_clk)
    sums = first + np.where(space.groups > 0, 0.0, chain)
    registers = (registers_of(problem, space) - _SPARE_REGISTERS).clip(24)
    fits = resident_blocks(hardware, space.warps, shared_bytes(problem, space), registers).clip(1)
    rounds = ceil_div(ceil_div(blocks, hardware.sm_count), fits)
    peak_clk = problem.flops / (2.0 * tensor_fma(problem, hardware) * hardware.sm_count)
    return np.asarray(np.minimum(1.0, peak_clk / (rounds * np.maximum(copies, sums))))


def _rate(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, blocks: IntArray) -> FloatArray:
    """Return what the instruction reaches of the peak, on the tensor cores that have a warp at all."""
    warps = _resident(problem, space, hardware, blocks) * space.multiplying_warps
    share = np.where(space.groups > 0, hardware.wgmma_share, hardware.mma_sync_share)
    return np.asarray(share * np.minimum(1.0, warps / hardware.schedulers_per_sm))


def _smb(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Tensor cycles of a chunk against the shared-memory port, which fragments and copies share."""
    multiply = space.m * space.n / tensor_fma(problem, hardware)
    port = shared_rows(problem, space) * (problem.element_bytes / hardware.smem_bytes_per_sm_per_clk)
    return np.asarray(np.minimum(1.0, multiply / port))
