"""Coefficients of the estimators: one frozen dataclass for each kind of kernel, whose values stand in the
hardware records with the source of each and the device that it was fitted on.

A coefficient is of the estimate alone, never of the bound. Units are in the names: `_clk` are clock cycles of
a multiprocessor (or of a core), `_instructions` are of one warp (or of one thread), `_share` are fractions.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ContractCoefficients:
    """Contractions on the lanes of a GPU (`costmodel.kernels.estimator`)."""

    launch_s: float
    block_clk: float
    fetch_clk: float
    #: cycles and instructions of a warp per vector that it copies, and further ones where boxes of rows are
    #: copied
    copy_clk: float
    copy_instructions: float
    box_instructions: float
    clk_per_instruction: float
    clk_per_tap: float
    overlap_loss: float
    issue_efficiency: float
    l2_bytes_per_sm_per_clk: float
    #: wavefronts of a store of one transposed word
    store_wavefronts: float
    epilogue_instructions: float
    #: share of the shorter ones among busy, L2 and DRAM seconds that the longest does not hide
    exposed_share: float
    #: share of the cycles that is lost while a block waits for a fetch and others multiply; share of a
    #: fetch's own traffic that passes while nothing of the block multiplies
    gap_loss_share: float
    fetch_gap_share: float
    #: share of the shorter one of throughput and latency chain that is lost
    uneven_loss_share: float
    #: cycles between two iterations of a block, and the share of its copies that nothing of it overlaps
    barrier_clk: float
    copy_gap_share: float
    #: fetch latencies that show per round of a copy too long to be unrolled, and instructions of each step
    rolled_waits: float
    rolled_instructions: float
    #: cost of a wavefront of a load of several words, beside what its words share
    wide_wavefront_share: float
    #: cycles of the shared-memory port, and of all ports, per line of the cache that a load of the first
    #: operand or of weights looks up; lines of a load of weights
    line_port_clk: float
    line_clk: float
    weight_lines: int
    #: cost of results that lie along whole rows of four words, against others
    aligned_results_share: float
    #: rows that follow one another in memory where a block reads whole rows
    consecutive_rows: int
    #: registers of a thread as the compiler usually grants them, by what the kernel keeps in them
    base_registers: float
    registers_per_accumulator: float
    registers_per_prefetched_word: float
    registers_per_word_in_flight: float
    window_registers: float


@dataclass(frozen=True)
class MatrixCoefficients:
    """Products on tensor cores (`passes.kernels.matrix.estimator`)."""

    block_clk: float
    fetch_clk: float
    l2_bytes_per_sm_per_clk: float
    #: instructions beside the multiplications: per asynchronous copy, and per chunk
    copy_instructions: float
    chunk_instructions: float
    #: instructions per vector that threads copy through registers, per element of it, and the share by which
    #: each instruction that computes an element makes the latter more
    vector_instructions: float
    element_instructions: float
    computed_share: float
    #: cycles of one step along k at least: fragments loaded, dependent multiplications
    step_clk: float
    #: cycles of a multiprocessor's path to the L2 for each line of which an asynchronous copy takes some
    line_clk: float
    #: issue slots of one vector of four results of a warp through the epilogue: of its own, the share that
    #: each further set of warps adds to them, and per instruction of what is computed from a result
    result_instructions: float
    further_set_share: float
    tail_instructions: float
    #: the same per instruction whose outcome several results share, as the words of a call of random bits
    tail_shared_instructions: float
    #: slots of a vector that a warp by roles lays down out of its fragments, where threads store none
    laid_instructions: float
    #: instructions in the text of a warp that lays down a vector: by themselves, for each operation of the
    #: tail on an element, and for each that neighbours share
    laid_code: float
    tail_code: float
    shared_code: float
    #: bytes of such text that a multiprocessor keeps, and that a warp is given per cycle where there is more
    code_bytes: float
    code_bytes_per_clk: float
    #: warps per scheduler that hide one another's latency in the epilogue
    tail_warps: float
    #: cycles until further operands of results are there, and vectors of a thread that wait together
    tail_read_clk: float
    tail_vectors: float
    #: share of the steady rate of multiplications that a loop with loads and copies beside them keeps
    loop_share: float
    #: share of the peak that warpgroups keep in a loop; cycles between the multiplications of two chunks
    #: where the second is issued before the first is done, where it is not, and where the first factor
    #: passes through registers
    warpgroup_share: float
    warpgroup_overlapped_clk: float
    warpgroup_clk: float
    warpgroup_registers_clk: float
    #: the same where other warps copy, and where besides a single warpgroup multiplies at a time; bytes that
    #: the copy engine brings a multiprocessor from the L2; cycles of a team between the last multiplication
    #: of a tile and the first one of its next tile, beside those of the results; the share of results of
    #: one team that the multiplications of the other one wait for; how much longer a copy takes than alone,
    #: in copies of its size, where all multiprocessors copy, and in cycles, where it is from memory
    role_share: float
    role_alone_share: float
    role_bytes_per_sm_per_clk: float
    role_queue_share: float
    memory_clk: float
    role_turn_clk: float
    role_beside_share: float
    #: where a role turns a factor: cycles from the arrival of a chunk until it is handed on, beside those of
    #: each step, in which a thread turns 4 x 4 words
    turn_clk: float
    turn_step_clk: float
    #: blocks of a cluster that share sums: groups of multiprocessors in which clusters lie, how many of each
    #: they can use, and how many groups have two more; cycles that each block of a cluster adds until it
    #: starts; cycles until all have met, and those that each block adds to these; bytes that a block reads of
    #: the others' shared memory
    cluster_groups: float
    cluster_group_sms: int
    cluster_wide_groups: int
    cluster_start_clk: float
    meet_clk: float
    meet_block_clk: float
    cluster_bytes_per_sm_per_clk: float
    #: share of an epilogue's cycles that lays sums down in shared memory
    laid_down_share: float
    #: by which share warpgroups wait longer for late copies where a ring has fewer stages than usual
    short_ring_share: float
    usual_stages: int
    #: where float32 factors are split: issue slots of the pieces of an element, cycles from one product of
    #: pieces to the next of the same sums
    split_instructions: float
    split_latency_clk: float
    #: share of the speed that all other coefficients together let expect of such kernels
    split_share: float
    #: share of the shorter of work and traffic that the longer does not hide: beside other blocks, and what a
    #: block that has the multiprocessor for itself adds to it. Also of attention
    exposed_share: float
    exposed_alone_share: float


@dataclass(frozen=True)
class AttentionCoefficients:
    """Attention in one kernel (`passes.kernels.attention.work`)."""

    #: instructions per element of the softmax: largest, difference, scale, power, sum; to round it to TF32,
    #: or to pack two of 16 bits
    softmax_instructions: float
    round_instructions: float
    pack_instructions: float
    #: instructions per parameter that an element of the scores reads, halves of packed loads included
    read_instructions: float
    #: instructions of a warp per tile of keys beside what it computes: waits, addresses, factors of rows
    tile_instructions: float
    #: instructions of a warp per asynchronous copy: address, bounds
    copy_instructions: float
    #: instructions of a warp per vector of results, and of it per further set of warps
    vector_instructions: float
    set_instructions: float
    #: cycles from issue to issue of dependent instructions of one warp that nothing else of it fills
    chain_clk: float
    #: cycles until the first byte of a block has arrived, and of its last sums to memory
    first_clk: float
    last_clk: float
    #: cycles in which the sets of warps exchange the largest scores and the sums of their rows
    exchange_clk: float
    #: cycles for which a tile of keys keeps its block waiting: barrier, fragments, maxima across lanes
    tile_clk: float
    #: share of the L2's bandwidth that reads by all multiprocessors sustain
    l2_efficiency: float
    #: by roles (`passes.kernels.attention.role_work`): shares of the rate of the tensor cores and of the
    #: issue slots that warpgroups sustain
    role_tensor_share: float
    role_issue_efficiency: float
    #: cycles of a step in which its warpgroup waits: for products, across lanes; and of a tile of queries
    #: between the last step of one and the first of the next
    role_step_clk: float
    role_turn_clk: float
    #: gradients by roles (`passes.kernels.pair_sums.role_work`): instructions of a warp per tile beside
    #: weights; share of the peak of the tensor cores that a loop with waits keeps, and the power by whose
    #: mean that adds up with instructions; how often bytes of shared memory count that products read
    pair_tile_instructions: float
    pair_tensor_share: float
    pair_overlap_power: float
    pair_port_factor: float
    #: cycles of a tile in which a warpgroup waits for a product, and the same with products ahead; from the
    #: request of a tile to its arrival; share of a block's start and end that others beside it do not fill
    pair_wait_clk: float
    pair_wait_ahead_clk: float
    pair_copy_clk: float
    pair_exposed_share: float


@dataclass(frozen=True)
class ChainCoefficients:
    """Chains of stages in one kernel (`passes.kernels.chain`)."""

    #: share of the L2's bandwidth that reads by all multiprocessors sustain
    l2_efficiency: float
    barriers_per_stage: int
    #: cycles of a wait for a read of global memory by the thread that needs it
    read_clk: float
    #: cycles per line of the cache that loads look up for lanes which read far apart
    line_clk: float
    #: share of the issue slots that stages on tensor cores and windows between them use
    tiles_issue_efficiency: float
    #: instructions of one step of a cooperative copy: address, bounds, load, store
    copy_instructions: float
    #: instructions of one point of a map or of one result: address, bounds, store
    point_instructions: float
    #: instructions of one read at a computed place with bounds checks from global memory, and of one whose
    #: neighbours are read by other lanes
    read_instructions: float
    neighbour_read_instructions: float
    #: instructions that one shuffle and what it combines take, latency included
    shuffle_instructions: float
    #: share of the estimated rate at which the steps of a batch's recurrence run, whose text is read once
    batch_steps_efficiency: float


@dataclass(frozen=True)
class WindowCoefficients:
    """Pooling and depthwise windows whose threads compute boxes of outputs (`passes.kernels.window`)."""

    #: instructions of a thread before its first read, of one read or write with its bounds checks, and of one
    #: in runs, whose rows share conditions and addresses
    start_instructions: float
    access_instructions: float
    run_access_instructions: float
    #: of boxes of vectors along channels: share of the issue slots that their loops keep, and the share of
    #: these loops' time that is not hidden behind what threads read before; cycles of a multiprocessor for
    #: each line of the cache that a warp looks up, and for a warp's conversion between 16 and 32 bits
    box_issue_efficiency: float
    box_issue_share: float
    box_line_clk: float
    box_convert_clk: float


@dataclass(frozen=True)
class RowsCoefficients:
    """Reductions along or across rows, and rows staged in shared memory (`passes.kernels.rows`)."""

    #: cycles of one shuffle or step of a tree, and of a barrier with what waits for it
    exchange_clk: float
    barrier_clk: float
    #: instructions of a thread beside its steps, and of one step of a walk beside its elements
    start_instructions: float
    step_instructions: float
    #: of kernels that sum rows and columns: scalar ops for each slot, since a product and a sum are one
    #: instruction; slots of those that are not arithmetic in float32, whose pipe takes half as many
    columns_ops_per_slot: float
    columns_slow_slots: float
    #: of them, too: cycles from one instruction of a warp to its next; registers of a thread beside its
    #: elements, and of each element beside what is kept of it and summed
    columns_issue_clk: float
    columns_registers: float
    columns_element_registers: float
    #: neighbouring bytes asked for at once from which memory is as fast as it gets, and the share of its rate
    #: that every halving costs
    run_bytes: int
    halving_share: float
    #: of staged rows: instructions of a thread besides its copies and steps, of one copy, and of one step
    #: beside its elements; cycles from one addition to the next one on its result
    staged_start_instructions: float
    staged_copy_instructions: float
    staged_step_instructions: float
    add_clk: float


@dataclass(frozen=True)
class StreamCoefficients:
    """Maps and other kernels that move arrays once (`costmodel.kernels.streams`); also windows and rows."""

    #: bytes a multiprocessor must have asked for to keep the memory busy
    bytes_in_flight_per_sm: int
    #: cycles from the start of a block to its first read, beside the read itself
    block_start_clk: float
    #: seconds from the end of a launch to the start of one that waits for it, on whichever stream: the cost
    #: of one more kernel in a row of them, beside its own time. docs/profiling.md says how to measure it
    boundary_s: float
    #: instructions of a thread for its addresses; of a read at a computed place, with its address and bounds
    #: checks; the same in a loop over a window, where little of it is shared between taps
    address_instructions: float
    gather_instructions: float
    tap_instructions: float
    #: cycles for which a thread waits for what each further result reads, once it has written those before
    result_wait_clk: float


@dataclass(frozen=True)
class RelayCoefficients:
    """Launches that start while the one before them runs (`costmodel.kernels.relays`)."""

    #: seconds by which the boundary before such a launch is shorter
    boundary_s: float
    #: the same where blocks of the later launch follow those of the earlier one on their multiprocessors
    turn_s: float
    #: seconds for which such blocks ask for weights before what they wait for can be seen
    turn_weights_s: float
    #: share of the time of a launch that an uneven spread of its blocks costs
    crowding_share: float
    #: seconds for which blocks that hold places stay: until those of the next launch have theirs
    hold_s: float
    #: share of the multiprocessors that can have a block each of a launch in clusters of more than two
    cluster_share: float


@dataclass(frozen=True)
class OrderedCoefficients:
    """Scans, sorts and ordered updates on a GPU (`passes.kernels.ordered`)."""

    #: cycles of one step: a load whose address the step before did not need, and arithmetic
    step_clk: float
    #: instructions of one comparison of a rank, and of one probe of a binary search
    compare_instructions: float
    probe_instructions: float


@dataclass(frozen=True)
class LayoutCoefficients:
    """The choice of layouts for a GPU (`passes.tensor.layouts.cost`)."""

    #: share of the peak that a contraction on the lanes reaches
    simt_share: float
    #: a contraction on tensor cores against one on the lanes, in products per second
    matrix_rate: float
    #: share by which a contraction on the lanes takes longer whose neighbouring threads read distant places
    scattered_share: float
    #: times the bytes of an array that are moved where neighbouring threads touch distant places
    scattered_sectors: float
    #: share of its traffic by which a window kernel takes longer than one with vectors along channels
    window_rows_share: float


@dataclass(frozen=True)
class FusionCoefficients:
    """The costs that decide which ops share a kernel (`passes.tensor.fusion.costs`)."""

    #: instructions of a read with its address, and of one that neighbouring elements share
    read_instructions: int
    shared_read_instructions: int
    #: share of the time for an epilogue's bytes that nothing hides
    exposed_share: float
    #: share of its time that a contraction loses when it computes what it stages: such copies are not
    #: asynchronous
    prologue_share: float
    #: seconds that a prologue costs a reduction at least
    least_prologue_s: float
    #: operands of an epilogue that registers hold without spilling, and instructions per point of each
    #: further one
    free_operands: int
    crowded_instructions: int


@dataclass(frozen=True)
class GpuFusionCoefficients(FusionCoefficients):
    """Those of a GPU: also launches, stores of second results, steps that a prologue makes longer."""

    boundary_s: float
    second_store_share: float
    prologue_s: float
    prologue_step_clk: float


@dataclass(frozen=True)
class CpuContractCoefficients:
    """Contractions on the cores of a CPU (`costmodel.kernels.estimator`)."""

    #: vector registers that a tile needs beside its accumulators, and cycles of a step per spilled vector
    other_registers: int
    spill_clk: float
    #: time of tiles that reach beyond the last channel, against whole ones
    tail_factor: float
    #: share of the second-level cache that operands may fill and still be found there again
    l2_reuse_share: float


@dataclass(frozen=True)
class CpuStreamCoefficients:
    """Maps, windows, rows and walks along lines on the cores of a CPU."""

    #: cycles of a work-item for its addresses, of a read at a computed place, of a row of a window per point
    #: that it reads, and of one step of a scan or of an ordered update
    address_clk: float
    gather_clk: float
    window_point_clk: float
    step_clk: float
    #: seconds from the end of a launch to the start of one that waits for it
    boundary_s: float


@dataclass(frozen=True)
class CpuLayoutCoefficients:
    """The choice of layouts, and of arrays for padded factors, for a CPU."""

    #: share of the peak that a contraction reaches
    simt_share: float
    #: times the bytes of an array that are moved where neighbouring work-items touch distant places
    scattered_sectors: float
    #: share of its traffic by which a window kernel takes longer than one with vectors along channels, and by
    #: which a contraction does whose results are not written along its vectors
    window_rows_share: float
    result_rows_share: float
    #: share by which a contraction takes longer whose first factor has rows innermost, not channels
    factor_rows_share: float
    #: cycles to make one element of a factor with its bounds checks
    factor_element_clk: float
