"""Estimated seconds of tensor-core kernels: rounds x (start + chunks x the slowest port + epilogue)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.geometry import ceil_div, resident_blocks
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.ir.hardware_facts import (
    INSTRUCTION_BYTES,
    LDMATRIX_BYTES,
    LINE_BYTES,
    MMA_M,
    MMA_N,
    SECTOR_BYTES,
    WARP,
    WARPGROUP_WARPS,
)
from tilewright.ir.thread.split_ops import PRODUCTS
from tilewright.ir.thread.warpgroup_ops import TURNED_WORDS
from tilewright.passes.analysis.shared_work import FRAGMENT_COLUMNS, LANES
from tilewright.passes.kernels.matrix.bound import tensor_flops_per_s, tensor_fma
from tilewright.passes.kernels.matrix.parameters import SPLIT_SLOTS, TURNED_SLOTS
from tilewright.passes.kernels.matrix.space import (
    SUM_BYTES,
    MatrixProblem,
    MatrixSpace,
    ahead_of,
    all_chunks,
    blocks_of,
    chunks_of,
    clusters_at_once,
    columns_together,
    fetched_columns,
    full_turns,
    holds_first,
    laid_stages,
    lines_of_columns,
    registers_of,
    rounds_first,
    shared_bytes,
    shared_rows,
    slots_of_columns,
    splits_on_the_way,
    tiles_of,
    two_at_a_time,
)


def estimate_matrix(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Estimated seconds of every point; inf where a block cannot be resident."""
    fit = hardware.matrix
    blocks = blocks_of(problem, space)
    fits = resident_blocks(hardware, space.warps, shared_bytes(problem, space), registers_of(problem, space))
    per_sm = np.where(
        space.parts > 1,
        ceil_div(tiles_of(problem, space), clusters_at_once(space.parts, hardware)),
        ceil_div(blocks, hardware.sm_count),
    )
    resident = np.minimum(fits, per_sm).clip(1)
    busy_clk = np.empty(len(space))
    roles, alike = np.flatnonzero(space.by_roles), np.flatnonzero(~space.by_roles)
    busy_clk[roles] = _roles_clk(problem, space.take(roles), hardware)
    busy_clk[alike] = _rounds_clk(problem, space.take(alike), hardware, per_sm[alike], resident[alike])
    busy_clk = busy_clk + np.where(space.parts > 1, fit.cluster_start_clk * space.parts, 0.0)
    splits_in_loop = splits_on_the_way(problem) & ~space.by_roles
    busy_s = busy_clk / (hardware.clock_hz * np.where(splits_in_loop, fit.split_share, 1.0))
    # The copy engine writes what is laid down, and waits for what is read besides stand among the cycles.
    by_roles = np.where(laid_stages(problem, space, hardware) > 0, 0.0, exposed_of_roles(problem, hardware))
    alone = np.where(space.by_roles, by_roles, fit.exposed_alone_share / resident)
    seconds = launched_s(problem, busy_s, fit.exposed_share + alone, hardware)
    return np.asarray(np.where(fits > 0, seconds, np.inf))


def least_matrix_estimate_s(problem: MatrixProblem, hardware: GpuHardware) -> float:
    """Seconds that no estimate of a problem is below: launch, and multiplications or traffic alone."""
    fit = hardware.matrix
    groups = hardware.wgmma_share * fit.warpgroup_share
    warps = hardware.mma_sync_share * hardware.estimate_mma_efficiency * fit.loop_share
    share = max(fit.role_share, fit.role_alone_share, groups, warps) * max(1.0, fit.split_share)
    share = share / (1.0 - fit.short_ring_share / fit.usual_stages)  # of the longest ring there could be
    busy_s = problem.flops / (tensor_flops_per_s(problem, hardware) * share)
    return float(hardware.contract.launch_s + max(busy_s, _dram_s(problem, hardware)))


