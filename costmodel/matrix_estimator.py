"""Estimated seconds of tensor-core kernels: rounds x (start + chunks x the slowest port + epilogue)."""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.geometry import WARP, ceil_div, resident_blocks
from tilewright.costmodel.hardware import GpuHardware
from tilewright.costmodel.matrix_bound import matrix_bound, tensor_fma
from tilewright.costmodel.matrix_space import (
    DEPTH_BYTES,
    TILE_M,
    TILE_N,
    MatrixProblem,
    MatrixSpace,
    ahead_of,
    blocks_of,
    chunks_of,
    registers_of,
    shared_bytes,
)
from tilewright.costmodel.windows import FloatArray, IntArray

# All fitted to 204 generated kernels timed on an H100, with the constants of its record.
#: instructions beside the multiplications: per asynchronous copy, per chunk; per vector that threads copy
#: through registers and per element of it
_PER_COPY, _PER_CHUNK, _PER_ELEMENT, _PER_LANE = 7.0, 20.0, 12.0, 3.0
#: cycles of a chunk that nothing hides: the wait for copies, the barrier, warps apart
_CHUNK_CLK = 60.0
#: cycles of one step along k at least: fragments loaded, dependent multiplications
_MMA_CLK = 60.0
#: cycles of one vector of results through the epilogue, for all threads of a warp
_PER_RESULT_CLK = 15.0
#: cycles of the shared-memory port for one vector of sums of each further set of warps: stored and loaded
_PER_PART_CLK = 8.0
#: of the steady rate of multiplications alone, what a loop with loads and copies beside them keeps
_LOOP_SHARE = 0.8
_EXPOSED_SHARE = 0.15


def estimate_matrix(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Estimated seconds of every point; inf where a block cannot be resident."""
    blocks = blocks_of(problem, space)
    fits = resident_blocks(hardware, space.warps, shared_bytes(problem, space), registers_of(problem, space))
    per_sm = ceil_div(blocks, hardware.sm_count)
    resident = np.minimum(fits, per_sm).clip(1)
    rounds, rest = per_sm // resident, per_sm % resident
    busy_clk = rounds * _round_clk(problem, space, hardware, resident)
    busy_clk = busy_clk + np.where(rest > 0, _round_clk(problem, space, hardware, rest.clip(1)), 0.0)
    busy_s = busy_clk / hardware.clock_hz
    dram_s = problem.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    longest, shorter = np.maximum(busy_s, dram_s), np.minimum(busy_s, dram_s)
    seconds = hardware.contract_launch_s + longest + _EXPOSED_SHARE * shorter
    least = matrix_bound(problem, space, hardware).seconds
    return np.asarray(np.where(fits > 0, np.maximum(seconds, least), np.inf))


def _round_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, resident: IntArray
) -> FloatArray:
    """Cycles of `resident` blocks side by side on one SM from start to end."""
    chunks = chunks_of(problem, space)
    start = hardware.estimate_matrix_block_clk
    chunk = np.maximum(
        resident * _shared_clk(problem, space, hardware, resident), _alone_clk(problem, space, hardware)
    )
    vectors = space.m * space.n / (4.0 * WARP)
    epilogue = resident * vectors * (_PER_RESULT_CLK + _PER_PART_CLK * (space.warps_k - 1))
    return np.asarray(start + chunks * chunk + epilogue)


def _copied_by_threads(problem: MatrixProblem, space: MatrixSpace) -> FloatArray:
    """Instructions of a warp for what it copies or computes of a chunk through registers."""
    total = np.zeros(len(space))
    for extent, copy, lanes in (
        (space.m, problem.first_copy, problem.first_lanes),
        (space.n, problem.second_copy, problem.second_lanes),
    ):
        if copy == 0:
            total += extent * space.k * (_PER_ELEMENT / lanes + _PER_LANE) / (WARP * space.warps)
    return total


def _shared_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, resident: IntArray
) -> FloatArray:
    """Cycles a chunk takes of what blocks of an SM share: tensor cores, shared memory, L2, issue slots."""
    size = problem.element_bytes
    busy = np.minimum(1.0, resident * space.warps / hardware.schedulers_per_sm)
    share = hardware.mma_sync_share * hardware.estimate_mma_efficiency * _LOOP_SHARE
    rate = tensor_fma(problem, hardware) * share * busy
    tensor = space.m * space.n * space.k / rate
    rows = space.m * (space.warps_n + 1) + space.n * (space.warps_m + 1)
    port = rows * space.k * (size / hardware.smem_bytes_per_sm_per_clk)
    fetched = (space.m * problem.fetched + space.n) * space.k * size
    depth = DEPTH_BYTES // size
    multiplies = (space.m // TILE_M) * (space.n // TILE_N) * (space.k // depth)
    loads = rows * space.k * size / 512.0
    copies = space.warps * _copied_by_threads(problem, space)
    for extent, copy in ((space.m, problem.first_copy), (space.n, problem.second_copy)):
        if copy:
            copies = copies + extent * space.k * (_PER_COPY / (copy * WARP))
    issued = multiplies + loads + copies + _PER_CHUNK * space.warps
    issue = issued / (hardware.schedulers_per_sm * busy)
    return np.maximum.reduce(
        [tensor, port, fetched / hardware.estimate_matrix_l2_bytes_per_sm_per_clk, issue]
    )


def _alone_clk(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Cycles a chunk takes of a block that has the SM for itself: chains of multiplications, of copies."""
    depth = DEPTH_BYTES // problem.element_bytes
    tiles = (space.m // space.warps_m // TILE_M) * (space.n // space.warps_n // TILE_N)
    rate = tensor_fma(problem, hardware) * hardware.mma_sync_share / hardware.schedulers_per_sm
    one = TILE_M * TILE_N * depth / rate
    chain = (space.k // (depth * space.warps_k)) * np.maximum(tiles * one, _MMA_CLK)
    flight = hardware.estimate_matrix_fetch_clk / ahead_of(problem, space)
    instructions = _copied_by_threads(problem, space)
    through = np.where(instructions > 0, hardware.estimate_matrix_fetch_clk, 0.0)
    alone = np.maximum(np.maximum(chain, flight), through)
    return np.asarray(alone + instructions * hardware.contract_clk_per_instruction)
