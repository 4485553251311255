"""Estimate and lower bound of attention by roles: warpgroups that multiply one tile under another's softmax.

A step of a warpgroup is the scores of a tile of keys, their softmax, and the mix of the tile before, which
runs beside the softmax. Its time is the maximum cycle ratio of who waits for whom; what all warpgroups of a
multiprocessor share (tensor cores, exponentials, issue slots, the port of shared memory, reads of the L2)
bounds it from below. `role_works` gives all plans that may be sensible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

from tilewright.costmodel import GpuHardware
from tilewright.costmodel.kernels.bound import Bound
from tilewright.costmodel.kernels.cycle_ratio import Edge, maximum_cycle_ratio
from tilewright.ir.hardware_facts import (
    EXPONENTIALS_PER_SM_PER_CLK,
    MMA_K_BYTES,
    MMA_M,
    MMA_N,
    REGISTER_UNIT,
    WARP,
    WARPGROUP_WARPS,
)
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.attention import INNER, KEY
from tilewright.passes.analysis.terms import Read, leaves
from tilewright.passes.kernels.attention.bands import BandedScore, banded_score
from tilewright.passes.kernels.attention.blocks import PRODUCT_REGISTERS
from tilewright.passes.kernels.attention.epilogue import PIECE_COLUMNS, PIECE_PAD
from tilewright.passes.kernels.attention.panels import ALIGNMENT, PanelShape, engine_map, waits_of
from tilewright.passes.kernels.attention.parameters import (
    COPIER_WARPS,
    GROUP_ROWS,
    MOST_COLUMNS,
    WARPGROUPS,
    AttentionParameters,
    width_tiles,
)
from tilewright.passes.kernels.attention.roles import Turns, by_rows, role_registers, steps_of
from tilewright.passes.kernels.attention.scores import reads_of_scores
from tilewright.passes.kernels.attention.term_writer import term_work
from tilewright.passes.kernels.attention.view import AttentionView

#: registers of a thread beside sums, weights and what is read ahead, as compiled for sm_90a
_REGISTERS = 32
#: bytes of an element of the factors, which are of 16 bits
_BYTES = 2


@dataclass(frozen=True)
class RoleWork:
    """Attention by roles with chosen parameters.

    heads: batches of queries, keys and values; queries, keys, inner, width: extents of one; rows, tile:
    queries and keys of a tile; counts: tiles of keys that each tile of queries meets; stages: slots of keys
    and of values. blocks, teams: of the plan; resident: blocks per multiprocessor;
    registers: that a thread has which multiplies; ahead_bytes: of parameters that it reads ahead per tile.
    shared_bytes: per block; least_bytes: inputs and results once, at least; moved_bytes: all that is read and
    written, each element once. map_work, map_reads: instructions and reads of parameters per element of the
    scores; mask_work: the same where a tile is masked, `masked` tiles for each tile of queries. written:
    instructions of the copying role per element of the factors that it computes; waits, query_waits: times
    that it waits for what it reads for them, per tile of keys and per tile of queries.
    """

    heads: int
    queries: int
    keys: int
    inner: int
    width: int
    rows: int
    tile: int
    counts: tuple[int, ...]
    masked: int
    stages: int
    blocks: int
    teams: int
    resident: int
    registers: int
    ahead_bytes: int
    shared_bytes: int
    least_bytes: int
    moved_bytes: int
    map_work: float
    map_reads: float
    mask_work: float
    written: float
    waits: int
    query_waits: int

    @property
    def groups(self) -> int:
        """Warpgroups of a block that multiply."""
        return self.rows // GROUP_ROWS

    @property
    def threads(self) -> int:
        return WARP * (COPIER_WARPS + WARPGROUP_WARPS * self.groups)

    @property
    def row_tiles(self) -> int:
        """Tiles of queries."""
        return self.heads * len(self.counts)

    @property
    def steps(self) -> int:
        """Tiles of keys that all tiles of queries meet."""
        return self.heads * sum(self.counts)

    @property
    def depth(self) -> int:
        """The inner extent as it is multiplied."""
        unit = MMA_K_BYTES // _BYTES
        return -(-self.inner // unit) * unit

    @property
    def columns(self) -> int:
        """The width as it is multiplied."""
        return -(-self.width // MMA_N) * MMA_N

    @property
    def least_registers(self) -> int:
        """Per thread that multiplies, without which some would be spilled: scores, mix, weights."""
        return _REGISTERS + (self.tile + self.columns) // 2 + self.tile // 4 + -(-self.ahead_bytes // 4)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile of keys and one of values."""
        return _BYTES * self.tile * (self.inner + self.width)

    @property
    def flops(self) -> float:
        """Operations of both products, hidden pairs included."""
        return 2.0 * self.heads * self.queries * self.keys * (self.inner + self.width)