def exposed_of_roles(problem: MatrixProblem, hardware: GpuHardware) -> float:
    """The share of the shorter of work and traffic that kernels by roles do not hide, beside that of all.

    Copies of blocks by roles are always on their way; but results, and what they are computed from besides,
    wait for memory as far as the L2 does not hold it, whichever of several blocks writes them.
    """
    compulsory = max(1.0, problem.compulsory_bytes)
    beyond = max(0.0, 1.0 - hardware.l2_bytes / compulsory)
    return hardware.matrix.exposed_alone_share * beyond * problem.result_bytes / compulsory


def launched_s(
    problem: MatrixProblem, busy_s: FloatArray, exposed: float | FloatArray, hardware: GpuHardware
) -> FloatArray:
    """Seconds of a launch whose multiprocessors are busy for so long, beside its traffic.

    exposed: the share of the shorter one that the longer does not hide.
    """
    dram_s = _dram_s(problem, hardware)
    longest, shorter = np.maximum(busy_s, dram_s), np.minimum(busy_s, dram_s)
    return np.asarray(hardware.contract.launch_s + longest + exposed * shorter)


def _dram_s(problem: MatrixProblem, hardware: GpuHardware) -> float:
    return problem.compulsory_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)


def _rounds_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, per_sm: IntArray, resident: IntArray
) -> FloatArray:
    """Cycles of all `per_sm` blocks of an SM, of which `resident` run at a time and the rest behind them."""
    rounds, rest = per_sm // resident, per_sm % resident
    clk = rounds * _round_clk(problem, space, hardware, resident)
    some = np.flatnonzero(rest)
    clk[some] += _round_clk(problem, space.take(some), hardware, rest[some])
    return clk


def _round_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, resident: IntArray
) -> FloatArray:
    """Cycles of `resident` blocks side by side on one SM from start to end."""
    fit = hardware.matrix
    chunks = chunks_of(problem, space)
    start = fit.block_clk
    chunk = np.maximum(
        resident * _shared_clk(problem, space, hardware, resident), _alone_clk(problem, space, hardware)
    )
    late = fit.short_ring_share * (1.0 / space.stages - 1.0 / fit.usual_stages)
    chunk = chunk * np.where(space.groups > 0, 1.0 + late, 1.0)
    shared = _sharing_clk(space, hardware, resident)
    return np.asarray(start + chunks * chunk + epilogue_clk(problem, space, hardware, resident) + shared)


def _sharing_clk(space: MatrixSpace, hardware: GpuHardware, resident: IntArray) -> FloatArray:
    """Cycles in which blocks that share a tile meet twice and read each other's sums."""
    fit = hardware.matrix
    read = resident * (space.m * space.n) * (SUM_BYTES * (1.0 - 1.0 / space.parts))
    meet = fit.meet_clk + fit.meet_block_clk * space.parts
    return np.where(space.parts > 1, 2.0 * meet + read / fit.cluster_bytes_per_sm_per_clk, 0.0)


