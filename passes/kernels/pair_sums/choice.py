"""Chooses the tiles and the warps of a kernel of sums over pairs by the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod

import numpy as np

from tilewright.costmodel import GpuHardware, Hardware
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.ir import Func
from tilewright.ir.hardware_facts import MMA_M, MMA_N
from tilewright.ir.thread.warpgroup_ops import GROUP_M
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.terms import Apply, Read, Term, leaves, names_in, peeled
from tilewright.passes.kernels.attention.blocks import products_per_clk, residents
from tilewright.passes.kernels.attention.epilogue import PIECE_COLUMNS, PIECE_PAD
from tilewright.passes.kernels.attention.parameters import padded
from tilewright.passes.kernels.attention.term_writer import term_work
from tilewright.passes.kernels.decision import decided, parameters_of
from tilewright.passes.kernels.kernel_problem import traffic
from tilewright.passes.kernels.pair_sums.engine_tiles import RoleTiles, role_tiles
from tilewright.passes.kernels.pair_sums.parameters import COPIERS, PairParameters, block_band
from tilewright.passes.kernels.pair_sums.role_work import estimate_roles
from tilewright.passes.kernels.pair_sums.roles import loads_of_blocks, role_stages, words_before
from tilewright.passes.kernels.pair_sums.tiles import PairTiles, pair_tiles
from tilewright.passes.kernels.pair_sums.view import PairView, band, pair_view
from tilewright.passes.kernels.pair_sums.weight_stages import WeightStages, weight_stages
from tilewright.passes.kernels.pair_sums.weights import MOST_AHEAD, MOST_WORDS, pair_elements
from tilewright.passes.kernels.pair_sums.work import PairWork, bound_pairs, estimate_pairs
from tilewright.passes.kernels.writing.common_reads import in_words, share

ROWS = (16, 32, 64, 128, 256)
TILES = (16, 32, 64, 128)
WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3)
#: tiles of 16 rows that one warp may have: more would not fit registers
MOST_ROW_TILES = 2
#: rows of blocks by roles, tiles of others and their slots
ROLE_ROWS, ROLE_TILES, ROLE_STAGES = (64, 128, 192), (32, 48, 64, 80, 96, 128, 160, 192), (2, 3, 4)
#: bytes that alignments of tiles leave free, and barriers
ROLE_ALIGNMENT = 2048
#: blocks of all batches are mixed, whose factors the L2 then shares less, where that gains so much
CLEARLY = 0.85
#: points worth a measurement
MEASURED = 24


@dataclass(frozen=True)
class PairPoint:
    """A plan that fits the device, and its estimated seconds."""

    plan: PairParameters
    work: PairWork
    estimate_s: float


def pair_points(kernel: Func, hardware: Hardware) -> list[PairPoint]:
    """All plans of a kernel that fit the device, those of the smallest estimate first; none where it has no
    tensor cores for such factors, or the kernel is no such sums.
    """
    view = pair_view(kernel)
    if view is None or not isinstance(hardware, GpuHardware) or not products_per_clk(view.dtype, hardware):
        return []
    least, maps = traffic(kernel), _Maps.of(view)
    points = _role_points(kernel, view, maps, hardware)
    for plan in _plans(view):
        work = _work(view, plan, least, maps)
        for resident in residents(work, hardware):
            limited = replace(work, resident=resident)
            seconds = estimate_pairs(limited, hardware)
            points.append(PairPoint(replace(plan, resident=resident), limited, seconds))
    return sorted((p for p in points if p.estimate_s < inf), key=lambda p: (p.estimate_s, p.plan.resident))


def _role_points(kernel: Func, view: PairView, maps: _Maps, hardware: GpuHardware) -> list[PairPoint]:
    """Those plans whose roles copy and multiply: where the device has warpgroups, and all comes in boxes."""
    if hardware.wgmma_share <= 0 or itemsize(view.dtype) != 2:
        return []
    least = traffic(kernel)
    weights = [peeled(s.weight) for s in view.sums]
    found = {None: weight_stages(view, weights), maps.band: weight_stages(view, weights, maps.band)}
    points = []
    for rows, tile in product(ROLE_ROWS, ROLE_TILES):
        if rows >= 2 * padded(view.own, GROUP_M) or tile >= 2 * padded(view.others, TILES[0]):
            continue
        tiles = role_tiles(kernel, view, rows, tile)
        if tiles is None:
            continue
        shape = PairParameters(rows, tile, rows // MMA_M, ROLE_STAGES[0], engine="wgmma")
        limits = block_band(view, shape, maps.band)
        loads = loads_of_blocks(view, shape, limits)
        for depth, ahead, resident in product(ROLE_STAGES, (False, True), (1, 2, 3)):
            count = -(-view.others // tile)
            if depth > max(2, count) or (ahead and count == 1):
                continue
            plan = PairParameters(
                rows, tile, rows // MMA_M, depth, resident=resident, engine="wgmma", ahead=ahead
            )
            stages = role_stages(plan, found[limits])
            work_of_pair = term_work(*(stages.whole or stages).weights)  # of most tiles
            if view.others % tile:
                work_of_pair += 2 * len(view.sums)  # what is not there gets weights of 0
            own = replace(maps, work=float(work_of_pair))
            work = _role_work(view, plan, tiles, least, own, stages, loads)
            points.append(PairPoint(plan, work, estimate_roles(work, hardware)))
            if work.loads and work.batches > 1:
                spread = replace(work, spread=True)
                seconds = estimate_roles(spread, hardware)
                if seconds < CLEARLY * points[-1].estimate_s:
                    points.append(PairPoint(replace(plan, spread=True), spread, seconds))
    return points


def _role_work(
    view: PairView,
    plan: PairParameters,
    tiles: RoleTiles,
    least_bytes: int,
    maps: _Maps,
    stages: WeightStages,
    loads: tuple[int, ...],
) -> PairWork:
    """The work of a block by roles; loads: those of the blocks of a batch."""
    ring = plan.slots(view) * tiles.fetched_bytes
    pieces = plan.warps * MMA_M * (PIECE_COLUMNS + PIECE_PAD) * 4
    rows = [r for r in view.reads if names_in(r) & set(view.rows) and not names_in(r) & set(view.other)]
    return PairWork(
        batches=view.size(view.batch),
        own=view.own,
        others=view.others,
        inner=tuple(view.sizes[p.inner] for p in view.products),
        widths=tuple(view.size(s.width) for s in view.sums),
        dtype=view.dtype,
        rows=plan.rows,
        tile=plan.tile,
        warps=plan.warps,
        held=False,
        shared_bytes=tiles.own_bytes + ring + pieces + ROLE_ALIGNMENT,
        least_bytes=least_bytes,
        moved_bytes=maps.moved_bytes,
        fetched_bytes=tiles.fetched_bytes,
        own_bytes=tiles.own_bytes,
        map_work=maps.work,
        map_reads=sum(_read_share(r, view, plan) for r in maps.reads),
        powers=maps.powers,
        ahead_bytes=8 * len(rows) + _word_bytes(view, plan),
        seen=_seen(view, plan, maps.band),
        copy_bytes=0,
        resident=plan.resident,
        engine=plan.engine,
        ahead=plan.ahead,
        copiers=COPIERS,
        limit=plan.registers,
        early=len(stages.early),
        apart=sum(stages.weights[i] != stages.part for i in stages.early),
        line_words=0 if words_before(view) else _line_words(view, plan),
        paths=1 if stages.whole is None else 2,
        read_singly=sum(not in_words(r.at, (view.rows, view.other), view.sizes) for r in maps.reads),
        slots=plan.slots(view),
        loads=loads,
        spread=plan.spread,
    )


def choose_pair_sums(kernel: Func, hardware: Hardware) -> Func | None:
    """The kernel with the parameters of the smallest estimate; None where it is no such kernel."""
    points = pair_points(kernel, hardware)
    if not points or not isinstance(hardware, GpuHardware):
        return None
    return _variant(kernel, points[0], hardware, len(points))


def pair_variants(kernel: Func, hardware: Hardware) -> list[Func]:
    """The kernel, and those with other parameters of the smallest estimates, to be measured."""
    if not isinstance(hardware, GpuHardware):
        return []
    points = pair_points(kernel, hardware)
    made = [_variant(kernel, p, hardware, len(points)) for p in points[:MEASURED]]
    own = parameters_of(kernel, PairParameters)
    return [kernel, *(f for f in made if parameters_of(f, PairParameters) != own)]


def _variant(kernel: Func, point: PairPoint, hardware: GpuHardware, considered: int) -> Func:
    bound = bound_pairs(point.work, hardware)
    choice = ParameterChoice(point.plan, bound, point.estimate_s, considered)
    return decided(kernel, "pair_sums", choice)


@dataclass(frozen=True)
class _Maps:
    """What plans have in common: instructions and exponentials per pair, what is read per pair, bytes moved,
    and the band.
    """

    work: float
    #: of both sides
    reads: tuple[Read, ...]
    powers: int
    moved_bytes: int
    #: the `band` of the view
    band: tuple[int, int] | None

    @classmethod
    def of(cls, view: PairView) -> _Maps:
        weights = [peeled(s.weight) for s in view.sums]
        total = sum(o.value.tensor.nbytes for outputs in view.outputs for o in outputs)
        terms = [*weights, *(s.factor for s in view.sums), *(p.own for p in view.products)]
        terms += [p.other for p in view.products]
        for read in dict.fromkeys(x for t in terms for x in leaves(t) if isinstance(x, Read)):
            elements = prod(view.sizes[d] for d in names_in(read))
            size = itemsize(read.value.tensor.dtype)
            total += min(elements * size, read.value.tensor.nbytes)
        powers = {t for w in weights for t in _applied(w) if t.name in ("scalar.exp", "scalar.exp2")}
        both = [r for r in view.reads if names_in(r) & set(view.rows) and names_in(r) & set(view.other)]
        return cls(float(term_work(*weights)), tuple(both), len(powers), total, band(view))


def _applied(term: Term) -> set[Apply]:
    """The scalar ops of a term."""
    todo, found = [term], set[Apply]()
    while todo:
        part = todo.pop()
        if isinstance(part, Apply) and part not in found:
            found.add(part)
            todo += part.args
    return found


def _work(view: PairView, plan: PairParameters, least_bytes: int, maps: _Maps) -> PairWork:
    """The work of a block with these parameters."""
    tiles = pair_tiles(view, plan)
    size = itemsize(view.dtype)
    staged = sum(prod(x.shape) for x in tiles.own)
    staged += plan.slots(view) * sum(prod(x.shape) for x in tiles.others)
    widths = tuple(view.size(s.width) for s in view.sums)
    result = plan.rows * (max(padded(n, MMA_N) for n in widths) + 8) * 4
    return PairWork(
        batches=view.size(view.batch),
        own=view.own,
        others=view.others,
        inner=tuple(view.sizes[p.inner] for p in view.products),
        widths=widths,
        dtype=view.dtype,
        rows=plan.rows,
        tile=plan.tile,
        warps=plan.warps,
        held=plan.held,
        shared_bytes=max(staged * size, result),
        least_bytes=least_bytes,
        moved_bytes=maps.moved_bytes,
        fetched_bytes=size * plan.tile * sum(view.size(x.inner) for x in tiles.others),
        own_bytes=size * plan.rows * sum(view.size(x.inner) for x in tiles.own),
        map_work=maps.work,
        map_reads=sum(_read_share(r, view, plan) for r in maps.reads),
        powers=maps.powers,
        ahead_bytes=_ahead_bytes(view, plan),
        seen=_seen(view, plan, maps.band),
        copy_bytes=_copy_bytes(tiles, size),
    )


def _copy_bytes(tiles: PairTiles, size: int) -> int:
    return min(x.lanes * size for x in tiles.others)


def _ahead_bytes(view: PairView, plan: PairParameters) -> int:
    """Bytes of parameters that a thread holds: by row for all tiles, by others for one."""
    total = 0
    for read in view.reads:
        names = names_in(read)
        each = itemsize(read.value.tensor.dtype)
        columns = plan.tile // MMA_N * 2
        if not names & set(view.other):
            total += 4 * (2 * plan.row_tiles if names & set(view.rows) else 1)
        elif not names & set(view.rows) and columns <= MOST_AHEAD:
            total += each * columns
    return total + _word_bytes(view, plan)


def _word_bytes(view: PairView, plan: PairParameters) -> int:
    """Bytes of words, each for several pairs, that a thread reads ahead for a tile."""
    total = 0
    for read in view.reads:
        if _is_words(read, view):
            count = prod(pair_elements(read, view, plan))
            total += count * itemsize(read.value.tensor.dtype) if count <= MOST_WORDS else 0
    return total


def _line_words(view: PairView, plan: PairParameters) -> int:
    """Words that a thread reads for a tile, one for each of its others."""
    columns = plan.tile // MMA_N * 2
    counts = [pair_elements(r, view, plan) for r in view.reads if _is_words(r, view)]
    return sum(prod(n) for n in counts if n[1] * n[3] == columns)


def _is_words(read: Read, view: PairView) -> bool:
    """Whether words of a parameter of both sides hold a bit for several pairs."""
    both = all(names_in(read) & set(side) for side in (view.rows, view.other))
    return both and in_words(read.at, (view.rows, view.other), view.sizes)


def _read_share(read: Read, view: PairView, plan: PairParameters) -> float:
    """Reads of a parameter for each pair."""
    extents, shape = pair_elements(read, view, plan), (plan.row_tiles, plan.tile // MMA_N, 2, 2)
    return share(extents, shape, words=in_words(read.at, (view.rows, view.other), view.sizes))


def _seen(view: PairView, plan: PairParameters, limits: tuple[int, int] | None) -> float:
    """Return the share of all tiles of others of all warps that make pairs which count."""
    limits = block_band(view, plan, limits)
    tiles = plan.tiles(view)
    if limits is None or tiles == 1:
        return 1.0
    rows, others = view.sizes[view.rows[-1]], view.sizes[view.other[-1]]
    each = plan.rows if plan.by_roles else plan.rows // plan.warps  # rows that walk together
    first = np.arange(0, view.own, each)[:, None] % rows
    start = np.arange(0, view.others, plan.tile)[None, :] % others
    least, most = limits
    counted = (start <= first + each - 1 + most) & (start + plan.tile - 1 >= first + least)
    return float(counted.mean())


def _plans(view: PairView) -> Iterator[PairParameters]:
    """Every sensible combination of tiles, warps and stages."""
    own, others = padded(view.own, MMA_M), padded(view.others, TILES[0])
    for rows, tile, warps, held in product(ROWS, TILES, WARPS, (False, True)):
        if rows % (MMA_M * warps) or rows // warps // MMA_M > MOST_ROW_TILES:
            continue
        if rows >= 2 * own or tile > others:
            continue
        tiles = -(-view.others // tile)
        for stages in STAGES:
            if stages <= tiles and (stages > 1 or tiles == 1):
                yield PairParameters(rows, tile, warps, stages, held)