def resident_roles(work: RoleWork, hardware: GpuHardware) -> int:
    """Blocks that fit one multiprocessor at once, as planned or 0."""
    if work.shared_bytes > hardware.smem_per_block_max_bytes or work.least_registers > work.registers:
        return 0
    room = hardware.smem_per_sm_bytes // (work.shared_bytes + hardware.smem_reserved_per_block_bytes)
    share = hardware.registers_per_sm // work.resident // work.threads // REGISTER_UNIT * REGISTER_UNIT
    sums = max(work.tile, work.columns) // 2  # of a thread, of one product
    fits = work.resident <= room and sums + PRODUCT_REGISTERS <= share
    return work.resident if fits else 0


@dataclass(frozen=True)
class _Step:
    """Cycles of one step of a warpgroup, and of what a step takes of each thing that warpgroups share."""

    scores: float
    mix: float
    softmax: float
    shared: dict[str, float]


def _step(work: RoleWork, hardware: GpuHardware) -> _Step:
    fit = hardware.attention
    rate = hardware.tensor_fma_16bit_per_sm_per_clk * hardware.wgmma_share
    scores, mix = (GROUP_ROWS * work.tile * n / rate for n in (work.depth, work.columns))
    elements = work.tile * GROUP_ROWS / (WARP * WARPGROUP_WARPS)  # of a thread
    each = fit.softmax_instructions + fit.pack_instructions + work.map_work
    each += fit.read_instructions * work.map_reads
    issued = elements * each + fit.tile_instructions
    issue = issued / fit.role_issue_efficiency
    powers = GROUP_ROWS * work.tile / EXPONENTIALS_PER_SM_PER_CLK
    read = _BYTES * (GROUP_ROWS + work.tile) * work.depth + _BYTES * work.tile * work.columns
    shared = {
        "tensor": (scores + mix) / fit.role_tensor_share,
        "exp": powers,
        "issue": issue,
        "port": read / hardware.smem_bytes_per_sm_per_clk,
        "l2": work.tile_bytes / work.groups / hardware.matrix.role_bytes_per_sm_per_clk,
    }
    return _Step(scores, mix, max(issue, powers), shared)


def _round_clk(step: _Step, work: RoleWork, hardware: GpuHardware) -> float:
    """Cycles from step to step of a warpgroup: its products wait behind those of all others.

    What it does with sums that are done (maxima, factors, packing) hides behind no product of its own.
    """
    fit, together = hardware.attention, work.groups * work.resident
    scores, mix = (together * t / fit.role_tensor_share for t in (step.scores, step.mix))
    fetch = fit.first_clk + work.tile_bytes / hardware.matrix.role_bytes_per_sm_per_clk
    return maximum_cycle_ratio(
        (
            Edge("scores", "softmax", scores),
            Edge("scores", "mix", scores),
            Edge("softmax", "scores", step.softmax + fit.role_step_clk, 1),
            Edge("mix", "scores", mix + fit.role_step_clk, 1),
            Edge("copy", "scores", fetch),
            Edge("scores", "copy", scores, work.stages),
            Edge("mix", "copy", mix, work.stages),
        )
    ).clk