def role_chunk_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware
) -> tuple[FloatArray, FloatArray]:
    """Cycles of a chunk by roles: of what blocks of a multiprocessor share, and of a block alone.

    It takes the maximum cycle ratio of the ring (`costmodel.kernels.cycle_ratio`): tensor cores, shared
    memory, the path of copies, or the way from a slot's release to the next over as many chunks as slots.
    """
    fit, size = hardware.matrix, problem.element_bytes
    share = np.where(space.team_warps > WARPGROUP_WARPS, fit.role_share, fit.role_alone_share)
    multiply = space.m * space.n * space.k / (tensor_fma(problem, hardware) * share)
    if problem.stored or problem.promotes:
        # Two warpgroups that share a tile promote sums while the other one multiplies; teams wait for it, and
        # so does one warpgroup that is alone in full turns.
        promote = space.m * space.n / (WARP * hardware.schedulers_per_sm)
        waits = (space.teams > 1) | ((space.left_over > 0) & (space.team_warps <= WARPGROUP_WARPS))
        multiply = multiply + np.where(waits, fit.warpgroup_registers_clk + promote, 0.0)
    if holds_first(problem):
        # A warpgroup that has the tensor cores to itself loads registers while they wait.
        alone = space.team_warps <= WARPGROUP_WARPS
        multiply = multiply + np.where(alone, fit.warpgroup_registers_clk, 0.0)
    # The copy engine brings a row at a time, short ones as fast as whole lines.
    row_bytes = np.maximum(space.k * size, LINE_BYTES)
    columns = fetched_columns(problem, space) * lines_of_columns(problem, space)
    fetched = (space.m * problem.fetched + columns / space.cluster) * row_bytes
    fetch = fetched / fit.role_bytes_per_sm_per_clk
    port = shared_rows(problem, space) * space.k * (size / hardware.smem_bytes_per_sm_per_clk)
    # Copies wait for those of other blocks, and for memory where the L2 does not hold what is read.
    load = np.minimum(1.0, blocks_of(problem, space) / hardware.sm_count)
    memory = fit.memory_clk if problem.compulsory_bytes > hardware.l2_bytes else 0.0
    copy = fit.fetch_clk + memory + fit.role_queue_share * load * fetch
    around = (copy + multiply) / space.stages
    around = np.maximum(around, _turned_clk(problem, space, hardware, copy, multiply))
    around = np.maximum(around, _split_clk(problem, space, hardware, copy, multiply))
    late = 1.0 + fit.short_ring_share * (1.0 / space.stages - 1.0 / fit.usual_stages)
    shared_cycle = np.maximum.reduce([multiply * late, port, fetch])
    cycle = np.maximum(shared_cycle, around) + fit.exposed_share * fetch
    return shared_cycle, cycle


