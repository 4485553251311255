"""Estimated seconds of contract kernels: not a bound, used to order points whose bounds tie and to choose
unmeasured.

GPU: waves x (prologue + iterations x max(issue, FMA, shared-memory, L2 cycles + idle ones; latency chain) +
epilogue), with the DRAM and L2 floors and the launch. Constants, also those of the records with the prefix
`contract_`, are fitted to 2,190 points timed at batch 1 and 619 at batch 8 to 128. CPU: see
`tilewright.costmodel.kernels.cpu_estimator`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.cpu_estimator import estimate_contract_cpu
from tilewright.costmodel.kernels.geometry import (
    MAX_UNROLLED_FETCH,
    ROLLED_FETCH,
    Fetch,
    Geometry,
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

#: of the shorter ones among busy, L2 and DRAM seconds, what shows
_EXPOSED_SHARE = 0.078
#: of the cycles while a block waits for a fetch and others multiply, what is lost; of a fetch's own traffic,
#: what passes while nothing of the block multiplies
_GAP_LOSS, _FETCH_GAP = 0.285, 0.795
#: of the shorter one of throughput and latency chain, what is lost
_UNEVEN_LOSS = 0.159
#: cycles between two iterations of a block, and the share of its copies that nothing of it overlaps
_BARRIER_CLK, _COPY_GAP = 66.8, 0.516
#: fetch latencies that show per round of a copy too long to be unrolled, and instructions of each step of it
_ROLLED_WAITS, _ROLLED_INSTRUCTIONS = 3.07, 26.6
#: of the wavefronts in which lanes take turns, what they take where a load brings several words
_TURNS_SHARE = 0.64
#: cycles of the shared-memory port, and of all ports, per line of the cache that a load of the first operand
#: or of weights looks up
_LINE_PORT_CLK, _LINE_CLK = 0.425, 0.281
_WEIGHT_LINES = 4
#: what results cost that lie along whole rows of four words, against others
_ALIGNED_RESULTS = 0.4


@dataclass(frozen=True, eq=False)
class _Iteration:
    """Cycles of one iteration of one block: what it takes from the SM, and what one warp takes alone: for its
    multiply-adds, for all, while it waits for a fetch, of L2 traffic, and between two iterations.
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
        return estimate_contract_cpu(problem, space, hardware, g)
    return _estimate_gpu(problem, space, hardware, g)


def _estimate_gpu(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry
) -> FloatArray:
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
    seconds = hardware.contract_launch_s + longest + _EXPOSED_SHARE * hidden
    return np.where(occupancy > 0, np.maximum(seconds, hardware.launch_floor_s), np.inf)


def _granted_registers(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry, fetch: Fetch
) -> IntArray:
    """Likely registers per thread; the compiler gets along with what lets one block run."""
    most = hardware.registers_per_sm // (WARP * g.warps)
    return np.asarray(np.minimum(likely_registers(problem, space, fetch), most), dtype=np.int64)


def _round_clk(resident: IntArray, step: _Iteration, hardware: GpuHardware, g: Geometry) -> FloatArray:
    """Cycles of `resident` blocks that run side by side on one SM from start to end.

    While a block waits for its fetch, the multiply-adds of the others fill in, and its own with two stages.
    """
    crowd_clk, others_clk = resident * step.throughput_clk, (resident - 1).clip(0) * step.throughput_clk
    fetch_clk = step.wait_clk + _FETCH_GAP * resident * step.l2_clk
    own_clk = np.where(step.prefetched, np.maximum(step.multiply_clk, crowd_clk), 0.0)
    gap_clk = (fetch_clk - own_clk).clip(0.0) + step.between_clk
    idle_clk = (gap_clk - others_clk).clip(0.0) + _GAP_LOSS * np.minimum(gap_clk, others_clk)
    busy_clk = np.maximum(crowd_clk + idle_clk, step.alone_clk)
    uneven_clk = _UNEVEN_LOSS * np.minimum(crowd_clk, step.alone_clk)
    outputs = resident * g.warps * g.accumulators
    epilogue_clk = outputs * (step.epilogue_instructions / hardware.schedulers_per_sm)
    return np.asarray(hardware.contract_block_clk + g.iterations * (busy_clk + uneven_clk) + epilogue_clk)


