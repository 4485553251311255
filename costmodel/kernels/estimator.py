"""Estimated seconds of contract kernels: not a bound, used to order points whose bounds tie and to choose
unmeasured.

GPU: waves x (prologue + iterations x max(issue, FMA, shared-memory, L2 cycles + idle ones; latency chain) +
epilogue), with the DRAM and L2 floors and the launch. CPU: SIMD FMA pipes, load ports, register pressure,
caches, work-groups. The coefficients of both are those of the hardware record (`hardware.contract`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.geometry import (
    MAX_UNROLLED_FETCH,
    ROLLED_FETCH,
    Geometry,
    StepCopies,
    ceil_div,
    contract_fetch,
    contract_geometry,
    likely_registers,
    resident_blocks,
    vector_width,
)
from tilewright.costmodel.kernels.parameters import ContractSpace
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.warp_reads import ROW_RUN, input_loads, read_runs, read_wavefronts
from tilewright.costmodel.kernels.windows import FloatArray, IntArray, staged_rows
from tilewright.ir.hardware_facts import LINE_BYTES, SECTOR_BYTES, VECTOR_BYTES, WARP


@dataclass(frozen=True, eq=False)
class _Iteration:
    """Cycles of one iteration of one block: those of the SM that it takes; those of a warp without others,
    for its multiply-adds, for all, and while it waits for a fetch; of L2 traffic; and between two iterations.
    """

    throughput_clk: FloatArray
    multiply_clk: FloatArray
    alone_clk: FloatArray
    wait_clk: FloatArray
    l2_clk: FloatArray
    between_clk: FloatArray
    epilogue_instructions: float
    prefetched: npt.NDArray[np.bool_]


def estimate_contract(problem: ContractProblem, space: ContractSpace, hardware: Hardware) -> FloatArray:
    """Estimated seconds of every point; inf where a block cannot be resident."""
    g = contract_geometry(problem, space)
    if isinstance(hardware, CpuHardware):
        return _estimate_cpu(problem, space, hardware, g)
    return _estimate_gpu(problem, space, hardware, g)


def least_contract_estimate_s(problem: ContractProblem, hardware: GpuHardware) -> float:
    """Seconds that no estimate of a problem is below: launch, and multiply-adds or traffic alone."""
    dram_s = problem.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    issued = WARP * hardware.schedulers_per_sm * hardware.contract.issue_efficiency
    fma_per_clk = hardware.sm_count * min(hardware.fma_per_sm_per_clk, issued)
    busy_s = problem.flops / (2.0 * fma_per_clk * hardware.clock_hz)
    return float(hardware.contract.launch_s + max(busy_s, dram_s))


def _estimate_gpu(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry
) -> FloatArray:
    fit = hardware.contract
    fetch = contract_fetch(problem, space)
    shared_bytes = problem.element_bytes * fetch.words
    occupancy = resident_blocks(
        hardware, g.warps, shared_bytes, _granted_registers(problem, space, hardware, g, fetch)
    )
    per_sm = ceil_div(g.blocks, hardware.sm_count)
    resident = np.minimum(occupancy, per_sm).clip(1)
    step = _iteration(problem, space, hardware, g, fetch)
    full_rounds, rest = per_sm // resident, per_sm % resident
    busy_clk = full_rounds * _round_clk(resident, step, hardware, g)
    busy_clk = busy_clk + np.where(rest > 0, _round_clk(rest, step, hardware, g), 0.0)
    fetched = problem.element_bytes * g.blocks * g.fill_words_average
    l2_s = (fetched + problem.output_bytes + problem.extra_bytes) / hardware.l2_bytes_per_s
    dram_s = problem.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    busy_s = busy_clk / hardware.clock_hz
    longest = np.maximum(np.maximum(busy_s, l2_s), dram_s)
    hidden = busy_s + l2_s + dram_s - longest
    seconds = fit.launch_s + longest + fit.exposed_share * hidden
    return np.where(occupancy > 0, np.maximum(seconds, hardware.launch_floor_s), np.inf)


def _granted_registers(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry, fetch: StepCopies
) -> IntArray:
    """Likely registers per thread; the compiler gets along with what lets one block run."""
    most = hardware.registers_per_sm // (WARP * g.warps)
    return np.asarray(
        np.minimum(likely_registers(problem, space, fetch, hardware.contract), most), dtype=np.int64
    )


def _round_clk(resident: IntArray, step: _Iteration, hardware: GpuHardware, g: Geometry) -> FloatArray:
    """Cycles of `resident` blocks that run side by side on one SM from start to end.

    While a block waits for its fetch, the multiply-adds of the others fill in, and its own with two stages.
    """
    fit = hardware.contract
    crowd_clk, others_clk = resident * step.throughput_clk, (resident - 1).clip(0) * step.throughput_clk
    fetch_clk = step.wait_clk + fit.fetch_gap_share * resident * step.l2_clk
    own_clk = np.where(step.prefetched, np.maximum(step.multiply_clk, crowd_clk), 0.0)
    gap_clk = (fetch_clk - own_clk).clip(0.0) + step.between_clk
    idle_clk = (gap_clk - others_clk).clip(0.0) + fit.gap_loss_share * np.minimum(gap_clk, others_clk)
    busy_clk = np.maximum(crowd_clk + idle_clk, step.alone_clk)
    uneven_clk = fit.uneven_loss_share * np.minimum(crowd_clk, step.alone_clk)
    outputs = resident * g.warps * g.accumulators
    epilogue_clk = outputs * (step.epilogue_instructions / hardware.schedulers_per_sm)
    return np.asarray(fit.block_clk + g.iterations * (busy_clk + uneven_clk) + epilogue_clk)


def _iteration(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry, fetch: StepCopies
) -> _Iteration:
    """Cycles of the issue slots, FMA lanes, shared-memory and L2 ports, and of one warp without others."""
    fit = hardware.contract
    points = space.c_step * problem.taps
    fma = g.accumulators * points
    width = vector_width(space.k_t, VECTOR_BYTES // problem.element_bytes)
    row_loads, weight_loads = space.c_step * input_loads(problem, space), points * space.k_t / width
    compute = fma + row_loads + weight_loads
    stores = fetch.input_steps * (1 if problem.rows_inner else fetch.input_width)
    copies = _copy_instructions(problem, hardware, fetch)
    turned = 0 if problem.rows_inner else stores
    issue_clk = g.warps * (compute + copies + turned) / hardware.schedulers_per_sm
    issue_clk = issue_clk / fit.issue_efficiency
    fma_clk = g.warps * fma * (WARP / hardware.fma_per_sm_per_clk)
    of_input, of_weight = read_wavefronts(problem, space)
    waves = row_loads * of_input * _turns(
        hardware, read_runs(problem, space)
    ) + weight_loads * of_weight * _turns(hardware, width)
    stored = fetch.input_words * (1.0 if problem.rows_inner else fit.store_wavefronts)
    lines = g.warps * (
        fetch.input_steps * _lines(problem, space, fetch) + fetch.weight_steps * fit.weight_lines
    )
    smem_clk = g.warps * waves + (stored + fetch.weight_words) / WARP + fit.line_port_clk * lines
    moved = problem.element_bytes * (
        fetch.input_words * _overfetch(problem, space, hardware) + fetch.weight_words
    )
    l2_clk = moved / fit.l2_bytes_per_sm_per_clk
    multiply_clk = fit.clk_per_instruction * compute + fit.clk_per_tap * points
    wait_clk = fit.fetch_clk * (1 + fit.rolled_waits * _rolled_rounds(fetch))
    longer = np.where(space.stages > 1, np.maximum(multiply_clk, wait_clk), multiply_clk + wait_clk)
    busiest = np.maximum(np.maximum(issue_clk, fma_clk), np.maximum(smem_clk, l2_clk))
    return _Iteration(
        throughput_clk=busiest + fit.line_clk * lines,
        multiply_clk=multiply_clk,
        alone_clk=fit.copy_clk * copies + longer,
        wait_clk=wait_clk,
        l2_clk=l2_clk,
        between_clk=fit.barrier_clk + fit.copy_gap_share * g.warps * copies / hardware.schedulers_per_sm,
        prefetched=space.stages > 1,
        epilogue_instructions=fit.epilogue_instructions
        * (fit.aligned_results_share if _aligned_results(problem) else 1.0),
    )


def _aligned_results(problem: ContractProblem) -> bool:
    """Return whether threads own runs of results that vectors can write: plain rows of whole vectors, or
    columns.
    """
    return not problem.rows_inner or (problem.taps == 1 and problem.w % ROW_RUN == 0)


def _turns(hardware: GpuHardware, words: IntArray) -> FloatArray:
    """Cost of a wavefront of a load that brings several words per lane, against one of single words."""
    share = hardware.contract.wide_wavefront_share
    return np.asarray(share + (1 - share) / words)


def _rolled_rounds(fetch: StepCopies) -> FloatArray:
    """Rounds of the copies that are too long to be unrolled, one after the other."""
    steps = (fetch.input_steps, fetch.weight_steps)
    rounds = [np.where(n > MAX_UNROLLED_FETCH, ceil_div(n, ROLLED_FETCH), 0) for n in steps]
    return np.asarray(rounds[0] + rounds[1], dtype=np.float64)


def _copy_instructions(problem: ContractProblem, hardware: GpuHardware, fetch: StepCopies) -> FloatArray:
    """Instructions of one warp that copy both tiles: boxes of several rows cost addresses and checks, and so
    does every step of a copy that is not unrolled.
    """
    fit = hardware.contract
    box = fit.box_instructions if problem.h > 1 else 0.0
    per_step = fit.copy_instructions
    rolled = [
        np.where(n > MAX_UNROLLED_FETCH, fit.rolled_instructions, 0.0)
        for n in (fetch.input_steps, fetch.weight_steps)
    ]
    first = fetch.input_steps * (per_step + box + rolled[0])
    return np.asarray(first + fetch.weight_steps * (per_step + rolled[1]))


def _lines(problem: ContractProblem, space: ContractSpace, fetch: StepCopies) -> FloatArray:
    """Cache lines that a warp's load of the first operand touches: pieces of rows are not contiguous."""
    run, gap = _consecutive(problem, space)
    words = WARP * fetch.input_width
    reach = problem.element_bytes * (np.minimum(run, words) * gap - fetch.input_width)
    return np.asarray(np.maximum(1.0, words / run) * (1 + (reach / LINE_BYTES).clip(0.0)))