def _roles_clk(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Cycles of a block by roles, from its start to the end of its last tile.

    One team's results follow its loop; those of two are written while the other one multiplies, which they
    slow down by a share of their own cycles. So it is of several blocks of a multiprocessor. Where tiles are
    left over, a turn of a part follows the full ones.
    """
    fit = hardware.matrix
    shared_cycle, cycle = role_chunk_clk(problem, space, hardware)
    loop = chunks_of(problem, space) * cycle
    one = np.ones(len(space), dtype=np.int64)
    results = fit.role_turn_clk + epilogue_clk(problem, space, hardware, one)
    tiles = tiles_of(problem, space)
    turns = ceil_div(tiles, np.minimum(space.blocks, tiles).clip(1))
    sharing = _sharing_clk(space, hardware, one)
    shared = fit.block_clk + loop + results - fit.role_turn_clk + sharing  # no tile follows
    alone = np.where(
        space.parts > 1,
        ceil_div(tiles, clusters_at_once(space.parts, hardware)) * shared,
        turns * (loop + results),
    )
    laid = laid_stages(problem, space, hardware) > 0
    whole = fit.role_turn_clk + _whole_epilogue_clk(problem, space, hardware, one, laid)
    before = full_turns(problem, space) * (all_chunks(problem, space) * cycle + whole)
    alone = np.where(space.left_over > 0, before + loop + results + sharing, alone)
    beside = loop + fit.role_beside_share * results
    # A team begins when the one before it is through with its first loop, and does one thing after another.
    own = ceil_div(turns, 2) * (loop + results) + np.where(turns % 2 == 0, loop, 0.0)
    by_turns = np.maximum(turns * beside + results, own)
    # Blocks of one multiprocessor take turns as teams do, and share the path of copies and the ports. Where
    # tiles are few there are no more blocks than these.
    per_sm = np.maximum(turns * np.minimum(space.resident, ceil_div(tiles, hardware.sm_count)), 1)
    beside_others = chunks_of(problem, space) * shared_cycle + fit.role_beside_share * results
    several = np.maximum(per_sm * beside_others + results, (loop + results) * turns)
    several = several + fit.block_clk
    found = np.where(space.teams > 1, by_turns, np.where(space.resident > 1, several, alone))
    return np.asarray(fit.fetch_clk + found)


def _turned_clk(
    problem: MatrixProblem,
    space: MatrixSpace,
    hardware: GpuHardware,
    copy: FloatArray,
    multiply: FloatArray,
) -> FloatArray:
    """Cycles of a chunk by the way around the slots of a factor that a role turns; 0 without such a role.

    A slot of columns waits for its copy and is turned; one of rows is turned and multiplied. copy, multiply:
    cycles from the start of a chunk's copy to its end, and of its multiplication.
    """
    fit = hardware.matrix
    words = fetched_columns(problem, space) * space.k / np.maximum(WARP * space.turners, 1)
    turn = fit.turn_clk + fit.turn_step_clk * np.ceil(words / TURNED_WORDS**2)
    columns = (copy + turn) / slots_of_columns(space)
    found = np.maximum.reduce([turn, columns, (turn + multiply) / TURNED_SLOTS])
    return np.asarray(np.where(space.turners > 0, found, 0.0))


def _split_clk(
    problem: MatrixProblem,
    space: MatrixSpace,
    hardware: GpuHardware,
    copy: FloatArray,
    multiply: FloatArray,
) -> FloatArray:
    """Cycles of a chunk by the way around the slots of factors that a role splits; 0 without such a role.

    A slot waits for its copy and is split; one of pieces is split and multiplied. A scheduler issues for one
    warp of the role, whose instructions depend on one another by vectors.
    """
    if not splits_on_the_way(problem):
        return np.zeros(len(space))
    fit = hardware.matrix
    elements = (space.m + space.n) * space.k / np.maximum(WARP * space.turners, 1)
    split = fit.turn_clk + fit.split_instructions * elements
    found = np.maximum.reduce([split, (copy + split) / space.stages, (split + multiply) / SPLIT_SLOTS])
    return np.asarray(np.where(space.turners > 0, found, 0.0))


def epilogue_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, resident: IntArray
) -> FloatArray:
    """Cycles from the last multiplication to the last store of `resident` blocks.

    A block that shares a tile lays all sums down, and finishes a part of the results.
    """
    share = hardware.matrix.laid_down_share
    laid = (laid_stages(problem, space, hardware) > 0) & (space.parts == 1)
    whole = _whole_epilogue_clk(problem, space, hardware, resident, laid)
    return np.asarray(whole * (share + (1.0 - share) / space.parts))


def _whole_epilogue_clk(
    problem: MatrixProblem,
    space: MatrixSpace,
    hardware: GpuHardware,
    resident: IntArray,
    laid: npt.NDArray[np.bool_],
) -> FloatArray:
    """The same of blocks that each finish a whole tile.

    laid: whether warps lay results down out of fragments, else sums pass through rows.
    """
    fit, summed = hardware.matrix, problem.summed
    vectors = space.m * space.n / (LANES * WARP)
    stored = fit.result_instructions * (1.0 + fit.further_set_share * (space.warps_k - 1))
    each = np.where(laid, fit.laid_instructions, stored) + fit.tail_instructions * problem.tail_work
    # Threads have as many neighbours of what they store as share a call of random words, but pairs of what
    # they lay down: these repeat the call for every pair.
    shared = np.where(laid, problem.tail_paired, problem.tail_shared)
    each = each + fit.tail_shared_instructions * shared
    if summed is not None:
        each = each + np.where(laid, summed.laid_work, summed.vector_work)
    warps = space.team_warps
    hidden = np.minimum(1.0, resident * warps / (hardware.schedulers_per_sm * fit.tail_warps))
    clk = resident * vectors * each / (hardware.schedulers_per_sm * hidden)
    # Of what is read besides the L2 holds the less the more the kernel moves. Warps by roles ask for pairs,
    # as results lie in fragments, or for the vectors of one piece of sums: either way half as much at a time.
    beyond = min(1.0, problem.compulsory_bytes / hardware.l2_bytes)
    latency = fit.tail_read_clk + beyond * fit.memory_clk
    together = np.where(space.by_roles, fit.tail_vectors * FRAGMENT_COLUMNS / LANES, fit.tail_vectors)
    wait = vectors / warps / together * latency
    if problem.tail_bytes:
        clk = clk + wait
    clk = clk + np.where(laid & space.by_roles, _code_clk(problem, space, hardware), 0.0)
    if summed is not None:
        # The threads of a tile meet before its parts are combined, and before the next tile's sums begin.
        clk = clk + 2.0 * hardware.rows.barrier_clk
        # Values cross the port of shared memory on their way to lanes, unless they lie there anyway.
        clk = clk + np.where(laid, 0.0, resident * vectors * summed.vector_accesses)
        # What sums alone read is asked for when results are laid down, and waited for once more.
        clk = clk + summed.further * wait
    return np.asarray(clk)


def _code_clk(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Cycles in which a team waits for the instructions that lay its results down; 0 where the multiprocessor
    keeps them.

    Sums lie in registers, so their results are written one after the other in the text, and each team has a
    text of its own. Where these do not fit the cache of instructions together, every tile brings the text of
    its team anew, since what comes round in turns is always what was there the longest.
    """
    fit, summed = hardware.matrix, problem.summed
    work = problem.tail_work + (summed.laid_work if summed is not None else 0.0)
    each = fit.laid_code + fit.tail_code * work + fit.shared_code * problem.tail_paired
    own = space.m * space.n / (LANES * WARP) / space.team_warps * each * INSTRUCTION_BYTES
    return np.asarray(np.where(own * space.teams > fit.code_bytes, own / fit.code_bytes_per_clk, 0.0))


def _copied_by_threads(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Instructions of a warp for what it copies or computes of a chunk through registers."""
    fit = hardware.matrix
    total = np.zeros(len(space))
    for extent, copy, lanes in (
        (space.m, problem.first_copy, problem.first_lanes),
        (space.n, problem.second_copy, problem.second_lanes),
    ):
        if copy == 0:
            each = fit.vector_instructions / lanes + fit.element_instructions * (
                1.0 + fit.computed_share * problem.head_work
            )
            total += extent * space.k * each / (WARP * space.warps)
    return total


def _shared_clk(
    problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware, resident: IntArray
) -> FloatArray:
    """Cycles a chunk takes of what blocks of an SM share: tensor cores, shared memory, L2, issue slots."""
    fit = hardware.matrix
    size = problem.element_bytes
    busy = np.minimum(1.0, resident * space.warps / hardware.schedulers_per_sm)
    alone = hardware.mma_sync_share * hardware.estimate_mma_efficiency * fit.loop_share
    share = np.where(space.groups > 0, hardware.wgmma_share * fit.warpgroup_share, alone)
    rate = tensor_fma(problem, hardware) * share * busy
    tensor = space.m * space.n * space.k / rate
    rows = shared_rows(problem, space)
    port = rows * space.k * (size / hardware.smem_bytes_per_sm_per_clk)
    second = _second_columns(space)
    fetched = (space.m * problem.fetched + second) * space.k * size
    for extent, stride in ((space.m, problem.first_stride), (second, problem.second_stride)):
        if stride:
            fetched = fetched + extent * space.k * max(0, min(stride, SECTOR_BYTES) - size)
    multiplies = (space.m // MMA_M) * (space.n // MMA_N) * (space.k // problem.depth) * problem.products
    loads = np.where(space.groups > 0, 0.0, rows * space.k * size / LDMATRIX_BYTES)
    multiplies = np.where(space.groups > 0, 0, multiplies)
    copies = space.warps * _copied_by_threads(problem, space, hardware)
    for extent, copy in ((space.m, problem.first_copy), (second, problem.second_copy)):
        if copy:
            copies = copies + extent * space.k * (fit.copy_instructions / (copy * WARP))
    issued = multiplies + loads + copies + fit.chunk_instructions * space.warps
    if problem.split:
        issued = issued + _split_instructions(problem, space, hardware)
    issue = issued / (hardware.schedulers_per_sm * busy)
    fetch = fetched / fit.l2_bytes_per_sm_per_clk
    return np.maximum.reduce([tensor, port, fetch + fit.line_clk * _lines(problem, space), issue])


def _split_instructions(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Instructions of all warps for the pieces of a chunk, and for the sums of its steps.

    Warpgroups split the second factor once, and add sums once for a chunk.
    """
    second = np.where(space.groups > 0, 1, space.warps_m)
    elements = (space.m * space.warps_n + space.n * second) * space.k / WARP
    steps = np.where(space.groups > 0, 1, space.k // problem.depth)
    sums = len(PRODUCTS) * space.m * space.n * steps / WARP
    return np.asarray(hardware.matrix.split_instructions * elements + sums)


def _second_columns(space: MatrixSpace) -> IntArray:
    """Columns of the second factor that every chunk asks for: none where all chunks are there before."""
    return np.where(space.preloaded > 0, 0, space.n)


def _lines(problem: MatrixProblem, space: MatrixSpace) -> FloatArray:
    """Lines of memory that the asynchronous copies of a chunk touch: rows share them where they are whole.

    A tile of columns of the channel has a row for each index of the channel. What threads gather touches a
    line for every element, or for as many as their stride leaves in one.
    """
    lines = np.zeros(len(space))
    second = _second_columns(space)
    for extent, stride in ((space.m, problem.first_stride), (second, problem.second_stride)):
        lines = lines + extent * space.k * min(1.0, stride / LINE_BYTES)
    for extent, everything, copy, by_channel, whole in (
        (space.m, problem.m, problem.first_copy, problem.first_rows, problem.taps == 1),
        (second, problem.n, problem.second_copy, problem.second_rows, True),
    ):
        if not copy:
            continue
        depth = problem.channel * problem.taps
        count, length, most = (extent, space.k, depth) if by_channel else (space.k, extent, everything)
        row = length * problem.element_bytes / LINE_BYTES
        lines = lines + count * np.where((length == most) & whole, row, np.maximum(1.0, row))
    return np.asarray(lines)


def _alone_clk(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> FloatArray:
    """Cycles a chunk takes of a block that has the SM for itself: chains of multiplications, of copies."""
    fit = hardware.matrix
    depth = problem.depth
    tiles = (space.m // space.warps_m // MMA_M) * (space.n // space.warps_n // MMA_N)
    rate = tensor_fma(problem, hardware) * hardware.mma_sync_share / hardware.schedulers_per_sm
    one = MMA_M * MMA_N * depth / rate
    step = np.full(len(space), fit.step_clk)
    if problem.split:
        groups = (space.n // space.warps_n // MMA_N) // columns_together(space)
        step = groups * problem.products * fit.split_latency_clk + fit.step_clk
    chain = (space.k // (depth * space.warps_k)) * np.maximum(tiles * one, step)
    # The four warps of a group have all tensor cores to themselves.
    together = tensor_fma(problem, hardware) * max(hardware.wgmma_share, 1e-9) * fit.warpgroup_share
    alone_clk = fit.warpgroup_registers_clk if rounds_first(problem) else fit.warpgroup_clk
    waits = np.where(two_at_a_time(problem, space), fit.warpgroup_overlapped_clk, alone_clk)
    if problem.split:  # between the products of two chunks a block splits and adds
        waits = waits + _split_instructions(problem, space, hardware) / hardware.schedulers_per_sm
    if problem.promotes:  # a warpgroup adds the sums of a chunk before it multiplies the next one
        waits = waits + space.m * space.n / (WARP * hardware.schedulers_per_sm)
    chain = np.where(space.groups > 0, space.m * space.n * space.k / together + waits, chain)
    # A chunk arrives the sooner, the less of it is asked for.
    asked = (space.m + _second_columns(space)) / (space.m + space.n)
    flight = fit.fetch_clk * asked / ahead_of(problem, space)
    instructions = _copied_by_threads(problem, space, hardware)
    through = np.where(instructions > 0, fit.fetch_clk, 0.0)
    alone = np.maximum(np.maximum(chain, flight), through)
    return np.asarray(alone + instructions * hardware.contract.clk_per_instruction)
