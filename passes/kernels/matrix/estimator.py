"""Estimated seconds of tensor-core kernels: rounds x (start + chunks x the slowest port + epilogue)."""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.geometry import ceil_div, resident_blocks
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.ir.hardware_facts import LINE_BYTES, WARP
from tilewright.passes.kernels.matrix.bound import tensor_fma
from tilewright.passes.kernels.matrix.space import (
    DEPTH_BYTES,
    TILE_M,
    TILE_N,
    MatrixProblem,
    MatrixSpace,
    ahead_of,
    blocks_of,
    chunks_of,
    registers_of,
    rounds_first,
    shared_bytes,
    shared_rows,
    two_at_a_time,
)

# All fitted to 1,265 generated kernels timed on an H100 (batch 1 to 64), with the constants of its record.
#: instructions beside the multiplications: per asynchronous copy, per chunk; per vector that threads copy
#: through registers and per element of it, more by a share of those that compute it
_PER_COPY, _PER_CHUNK, _PER_ELEMENT, _PER_LANE, _PER_HEAD = 28.0, 85.0, 9.0, 18.0, 0.25
#: cycles of one step along k at least: fragments loaded, dependent multiplications
_MMA_CLK = 60.0
#: cycles of a multiprocessor's path to the L2 for each line of which an asynchronous copy takes some
_PER_LINE_CLK = 1.6
#: issue slots of one vector of four results of a warp through the epilogue: of its own, by how much each
#: further set of warps adds to them, and per instruction of what is computed from a result
_PER_RESULT, _PER_SET, _PER_TAIL = 14.5, 0.5, 1.8
#: warps per scheduler that hide one another's latency in the epilogue
_TAIL_WARPS = 4.0
#: cycles until further operands of results are there, and vectors of a thread that wait together
_TAIL_READ_CLK, _TAIL_VECTORS = 600.0, 8.0
#: of the steady rate of multiplications alone, what a loop with loads and copies beside them keeps
_LOOP_SHARE = 0.77
#: of the peak, what warpgroups keep in a loop; cycles between the multiplications of two chunks, where the
#: second is issued before the first is done, and where it is not; fitted to 2,412 kernels of warpgroups
_GROUP_SHARE, _GROUP_CLK, _GROUP_ALONE_CLK = 0.7, 0.0, 116.0
#: the same where the first factor passes through registers
_WIDE_CLK = 200.0
#: how much longer warpgroups wait for late copies where a ring has fewer stages than usual
_SHORT_RING, _USUAL_STAGES = 0.2, 3
#: share of the shorter of work and DRAM traffic that the longer does not hide, beside others and alone
_EXPOSED_SHARE, _EXPOSED_ALONE = 0.10, 0.67


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
    seconds = hardware.contract_launch_s + longest + (_EXPOSED_SHARE + _EXPOSED_ALONE / resident) * shorter
    return np.asarray(np.where(fits > 0, seconds, np.inf))


def _round_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, resident: IntArray
) -> FloatArray:
    """Cycles of `resident` blocks side by side on one SM from start to end."""
    chunks = chunks_of(problem, space)
    start = hardware.estimate_matrix_block_clk
    chunk = np.maximum(
        resident * _shared_clk(problem, space, hardware, resident), _alone_clk(problem, space, hardware)
    )
    late = _SHORT_RING * (1.0 / space.stages - 1.0 / _USUAL_STAGES)
    chunk = chunk * np.where(space.groups > 0, 1.0 + late, 1.0)
    return np.asarray(start + chunks * chunk + _epilogue_clk(problem, space, hardware, resident))


def _epilogue_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, resident: IntArray
) -> FloatArray:
    """Cycles from the last multiplication to the last store of `resident` blocks."""
    vectors = space.m * space.n / (4.0 * WARP)
    each = _PER_RESULT * (1.0 + _PER_SET * (space.warps_k - 1)) + _PER_TAIL * problem.tail_work
    hidden = np.minimum(1.0, resident * space.warps / (hardware.schedulers_per_sm * _TAIL_WARPS))
    clk = resident * vectors * each / (hardware.schedulers_per_sm * hidden)
    if problem.tail_bytes:
        clk = clk + vectors / space.warps / _TAIL_VECTORS * _TAIL_READ_CLK
    return np.asarray(clk)