def _iteration(
    problem: ContractProblem, space: ContractSpace, hardware: GpuHardware, g: Geometry, fetch: Fetch
) -> _Iteration:
    """What the issue slots, FMA lanes, shared-memory and L2 ports take; and what one warp takes alone."""
    points = space.c_step * problem.taps
    fma = g.accumulators * points
    width = vector_width(space.k_t, VECTOR_BYTES // problem.element_bytes)
    row_loads, weight_loads = space.c_step * input_loads(problem, space), points * space.k_t / width
    compute = fma + row_loads + weight_loads
    stores = fetch.input_steps * (1 if problem.rows_inner else fetch.input_width)
    copies = _copy_instructions(problem, hardware, fetch)
    turned = 0 if problem.rows_inner else stores
    issue_clk = g.warps * (compute + copies + turned) / hardware.schedulers_per_sm
    issue_clk = issue_clk / hardware.contract_issue_efficiency
    fma_clk = g.warps * fma * (WARP / hardware.fma_per_sm_per_clk)
    of_input, of_weight = read_wavefronts(problem, space)
    waves = row_loads * of_input * _turns(read_runs(problem, space)) + weight_loads * of_weight * _turns(
        width
    )
    stored = fetch.input_words * (1.0 if problem.rows_inner else hardware.contract_store_wavefronts)
    lines = g.warps * (fetch.input_steps * _lines(problem, space, fetch) + fetch.weight_steps * _WEIGHT_LINES)
    smem_clk = g.warps * waves + (stored + fetch.weight_words) / WARP + _LINE_PORT_CLK * lines
    moved = problem.element_bytes * (fetch.input_words * _overfetch(problem, space) + fetch.weight_words)
    l2_clk = moved / hardware.contract_l2_bytes_per_sm_per_clk
    multiply_clk = hardware.contract_clk_per_instruction * compute + hardware.contract_clk_per_tap * points
    wait_clk = hardware.contract_fetch_clk * (1 + _ROLLED_WAITS * _rolled_rounds(fetch))
    longer = np.where(space.stages > 1, np.maximum(multiply_clk, wait_clk), multiply_clk + wait_clk)
    busiest = np.maximum(np.maximum(issue_clk, fma_clk), np.maximum(smem_clk, l2_clk))
    return _Iteration(
        throughput_clk=busiest + _LINE_CLK * lines,
        multiply_clk=multiply_clk,
        alone_clk=hardware.contract_copy_clk * copies + longer,
        wait_clk=wait_clk,
        l2_clk=l2_clk,
        between_clk=_BARRIER_CLK + _COPY_GAP * g.warps * copies / hardware.schedulers_per_sm,
        prefetched=space.stages > 1,
        epilogue_instructions=hardware.contract_epilogue_instructions
        * (_ALIGNED_RESULTS if _aligned_results(problem) else 1.0),
    )


def _aligned_results(problem: ContractProblem) -> bool:
    """Whether threads own runs of results that vectors can write: plain rows of whole vectors, or columns."""
    return not problem.rows_inner or (problem.taps == 1 and problem.w % ROW_RUN == 0)


def _turns(words: IntArray) -> FloatArray:
    """What a wavefront counts of a load that brings several words per lane."""
    return np.asarray(_TURNS_SHARE + (1 - _TURNS_SHARE) / words)


def _rolled_rounds(fetch: Fetch) -> FloatArray:
    """Rounds of the copies that are too long to be unrolled, one after the other."""
    steps = (fetch.input_steps, fetch.weight_steps)
    rounds = [np.where(n > MAX_UNROLLED_FETCH, ceil_div(n, ROLLED_FETCH), 0) for n in steps]
    return np.asarray(rounds[0] + rounds[1], dtype=np.float64)


def _copy_instructions(problem: ContractProblem, hardware: GpuHardware, fetch: Fetch) -> FloatArray:
    """Instructions of one warp that copy both tiles: boxes of several rows cost addresses and checks, and so
    does every step of a copy that is not unrolled.
    """
    box = hardware.contract_box_instructions if problem.h > 1 else 0.0
    per_step = hardware.contract_copy_instructions
    rolled = [
        np.where(n > MAX_UNROLLED_FETCH, _ROLLED_INSTRUCTIONS, 0.0)
        for n in (fetch.input_steps, fetch.weight_steps)
    ]
    first = fetch.input_steps * (per_step + box + rolled[0])
    return np.asarray(first + fetch.weight_steps * (per_step + rolled[1]))


def _lines(problem: ContractProblem, space: ContractSpace, fetch: Fetch) -> FloatArray:
    """Cache lines that a warp's load of the first operand touches: pieces of rows lie apart in memory."""
    run, gap = _consecutive(problem, space)
    words = WARP * fetch.input_width
    reach = problem.element_bytes * (np.minimum(run, words) * gap - fetch.input_width)
    return np.asarray(np.maximum(1.0, words / run) * (1 + (reach / LINE_BYTES).clip(0.0)))


def _consecutive(problem: ContractProblem, space: ContractSpace) -> tuple[IntArray, int]:
    """Elements of the first operand that a block reads in a row, and how far apart they lie."""
    if not problem.rows_inner:
        return space.c_step, 1
    columns = staged_rows(space.w_b, problem.axis_w)
    whole = (problem.f_w == 1) & (problem.stride_w == 1) & (columns >= problem.w)
    planes = columns * staged_rows(space.h_b, problem.axis_h) * space.c_step
    return np.where(whole, planes, columns), problem.stride_w if problem.f_w == 1 else 1


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