def estimate_roles(work: RoleWork, hardware: GpuHardware) -> float:
    """Estimated seconds; inf where a block cannot be resident."""
    fit = hardware.attention
    fits = resident_roles(work, hardware)
    if not fits:
        return float("inf")
    step = _step(work, hardware)
    alone, slots = _round_clk(step, work, hardware), hardware.sm_count * fits
    shared = work.groups * max(step.shared.values())
    masks = work.masked * work.tile / 2 * work.mask_work / fit.role_issue_efficiency
    copied = work.written * work.tile * (work.inner + work.width) / (WARP * COPIER_WARPS)
    copied += work.waits * hardware.chain.read_clk
    # the first softmax and the last mix of a tile of queries run beside nothing of its own
    vectors = GROUP_ROWS * work.width / 4.0 / (WARP * WARPGROUP_WARPS) * fit.vector_instructions
    turn = step.scores + step.mix + masks + vectors * fit.chain_clk + fit.role_turn_clk
    turn += work.query_waits * hardware.chain.read_clk
    start = fit.first_clk + _BYTES * work.rows * work.inner / hardware.matrix.role_bytes_per_sm_per_clk
    one = max(alone, copied, shared * fits)

    def block(counts: Sequence[int]) -> float:
        return sum(n * one + turn for n in counts)

    if work.blocks:  # blocks take as much as the others, the copies of a turn come during the one before
        turns = (
            -(-work.row_tiles // work.blocks) if len(set(work.counts)) == 1 else work.row_tiles / work.blocks
        )
        mean = sum(work.counts) / len(work.counts)
        busy = hardware.contract.block_clk + start + turns * block([1]) + turns * (mean - 1) * one
        busy = max(busy, work.steps * shared * fits / slots)
    else:
        each = [hardware.contract.block_clk + start + block([n]) for n in work.counts]
        whole = work.heads * sum(each)
        if len(set(work.counts)) == 1:
            busy = -(-work.row_tiles // slots) * each[0]
        else:  # the longest start first, and what remains at the end is about half of a short one
            busy = max(whole / slots + min(each) / 2, max(each))
        busy = max(busy, work.steps * shared / hardware.sm_count)
    dram_s = work.moved_bytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)
    busy_s = busy / hardware.clock_hz
    exposed = hardware.matrix.exposed_share
    return hardware.contract.launch_s + max(busy_s, dram_s) + exposed * min(busy_s, dram_s)


def bound_roles(work: RoleWork, hardware: GpuHardware) -> Bound:
    """The sound lower bound: compulsory bytes from warm caches, products and exponentials, launch."""
    pairs = float(work.steps * work.rows * work.tile) / hardware.sm_count
    if work.queries % work.rows or work.keys % work.tile:  # tiles at an edge may hold less
        pairs = min(pairs, float(work.heads * work.queries * work.keys) / hardware.sm_count)
    rate = hardware.tensor_fma_16bit_per_sm_per_clk * hardware.wgmma_share
    terms = {
        "L2": work.least_bytes / hardware.l2_bytes_per_s,
        "TENSOR": pairs * (work.inner + work.width) / rate / hardware.clock_hz,
        "EXP": pairs / EXPONENTIALS_PER_SM_PER_CLK / hardware.clock_hz,
        "LAUNCH": hardware.launch_floor_s,
    }
    limit = max(terms, key=terms.__getitem__)
    seconds = terms[limit]
    return Bound(min(1.0, work.flops / (seconds * hardware.peak_flops_per_s)), seconds, limit, seconds)


ROWS = (64, 128, 192)
#: longer tiles took longer per key on an H200
KEYS = (32, 64, 80, 96, 128)
STAGES = (2, 3)
RESIDENT = (1, 2, 3)
#: tiles of queries in a batch at most: blocks are told apart one by one when channels are checked
MOST_ROW_TILES = 512


@dataclass(frozen=True)
class _Facts:
    """What all plans of a kernel have in common: the view by rows, its score, its traffic."""

    view: AttentionView
    score: BandedScore
    least_bytes: int
    moved_bytes: int


def role_works(
    view: AttentionView, least_bytes: int, moved_bytes: int, hardware: GpuHardware
) -> Iterator[tuple[AttentionParameters, RoleWork]]:
    """Every sensible plan by roles, with its work; none where the device or the factors have no warpgroups.

    least_bytes, moved_bytes: of the kernel's parameters and results, see `RoleWork`.
    """
    if not hardware.wgmma_share or itemsize(view.dtype) != 2:
        return
    rows = by_rows(view)
    facts = _Facts(rows, banded_score(rows), least_bytes, moved_bytes)
    if max(view.inner, facts.view.size(view.width)) > MOST_COLUMNS:
        return
    for plan in _plans(facts, hardware):
        yield plan, _work(facts, plan)


def _plans(facts: _Facts, hardware: GpuHardware) -> Iterator[AttentionParameters]:
    view = facts.view
    queries = view.size(view.rows)
    for rows, keys, stages, resident in product(ROWS, KEYS, STAGES, RESIDENT):
        if rows >= 2 * max(queries, GROUP_ROWS // 2 + 1) or keys >= 2 * view.keys:
            continue
        if -(-queries // rows) > MOST_ROW_TILES:
            continue
        groups = rows // GROUP_ROWS
        plan = AttentionParameters(rows, keys, groups * 4, stages, resident, engine=WARPGROUPS)
        steps = steps_of(view, plan, facts.score.band)
        stays = hardware.sm_count * resident
        for blocks in (0, stays):
            order = replace(plan, blocks=blocks)
            turns = Turns.of(view, order, steps)
            if turns is not None and (not blocks or turns.turns > 1):
                yield from (replace(order, teams=teams) for teams in sorted({1, groups}))


def _work(facts: _Facts, plan: AttentionParameters) -> RoleWork:
    view, score = facts.view, facts.score
    steps = steps_of(view, plan, score.band)
    (row,) = view.rows
    width, size = view.size(view.width), itemsize(view.dtype)
    slots = plan.slots(view)
    q = PanelShape.of(plan.rows, view.inner, view.dtype)
    k = PanelShape.of(plan.keys, view.inner, view.dtype)
    v = PanelShape.of(plan.keys, width, view.dtype)
    piece = gcd(width_tiles(view) * MMA_N, PIECE_COLUMNS) + PIECE_PAD
    shared = size * (q.elements + slots * (k.elements + v.elements)) + plan.warps * MMA_M * piece * 4
    factors = ((view.q, row, (INNER,), q), (view.k, KEY, (INNER,), k), (view.v, KEY, view.width, v))
    computed = [
        t for t, names, inner, shape in factors if engine_map(view, t, names, inner, shape, 0) is None
    ]
    waits = {t: waits_of(t, shape, view.dtype) for t, _, _, shape in factors if t in computed}
    reads = dict.fromkeys(x for t in (score.inner, view.dropped) for x in leaves(t) if isinstance(x, Read))
    ahead, shares = reads_of_scores(view, plan, reads)
    return RoleWork(
        heads=view.size(view.batch),
        queries=view.size(view.rows),
        keys=view.keys,
        inner=view.inner,
        width=width,
        rows=plan.rows,
        tile=plan.keys,
        counts=tuple(steps.counts),
        masked=steps.masked,
        stages=slots,
        blocks=plan.blocks,
        teams=plan.teams,
        resident=plan.resident,
        registers=role_registers(plan, by_engine=not computed)[1] or MOST_COLUMNS,
        ahead_bytes=ahead,
        shared_bytes=shared + ALIGNMENT,
        least_bytes=facts.least_bytes,
        moved_bytes=facts.moved_bytes,
        map_work=float(term_work(score.inner) + term_work(view.dropped)),
        map_reads=shares,
        mask_work=float(term_work(score.mask)) if score.mask is not None else 0.0,
        written=float(sum(10 + term_work(t) for t in computed)),
        waits=sum(waits.get(t, 0) for t in (view.k, view.v)),
        query_waits=waits.get(view.q, 0),
    )