def _copied_by_threads(problem: MatrixProblem, space: MatrixSpace) -> FloatArray:
    """Instructions of a warp for what it copies or computes of a chunk through registers."""
    total = np.zeros(len(space))
    for extent, copy, lanes in (
        (space.m, problem.first_copy, problem.first_lanes),
        (space.n, problem.second_copy, problem.second_lanes),
    ):
        if copy == 0:
            each = _PER_ELEMENT / lanes + _PER_LANE * (1.0 + _PER_HEAD * problem.head_work)
            total += extent * space.k * each / (WARP * space.warps)
    return total


def _shared_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, resident: IntArray
) -> FloatArray:
    """Cycles a chunk takes of what blocks of an SM share: tensor cores, shared memory, L2, issue slots."""
    size = problem.element_bytes
    busy = np.minimum(1.0, resident * space.warps / hardware.schedulers_per_sm)
    alone = hardware.mma_sync_share * hardware.estimate_mma_efficiency * _LOOP_SHARE
    share = np.where(space.groups > 0, hardware.wgmma_share * _GROUP_SHARE, alone)
    rate = tensor_fma(problem, hardware) * share * busy
    tensor = space.m * space.n * space.k / rate
    rows = shared_rows(space)
    port = rows * space.k * (size / hardware.smem_bytes_per_sm_per_clk)
    fetched = (space.m * problem.fetched + space.n) * space.k * size
    depth = DEPTH_BYTES // size
    multiplies = (space.m // TILE_M) * (space.n // TILE_N) * (space.k // depth)
    loads = np.where(space.groups > 0, 0.0, rows * space.k * size / 512.0)
    multiplies = np.where(space.groups > 0, 0, multiplies)
    copies = space.warps * _copied_by_threads(problem, space)
    for extent, copy in ((space.m, problem.first_copy), (space.n, problem.second_copy)):
        if copy:
            copies = copies + extent * space.k * (_PER_COPY / (copy * WARP))
    issued = multiplies + loads + copies + _PER_CHUNK * space.warps
    issue = issued / (hardware.schedulers_per_sm * busy)
    fetch = fetched / hardware.estimate_matrix_l2_bytes_per_sm_per_clk
    return np.maximum.reduce([tensor, port, fetch + _PER_LINE_CLK * _lines(problem, space), issue])


def _lines(problem: MatrixProblem, space: MatrixSpace) -> FloatArray:
    """Lines of memory that the asynchronous copies of a chunk touch: rows share them where they are whole."""
    row = space.k * problem.element_bytes / LINE_BYTES
    lines = np.zeros(len(space))
    for extent, copy, whole in (
        (space.m, problem.first_copy, (space.k == problem.channel) & (problem.taps == 1)),
        (space.n, problem.second_copy, space.k == problem.channel * problem.taps),
    ):
        if copy:
            lines = lines + extent * np.where(whole, row, np.maximum(1.0, row))
    return np.asarray(lines)


def _alone_clk(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Cycles a chunk takes of a block that has the SM for itself: chains of multiplications, of copies."""
    depth = DEPTH_BYTES // problem.element_bytes
    tiles = (space.m // space.warps_m // TILE_M) * (space.n // space.warps_n // TILE_N)
    rate = tensor_fma(problem, hardware) * hardware.mma_sync_share / hardware.schedulers_per_sm
    one = TILE_M * TILE_N * depth / rate
    chain = (space.k // (depth * space.warps_k)) * np.maximum(tiles * one, _MMA_CLK)
    # The four warps of a group have all tensor cores to themselves.
    together = tensor_fma(problem, hardware) * max(hardware.wgmma_share, 1e-9) * _GROUP_SHARE
    alone_clk = _WIDE_CLK if rounds_first(problem) else _GROUP_ALONE_CLK
    waits = np.where(two_at_a_time(problem, space), _GROUP_CLK, alone_clk)
    chain = np.where(space.groups > 0, space.m * space.n * space.k / together + waits, chain)
    flight = hardware.estimate_matrix_fetch_clk / ahead_of(problem, space)
    instructions = _copied_by_threads(problem, space)
    through = np.where(instructions > 0, hardware.estimate_matrix_fetch_clk, 0.0)
    alone = np.maximum(np.maximum(chain, flight), through)
    return np.asarray(alone + instructions * hardware.contract_clk_per_instruction)