def _consecutive(problem: ContractProblem, space: ContractSpace) -> tuple[IntArray, int]:
    """Elements of the first operand that a block reads in a row, and the distance between two of them."""
    if not problem.rows_inner:
        return space.c_step, 1
    columns = staged_rows(space.w_b, problem.axis_w)
    whole = (problem.f_w == 1) & (problem.stride_w == 1) & (columns >= problem.w)
    planes = columns * staged_rows(space.h_b, problem.axis_h) * space.c_step
    return np.where(whole, planes, columns), problem.stride_w if problem.f_w == 1 else 1


def _overfetch(problem: ContractProblem, space: ContractSpace, hardware: GpuHardware) -> FloatArray:
    """Bytes of the 32-byte sectors that a fetch of the first operand touches, over the bytes it needs."""
    if not problem.rows_inner:
        run = problem.element_bytes * space.c_step
        return np.asarray(ceil_div(run, SECTOR_BYTES) * SECTOR_BYTES / run)
    columns = staged_rows(space.w_b, problem.axis_w)
    whole = (problem.f_w == 1) & (problem.stride_w == 1) & (columns >= problem.w)
    run = problem.element_bytes * np.where(whole, hardware.contract.consecutive_rows * columns, columns)
    gap = problem.stride_w if problem.f_w == 1 else 1
    return np.asarray(gap * (ceil_div(run, SECTOR_BYTES) * SECTOR_BYTES + SECTOR_BYTES // 2) / run)


def _estimate_cpu(
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
