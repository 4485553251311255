"""The terms of the sound bound for contract kernels on the lanes of a GPU and on a CPU (`cpu_`), one function
each, as fractions of the peak.

Symbols follow the corrected DeepCuts model: N_TB blocks, N_SM multiprocessors, X_b block and X_t thread
tiles. Every function returns one float64 per point of the space; none depends on another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.geometry import (
    Geometry,
    ceil_div,
    least_shared_bytes,
    resident_blocks,
    vector_width,
)
from tilewright.costmodel.kernels.parameters import ContractSpace
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.ir.hardware_facts import VECTOR_BYTES, WARP

REGISTERS_BESIDE_ACCUMULATORS = 3


@dataclass(frozen=True)
class Assumptions:
    """Assumptions on which a bound rests.

    `cold_l2`: nothing is in L2 at launch, so all compulsory bytes cross DRAM; else up to the size of L2 may
    not, but `streamed_bytes` of them surely do: others of their kind take their place between two runs.
    `l1_reuse`: blocks of one multiprocessor may find each other's data in L1, so only compulsory bytes
    surely cross L2. `double_buffered`: two stages keep two copies of the tiles in shared memory; else
    registers hold the next step.
    """

    cold_l2: bool = True
    l1_reuse: bool = False
    double_buffered: bool = True
    streamed_bytes: float = 0.0


SPECIFIED = Assumptions()
"""The assumptions the published correction of the model makes."""

GENERATED = Assumptions(double_buffered=False)
"""Those of the generated kernels, which prefetch into registers."""

MEASURED_LOOP = Assumptions(cold_l2=False, l1_reuse=True, double_buffered=False)
"""The weakest ones: they hold when a kernel is timed in a loop with warm caches."""


def coef(
    problem: ContractProblem,
    space: ContractSpace,
    hardware: GpuHardware,
    g: Geometry,
    assumptions: Assumptions,
) -> FloatArray:
    """COEF: 1 where one block is legal (threads, shared memory, registers per thread and per SM), else 0."""
    registers = g.accumulators + REGISTERS_BESIDE_ACCUMULATORS
    shared = least_shared_bytes(problem, space, double_buffered=assumptions.double_buffered)
    legal = g.threads <= hardware.max_threads_per_block
    legal &= shared <= hardware.smem_per_block_max_bytes
    legal &= registers <= hardware.max_registers_per_thread
    legal &= g.warps * WARP * registers <= hardware.registers_per_sm
    return legal.astype(np.float64)


def gm(problem: ContractProblem, hardware: Hardware, cache_bytes: int, assumptions: Assumptions) -> float:
    """GM: compulsory DRAM traffic against the DRAM bandwidth; the same for all points."""
    moved = problem.compulsory_bytes
    if not assumptions.cold_l2:
        moved = max(moved - cache_bytes, assumptions.streamed_bytes)
    if moved == 0.0:
        return 1.0
    return min(1.0, problem.flops / moved * hardware.dram_bytes_per_s / hardware.peak_flops_per_s)


def l2(problem: ContractProblem, hardware: GpuHardware, g: Geometry, assumptions: Assumptions) -> FloatArray:
    """L2: what all blocks fetch (clipped to the image), the output and extra operands against the L2
    bandwidth.
    """
    moved = (
        problem.element_bytes * g.blocks * g.fill_words_average + problem.output_bytes + problem.extra_bytes
    )
    if assumptions.l1_reuse:
        moved = np.full(len(g.blocks), problem.compulsory_bytes)
    return np.minimum(1.0, problem.flops / moved * hardware.l2_bytes_per_s / hardware.peak_flops_per_s)


def smb(problem: ContractProblem, hardware: GpuHardware, g: Geometry) -> FloatArray:
    """SMB: FMA cycles of a warp against its share of the shared-memory port, which also takes the fill."""
    fma_clk = g.fma * (WARP / hardware.fma_per_sm_per_clk)
    load_clk = g.load_words * (problem.element_bytes / VECTOR_BYTES)
    fill_clk = g.fill_words_least * (problem.element_bytes / hardware.smem_bytes_per_sm_per_clk) / g.warps
    return np.minimum(1.0, fma_clk / (load_clk + fill_clk))


def iss(problem: ContractProblem, hardware: GpuHardware, g: Geometry) -> FloatArray:
    """ISS: cycles of the FMA lanes per warp against the issue slots of FMAs and 128-bit shared loads."""
    fma_clk = g.fma * (WARP / hardware.fma_per_sm_per_clk)
    loads = g.load_words * (problem.element_bytes / VECTOR_BYTES)
    return np.minimum(1.0, fma_clk / ((g.fma + loads) / hardware.schedulers_per_sm))


def lat(
    problem: ContractProblem,
    space: ContractSpace,
    hardware: GpuHardware,
    g: Geometry,
    assumptions: Assumptions,
) -> FloatArray:
    """LAT: cycles at peak against the serial chain of the blocks one SM runs one after another.

    A block's chain is n_iter (fetch + shared load + 4 C_input F_H F_W) with one stage; with two the fetch
    counts once. Blocks that fit on the SM together (`occupancy`) count as running at the same time.
    """
    reduction_clk = hardware.lat_smem_clk + hardware.lat_fma_clk * (space.c_step * problem.taps)
    chain_clk = np.where(
        space.stages > 1,
        hardware.lat_fetch_clk + g.iterations * reduction_clk,
        g.iterations * (hardware.lat_fetch_clk + reduction_clk),
    )
    resident = occupancy(problem, space, hardware, g, assumptions)
    rounds = ceil_div(ceil_div(g.blocks, hardware.sm_count), resident)
    peak_clk = problem.flops / (2.0 * hardware.fma_per_sm_per_clk * hardware.sm_count)
    return np.minimum(1.0, peak_clk / (rounds * chain_clk))


def occupancy(
    problem: ContractProblem,
    space: ContractSpace,
    hardware: GpuHardware,
    g: Geometry,
    assumptions: Assumptions,
) -> IntArray:
    """Blocks one SM can hold at best, at least 1 (COEF rejects points where not even one fits)."""
    registers = g.accumulators + REGISTERS_BESIDE_ACCUMULATORS
    shared = least_shared_bytes(problem, space, double_buffered=assumptions.double_buffered)
    return resident_blocks(hardware, g.warps, shared, registers).clip(1)


def tq(problem: ContractProblem, space: ContractSpace, g: Geometry) -> FloatArray:
    """TQ (tile quantisation): useful operations over those of all blocks with their padding."""
    block_outputs = (space.n_b * space.k_b) * (space.h_b * space.w_b)
    executed = 2.0 * g.blocks * block_outputs * (g.c_padded * problem.taps)
    return np.minimum(1.0, problem.flops / executed)


def wb(blocks: IntArray, processors: int) -> FloatArray:
    """WB (wave balance): (N_TB / N_SM) / ceil(N_TB / N_SM), by pigeonhole for equal indivisible jobs."""
    per_processor = blocks / processors
    return per_processor / np.ceil(per_processor)


def lane(g: Geometry) -> FloatArray:
    """LANE: threads over the lanes of the warps they occupy."""
    return g.threads / (WARP * g.warps)


def cpu_lane(space: ContractSpace, hardware: CpuHardware, g: Geometry) -> FloatArray:
    """LANE: SIMD lanes one work-group can fill, even when the compiler vectorises across its work-items."""
    lanes = vector_width(space.k_t, hardware.simd_lanes)
    return np.minimum(1.0, lanes * g.threads / hardware.simd_lanes)


def cpu_iss(hardware: CpuHardware, g: Geometry) -> FloatArray:
    """ISS: cycles of the FMA pipes against those of the load ports, all accesses full vectors."""
    fma_clk = g.fma / hardware.fma_per_core_per_clk
    load_clk = g.load_words / hardware.loads_per_core_per_clk
    return np.minimum(1.0, fma_clk / load_clk)


def cpu_lat(problem: ContractProblem, hardware: CpuHardware, g: Geometry) -> FloatArray:
    """LAT: seconds at peak against one accumulator's chain of dependent FMAs."""
    chain_s = hardware.lat_fma_clk * g.c_padded * problem.taps / hardware.clock_hz
    return np.asarray(np.minimum(1.0, problem.flops / hardware.peak_flops_per_s / chain_s))
