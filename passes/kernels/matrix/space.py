"""Tensor-core contractions: the problem as a matrix product, implementation parameters, all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import prod

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.geometry import ceil_div, resident_blocks
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.ir.errors import InputError
from tilewright.ir.float_pieces import PIECES
from tilewright.ir.hardware_facts import (
    ASYNC_COPY_BYTES,
    LINE_BYTES,
    MMA_K_BYTES,
    MMA_M,
    MMA_N,
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    WARP,
    WARPGROUP_WARPS,
)
from tilewright.ir.thread.split_ops import PRODUCTS
from tilewright.ir.thread.warpgroup_ops import GROUP_M, MOST_N, ROW_BYTES
from tilewright.passes.kernels.matrix.parameters import (
    GROUP_CHUNK,
    LEAST_COLUMN_SLOTS,
    LONG_COLUMNS,
    PIECE_COLUMNS,
    PIECE_PADS,
    ROLE_TURNERS,
    SPLIT_SLOTS,
    TURNED_SLOTS,
    TURNER_REGISTERS,
    WARPGROUPS,
    MatrixParameters,
    MatrixTile,
    Warps,
    holds_members,
    piece_columns,
)
from tilewright.passes.kernels.matrix.view import LEAST_GROUP_SUM, LEAST_STORED_SUM
from tilewright.passes.kernels.writing.cluster_sums import SUM_PADS
from tilewright.passes.kernels.writing.engine_results import PIECES as LAID_PIECES
from tilewright.passes.kernels.writing.engine_results import ROW_BYTES as PIECE_ROW_BYTES
from tilewright.passes.kernels.writing.engine_results import SWIZZLES

#: registers of a thread beside sums and fragments
OTHER_REGISTERS = 32
#: where windows move over an image, for where they are
WINDOW_REGISTERS = 16
#: of an element that a thread computes or copies ahead of its multiplications, per instruction of its
#: computation; how many elements find room among those
COPIED_REGISTERS, COMPUTED_REGISTERS, FREE_REGISTERS = 2.0, 0.25, 30
#: registers of one fragment of either factor
A_REGISTERS, B_REGISTERS = 4, 2
#: bytes of a piece of a split factor
PIECE_BYTES = 2
#: of warps that split both factors, beside the pieces: addresses of all fragments of a chunk, what is loaded
#: ahead; and where results are computed from further tensors
AHEAD_REGISTERS, RESIDUAL_REGISTERS = 60, 16
#: of one tile of sums
SUM_REGISTERS = 4
#: tiles whose products are added in turns, where factors are split
MOST_TOGETHER = 4
#: of a warpgroup instead of fragments: descriptors
GROUP_REGISTERS = 16
#: stages of the ring from which on warpgroups read two at a time
OVERLAP_STAGES = 4
#: stages at least where they do: with two, copies wait for the multiplication, and took twice their estimate
LEAST_HELD_STAGES = 3
#: how often an element that roles load to registers counts as read from shared memory
HELD_READS = 2
#: bytes of a sum
SUM_BYTES = 4
#: words added to each row of the tile of sums
SUM_PAD_WORDS = 8
#: columns of a piece of what is summed, its padding included, at most
SUMMED_COLUMNS = LONG_COLUMNS + PIECE_PADS[False]
#: registers of a lane that adds up columns: what it has loaded of its rows
SUMMED_REGISTERS = 16
#: sums of a thread, and of one of a warpgroup, which holds no fragments beside them
MAX_SUMS, MOST_GROUP_SUMS = 128, 192
#: warps that copy; a kernel's registers per thread at most as it is launched
ROLE_COPIERS, MOST_ROLE_REGISTERS = 4, 248
#: sums of a thread by roles at least, those of three warpgroups that share a tile, and tiles per so many
#: multiprocessors
LEAST_ROLE_SUMS, LEAST_SUMS_OF_THREE = 64, 48
#: those of several blocks of a multiprocessor at least, and of blocks that share sums; registers of a thread
#: that hands boxes to the engine
LEAST_RESIDENT_SUMS, COPIER_REGISTERS = 32, 40
#: the most of three, for which the block has fewer registers
MOST_SUMS_OF_THREE = 96
LEAST_ROLE_TILES, PER_MULTIPROCESSORS = 3, 8
#: rows and columns of the smallest tile whose last turn may be shared: no product of fewer such tiles than
#: multiprocessors has a full turn
LEAST_LEFT_TILE = 64
#: sums of a thread at most where they are promoted: it holds those of a chunk beside them
MOST_PROMOTED_SUMS = 96
#: rows and columns of a tile that several blocks may share, if such are few, and of the largest one that two
#: may; elements of its sums at least
SHARED_TILE, LARGE_SHARED_TILE, LEAST_SHARED_SUM = 128, 192, 1024
#: bytes of a block's barriers by roles
ROLE_BARRIER_BYTES = 256
#: stages of a ring at least beside results that are laid down, and bytes for barriers and alignment
LEAST_LAID_STAGES, BESIDE_RING_BYTES = 3, 4096
#: blocks along m that are taken before the next ones along n: what they read then stays in the L2
MOST_RASTER = 8

_M = (16, 32, 64, 96, 128, 192, 256)
_N = (16, 32, 48, 64, 96, 128, 192, 256)
#: columns of tiles by roles, further ones of which come out in whole waves more often
_ROLE_N = (16, 32, 48, 64, 96, 128, 144, 160, 192, 224, 240, 256)
#: columns of tiles of factors that are stored in pieces, where sums are promoted
_STORED_N = (64, 96, 128, 144, 160, 176, 192)
#: bytes of a chunk's row that one warp multiplies
_K_BYTES = (32, 64, 128)
#: warps along m, n and k
_WARPS = (
    *((1, 1, 1), (1, 2, 1), (2, 1, 1), (2, 2, 1), (1, 4, 1), (4, 1, 1), (2, 4, 1), (4, 2, 1)),
    *((1, 1, 2), (1, 2, 2), (2, 1, 2), (2, 2, 2), (1, 1, 4), (1, 2, 4), (2, 1, 4), (2, 2, 4), (1, 1, 8)),
)
#: the same of warpgroups: one, two along m, two along n
_GROUP_WARPS = ((4, 1, 1), (8, 1, 1), (4, 2, 1))
#: warps of a team and teams: two warpgroups together, or each with tiles of its own
_ROLE_WARPS = (((8, 1, 1), 1), ((4, 1, 1), 2), ((12, 1, 1), 1))
#: where a role splits both factors, which has no registers left for more
_SPLIT_ROLE_WARPS = (((8, 1, 1), 1),)
_STAGES = (2, 3, 4, 5)
#: where in what describes how warps share a tile: warps that copy, blocks that stay, parts, what is left over
_COPIERS_AT, _BLOCKS_AT, _PARTS_AT, _LEFT_AT = 4, 6, 8, 10
#: blocks by roles of a multiprocessor where there are several, and the warps of each that multiply
_RESIDENT, _RESIDENT_WARPS = (2, 3), (4, 1, 1)
#: blocks that share a tile by roles, and warps of them; the same of blocks whose warps all do the same
_ROLE_PARTS, _SHARING_ROLES = (2, 3, 4, 5, 6, 7, 8), ((8, 1, 1), (4, 1, 1), (12, 1, 1))
_SHARED_SIZES = (16, 32, 64, 128)
_PARTS, _SHARING_WARPS = (2, 4, 8), ((1, 2, 1), (1, 4, 1), (2, 2, 1), (1, 2, 2), (2, 2, 2))


@dataclass(frozen=True)
class SummedColumns:
    """Sums of columns that a product takes of its results: parts of `part_rows` rows, whole ones in a tile.

    values, value_bytes: what is summed of a result, and its bytes in shared memory. group_bytes: bytes that a
    column keeps of every 16 rows until the end of a tile. fold_work: instructions per result; group_work: per
    column and 16 rows. further: arrays that only sums read, at the points of the results.
    """

    part_rows: int
    values: int
    value_bytes: int
    group_bytes: int
    fold_work: float
    group_work: float
    further: int = 0

    @property
    def vector_work(self) -> float:
        """Instructions of a warp per vector of four results: values are written as such, and read singly."""
        return 5.0 * self.values + self.laid_work

    @property
    def laid_work(self) -> float:
        """The same where warps lay values down anyway, which lanes read in pairs."""
        return 4.0 * (self.fold_work + self.group_work / MMA_M)

    @property
    def vector_accesses(self) -> float:
        """Accesses of a warp to shared memory per vector that is written as such, and read singly."""
        return 5.0 * self.values

    def shared_bytes(self, rows: IntArray, columns: IntArray, staged: IntArray) -> IntArray:
        """Bytes of a tile's sums, and of so many values that are staged at a time."""
        return np.asarray(staged * self.value_bytes + rows // MMA_M * columns * self.group_bytes)


@dataclass(frozen=True)
class LaidResults:
    """What warps by roles lay down out of fragments, in pieces of 16 rows: values of `value_bytes` each.

    values: how many of a result. written: whether the copy engine writes them, else lanes alone read them,
    which add up their columns.
    """

    values: int
    value_bytes: int
    written: bool

    def columns(self, warp_columns: IntArray) -> IntArray:
        """Columns of a piece of a warp that holds so many of the results; 0 where none has a swizzle."""
        found = np.gcd(PIECE_ROW_BYTES // self.value_bytes, warp_columns)
        return np.asarray(np.where(np.isin(found * self.value_bytes, SWIZZLES), found, 0), dtype=np.int64)


@dataclass(frozen=True)
class MatrixProblem:
    """`batch` products of [m, k] and [n, k], k = taps * channel.

    element_bytes: of both factors (4: float32, 1: signed bytes, 6: float32 stored in pieces). first_bytes,
    second_bytes: what the factors hold (an image counts once, however many windows read it). fetched: share
    of the first factor's
    elements inside of it.
    result_bytes: all results and further operands. first_copy, second_copy: elements per asynchronous copy, 0
    where the threads compute or copy a factor through registers; first_lanes, second_lanes: by how many then.
    first_stride, second_stride: bytes between what neighbouring threads read, 0 where it lies side by side.
    first_rows, second_rows: whether a tile holds rows of the channel of a factor, else columns.
    head_work, tail_work: instructions per element of a computed factor and per result beside the product.
    tail_shared, tail_paired: instructions for every four results whose outcome these share with neighbours,
    of threads that have whole vectors of these and of those that have the pairs of a fragment.
    tail_bytes: what results are computed from besides, beyond a few values per row or column. split: float32
    factors are multiplied in pieces of bfloat16, else rounded to TF32. boxes: whether the copy engine
    can bring tiles of both factors. promotes: factors are 8-bit floats, whose sums
    warpgroups add chunk by chunk. summed: sums of columns that are taken besides. members: sums from which
    each result is computed, whose columns a warp has; tail_work, tail_shared and tail_paired are of sums
    then, too: the share of each in what its result takes. laid: what warps by roles lay down where they need
    not bring sums into rows. handed: the first factor is in registers already, as what another
    product of the kernel has finished; nothing of it is `fetched` then.
    """

    batch: int
    m: int
    n: int
    channel: int
    taps: int
    element_bytes: int
    first_bytes: int
    second_bytes: int
    result_bytes: int
    fetched: float = 1.0
    first_copy: int = 8
    second_copy: int = 8
    first_lanes: int = 1
    second_lanes: int = 1
    first_stride: int = 0
    second_stride: int = 0
    first_rows: bool = True
    second_rows: bool = True
    head_work: float = 0.0
    tail_work: float = 0.0
    tail_shared: float = 0.0
    tail_paired: float = 0.0
    tail_bytes: int = 0
    split: bool = False
    boxes: bool = False
    promotes: bool = False
    summed: SummedColumns | None = None
    members: int = 1
    handed: bool = False
    laid: LaidResults | None = None

    def __post_init__(self) -> None:
        counts = (self.batch, self.m, self.n, self.channel, self.taps, self.members)
        known = (1, 2, 4, PIECES * PIECE_BYTES)
        if min(counts) < 1 or self.element_bytes not in known or not 0.0 <= self.fetched <= 1.0:
            raise InputError(
                f"expected extents of at least 1, elements of 1, 2 or 4 bytes, or 6 in pieces, got {self}"
            )

    @property
    def depth(self) -> int:
        """Elements along the channel that one instruction multiplies."""
        return MMA_K_BYTES // (2 if self.split else self.element_bytes)

    @property
    def stored(self) -> bool:
        """Whether factors are stored in pieces of bfloat16."""
        return self.element_bytes == PIECES * PIECE_BYTES

    @property
    def row_bytes(self) -> int:
        """Bytes of an element in a row of a tile: of one piece where there are pieces."""
        return PIECE_BYTES if self.stored else self.element_bytes

    @property
    def products(self) -> int:
        """Instructions for one step of one tile."""
        return sum(map(len, PRODUCTS)) if self.split else 1

    @property
    def flops(self) -> int:
        """Useful operations; taps on padding included, as is the custom."""
        return 2 * self.batch * self.m * self.n * self.channel * self.taps

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that cross DRAM at least once."""
        return float(self.first_bytes + self.second_bytes + self.result_bytes)


@dataclass(frozen=True, eq=False)
class MatrixSpace:
    """Many `MatrixParameters` as equally long int64 arrays; groups: 1 where warpgroups multiply.

    copiers, teams, blocks, cluster, parts, resident, turners, left_over, preloaded: as in the parameters;
    with copiers the copy engine brings both factors.
    """

    m: IntArray
    n: IntArray
    k: IntArray
    warps_m: IntArray
    warps_n: IntArray
    stages: IntArray
    warps_k: IntArray
    groups: IntArray
    copiers: IntArray
    teams: IntArray
    blocks: IntArray
    cluster: IntArray
    parts: IntArray
    resident: IntArray
    turners: IntArray
    left_over: IntArray
    preloaded: IntArray

    def __len__(self) -> int:
        return len(self.m)

    @property
    def team_warps(self) -> IntArray:
        """Warps that share a tile."""
        return self.warps_m * self.warps_n * self.warps_k

    @property
    def multiplying_warps(self) -> IntArray:
        """Warps of a block that multiply."""
        return self.teams * self.team_warps

    @property
    def warps(self) -> IntArray:
        """Warps per block."""
        return self.copiers + self.turners + self.multiplying_warps

    @property
    def by_roles(self) -> npt.NDArray[np.bool_]:
        """Whether some warps copy what others multiply."""
        return np.asarray(self.copiers > 0)

    def at(self, index: int) -> MatrixParameters:
        """The parameters at `index`."""
        names = self.named(index)
        warps = Warps(names["warps_m"], names["warps_n"], names["warps_k"])
        copiers = names["copiers"]
        return MatrixParameters(
            MatrixTile(names["m"], names["n"], names["k"]),
            warps,
            names["stages"],
            "",
            1,
            "wgmma" if names["groups"] else "mma",
            copiers=copiers,
            teams=names["teams"],
            blocks=names["blocks"],
            transport="engine" if copiers else "threads",
            cluster=names["cluster"],
            parts=names["parts"],
            resident=names["resident"],
            turners=names["turners"],
            left_over=bool(names["left_over"]),
            preloaded=bool(names["preloaded"]),
        )

    def named(self, index: int) -> dict[str, int]:
        """Return what records of measurements call the point at `index`: its columns."""
        return {name: int(getattr(self, name)[index]) for name in COLUMNS}

    def take(self, chosen: IntArray | npt.NDArray[np.bool_]) -> MatrixSpace:
        """The sub-space selected by an index array or a mask."""
        index = np.flatnonzero(chosen) if chosen.dtype == np.bool_ else chosen
        return MatrixSpace(**{name: getattr(self, name).take(index) for name in COLUMNS})


COLUMNS = tuple(f.name for f in fields(MatrixSpace))


def matrix_space_of(*parameters: MatrixParameters) -> MatrixSpace:
    """The struct-of-arrays form of given parameters."""
    rows = [
        (
            *(*vars(p.block).values(), p.warps.m, p.warps.n, p.stages, p.warps.k, p.engine == WARPGROUPS),
            *(p.copiers, p.teams, p.blocks, p.cluster, p.parts, p.resident, p.turners),
            *(p.left_over, p.preloaded),
        )
        for p in parameters
    ]
    return MatrixSpace(*np.array(rows, dtype=np.int64).T.copy())


def matrix_space(problem: MatrixProblem, hardware: GpuHardware) -> MatrixSpace:
    """The whole space of a problem: everything that fits registers, threads and shared memory.

    Raises InputError where nothing does.
    """
    shares, leaves = _may_share(problem, hardware), _may_leave_over(problem, hardware)
    # Warps multiply 8-bit floats as 16-bit ones on Hopper: they do only where groups cannot.
    by_warps = not problem.stored and not (problem.promotes and takes_groups(problem, hardware))
    ways = [(*warps, 0, 0, 1, 0, 1, 1, 1, 0) for warps in _WARPS] if by_warps else []
    if shares and by_warps:
        ways += [(*warps, 0, 0, 1, 0, 1, parts, 1, 0) for warps in _SHARING_WARPS for parts in _PARTS]
    if takes_groups(problem, hardware) and not problem.stored:
        ways += [(*warps, 1, 0, 1, 0, 1, 1, 1, 0) for warps in _GROUP_WARPS]
    if takes_roles(problem, hardware):
        # Clusters of two, which share reads of the second factor, gain nothing on an H200 wherever tried.
        sms = hardware.sm_count
        role_warps = _SPLIT_ROLE_WARPS if splits_on_the_way(problem) else _ROLE_WARPS
        if problem.promotes:  # three warpgroups have no registers for sums of a chunk beside the others
            ways += [
                (*warps, 1, ROLE_COPIERS, teams, sms, 1, 1, 1, 0)
                for warps, teams in role_warps
                if prod(warps) <= 2 * WARPGROUP_WARPS
            ]
        else:
            ways += [(*warps, 1, ROLE_COPIERS, teams, sms, 1, 1, 1, 0) for warps, teams in role_warps]
        if not problem.split and not turns_second(problem):
            ways += [(*_RESIDENT_WARPS, 1, ROLE_COPIERS, 1, sms * n, 1, 1, n, 0) for n in _RESIDENT]
        if (shares or leaves) and not splits_on_the_way(problem):
            # Three warpgroups have no registers for sums of pieces, or for fragments, beside their sums.
            kinds_of_warps = [w for w in _SHARING_ROLES if problem.element_bytes == 2 or prod(w) < 12]
            sharing = [(warps, parts) for warps in kinds_of_warps for parts in _ROLE_PARTS]
            if shares:
                ways += [(*warps, 1, ROLE_COPIERS, 1, 0, 1, parts, 1, 0) for warps, parts in sharing]
            if leaves:
                stay = np.array(_ROLE_PARTS) * clusters_at_once(np.array(_ROLE_PARTS), hardware)
                blocks = dict(zip(_ROLE_PARTS, map(int, stay), strict=True))
                ways += [(*w, 1, ROLE_COPIERS, 1, blocks[n], 1, n, 1, 1) for w, n in sharing]
    if not ways:
        raise InputError(f"no implementation parameters of {problem} fit")
    role_k = GROUP_CHUNK if problem.stored else ROW_BYTES[-1] // problem.element_bytes
    rows_k = [b // problem.row_bytes for b in _K_BYTES]
    kinds = {  # whether a role copies, whether blocks share sums: tiles along m and n, chunks
        (False, False): (_M, _N, rows_k),
        (False, True): (_SHARED_SIZES, _SHARED_SIZES, rows_k),
        (True, False): (_M, _STORED_N if problem.stored else _ROLE_N, [role_k]),
        (True, True): (_M, _STORED_N if problem.stored else _ROLE_N, [role_k]),
    }
    tables = tuple(
        (*map(tuple, sizes), chosen) for kind, sizes in kinds.items() if (chosen := _ways_of(ways, kind))
    )
    m, n, k, w, stages = _shared_turns(problem, ways, _whole_tiles(tuple(ways), tables, problem.depth))
    warps = np.array(ways, dtype=np.int64)[w]
    turners = np.where(warps[:, _COPIERS_AT] > 0, ROLE_TURNERS if has_turners(problem) else 0, 0)
    further = (*warps[:, 2:-1].T, turners, warps[:, -1], np.zeros(len(w), dtype=np.int64))
    space = MatrixSpace(m, n, k * warps[:, 2], warps[:, 0], warps[:, 1], stages, *further)
    likely = space.take(_sensible(problem, space))
    likely = likely.take(legal(problem, likely, hardware))
    # Where nothing sensible is left, anything that fits is better than nothing.
    found = likely if len(likely) else space.take(legal(problem, space, hardware))
    if not len(found):
        raise InputError(f"no implementation parameters of {problem} fit")
    return found


def _ways_of(ways: Sequence[Sequence[int]], kind: tuple[bool, bool]) -> tuple[int, ...]:
    """The numbers of the ways in which a role copies or not, and blocks share sums or not."""
    kinds = [(way[_COPIERS_AT] > 0, way[_PARTS_AT] > 1) for way in ways]
    return tuple(i for i, other in enumerate(kinds) if other == kind)


@lru_cache(maxsize=256)
def _whole_tiles(
    ways: tuple[tuple[int, ...], ...], tables: tuple[tuple[tuple[int, ...], ...], ...], depth: int
) -> IntArray:
    """The points, in order, whose tiles are whole instructions of all warps (see `legal`) with few sums each.

    Most combinations are not so, whatever is multiplied. depth: of an instruction along the channel.
    """
    found = []
    for sizes in tables:
        points = _all_points((*sizes, _STAGES))
        m, n, k, way, _ = points
        warps_m, warps_n = np.array(ways, dtype=np.int64)[way, :2].T
        whole = (m % (MMA_M * warps_m) == 0) & (n % (2 * MMA_N * warps_n) == 0) & (k % depth == 0)
        most = max(MAX_SUMS, MOST_GROUP_SUMS) * WARP
        found.append(points[:, whole & (m * n <= most * warps_m * warps_n)])
    points = np.concatenate(found, axis=1)
    points = points[:, np.lexsort(points[::-1])]
    points.flags.writeable = False
    return points


def _shared_turns(problem: MatrixProblem, ways: Sequence[Sequence[int]], points: IntArray) -> IntArray:
    """Without the many points whose last turn clusters cannot share (`legal`)."""
    m, n, _, way, _ = points
    blocks, parts, left_over = (np.array(ways)[way, at] for at in (_BLOCKS_AT, _PARTS_AT, _LEFT_AT))
    tiles = problem.batch * (ceil_div(problem.m, m) * ceil_div(problem.n, n))
    return points[:, (left_over == 0) | _leaves_over(tiles, blocks, parts)]


def _all_points(tables: Sequence[Sequence[int]]) -> IntArray:
    """Every combination of what stands in the tables, as rows."""
    index = np.unravel_index(np.arange(prod(map(len, tables))), tuple(map(len, tables)))
    return np.stack([np.array(t, dtype=np.int64)[i] for t, i in zip(tables, index, strict=True)])


def has_clusters(hardware: GpuHardware) -> bool:
    """Return whether blocks can share sums: devices with warpgroups have clusters, too."""
    return hardware.wgmma_share > 0


def _may_share(problem: MatrixProblem, hardware: GpuHardware) -> bool:
    """Whether blocks could share sums: long ones of fewer tiles than multiprocessors, or few large ones."""
    usual, large = (
        problem.batch * (-(-problem.m // extent) * -(-problem.n // extent))
        for extent in (SHARED_TILE, LARGE_SHARED_TILE)
    )
    few = usual < hardware.sm_count or 2 * large <= hardware.sm_count
    alone = problem.members == 1
    return has_clusters(hardware) and problem.taps * problem.channel >= LEAST_SHARED_SUM and few and alone


def _may_leave_over(problem: MatrixProblem, hardware: GpuHardware) -> bool:
    """Whether clusters could share tiles that full turns leave over: there is a full turn of some tile."""
    most = problem.batch * -(-problem.m // LEAST_LEFT_TILE) * -(-problem.n // LEAST_LEFT_TILE)
    alone = problem.members == 1 and problem.summed is None
    return has_clusters(hardware) and most > hardware.sm_count and alone


def clusters_at_once(parts: IntArray, hardware: GpuHardware) -> IntArray:
    """Clusters of so many blocks that run side by side with a block on each multiprocessor.

    A cluster lies within one group of multiprocessors, of which some are left over. They come in pairs, of
    which some groups have one more.
    """
    fit = hardware.matrix
    group = fit.cluster_group_sms
    found = fit.cluster_groups * (group // parts)
    found = found + fit.cluster_wide_groups * ((group + 2) // parts - group // parts)
    pairs = hardware.sm_count // np.maximum(parts, 1)
    return np.asarray(np.where(parts <= 2, pairs, found), dtype=np.int64).clip(1)


def takes_groups(problem: MatrixProblem, hardware: GpuHardware) -> bool:
    """Return whether warpgroups can multiply the factors: rows of the channel, or columns of 16 bits."""
    least = LEAST_STORED_SUM if problem.stored else LEAST_GROUP_SUM
    if problem.split and problem.taps * problem.channel < least:
        return False
    rows = problem.first_rows and problem.second_rows
    taken = problem.row_bytes == 2 or (rows and problem.element_bytes in (1, 4))
    return taken and hardware.wgmma_share > 0


def takes_roles(problem: MatrixProblem, hardware: GpuHardware) -> bool:
    """Return whether the copy engine brings both factors to warpgroups that do nothing but multiply."""
    if not problem.boxes or not hardware.wgmma_share:
        return False
    return takes_groups(problem, hardware) or holds_first(problem)


def splits_on_the_way(problem: MatrixProblem) -> bool:
    """Return whether roles multiply pieces that one of them splits: of float32 factors as they are."""
    return problem.split and not problem.stored


def has_turners(problem: MatrixProblem) -> bool:
    """Return whether a role changes factors on their way, as it turns or splits them."""
    return turns_second(problem) or splits_on_the_way(problem)


def sums_beside(problem: MatrixProblem) -> int:
    """How many sums of each result a thread has by roles: of pieces those of a chunk besides, perhaps two.

    The same of 8-bit floats, of all warpgroups.
    """
    if problem.promotes:
        return 2
    if not problem.split:
        return 1
    short = problem.taps * problem.channel < LEAST_STORED_SUM
    return 1 + (len(PRODUCTS) if short else 1)


def holds_first(problem: MatrixProblem) -> bool:
    """Return whether roles load the first factor to registers: a TF32 one that lies in columns."""
    return problem.element_bytes == 4 and not problem.split and not problem.first_rows


def turns_second(problem: MatrixProblem) -> bool:
    """Return whether roles turn the second factor to rows of the channel: TF32 ones, both in columns."""
    return holds_first(problem) and not problem.second_rows


def held_registers(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Registers of a thread for a chunk of the first factor, where roles multiply it from there."""
    if not holds_first(problem):
        return np.zeros(len(space), dtype=np.int64)
    return np.asarray(space.m // space.warps_m // MMA_M * A_REGISTERS * (space.k // problem.depth))


def _sensible(problem: MatrixProblem, space: MatrixSpace) -> npt.NDArray[np.bool_]:
    """Return, per point, whether no smaller tile or ring beats it for sure."""
    chunks = chunks_in_order(problem, space)
    keep = (space.stages <= np.maximum(2, chunks)) & (space.m < 2 * max(problem.m, MMA_M))
    keep &= space.n < 2 * max(problem.n, 2 * MMA_N)
    keep &= space.k < 2 * max(problem.channel, problem.depth)
    if not (problem.first_rows and problem.second_rows):
        # Rows of columns are as long whatever the chunk: shorter ones pay where less lies beyond the channel.
        longest = _K_BYTES[-1] // problem.element_bytes
        depth = ceil_div(problem.channel, space.k) * space.k
        keep &= (
            (space.groups == 0) | (space.k >= longest) | (depth < -(-problem.channel // longest) * longest)
        )
    return np.asarray(keep)


def _holds_whole(problem: MatrixProblem, space: MatrixSpace) -> npt.NDArray[np.bool_]:
    """Return whether warps have all sums of their results, and tiles whole parts of sums of columns."""
    found = np.ones(len(space), dtype=np.bool_)
    if problem.members > 1:
        found &= (space.parts == 1) & _holds_members(problem, space)
    if problem.summed is not None:
        found &= (space.m % problem.summed.part_rows == 0) & (space.parts == 1)
    return found


def legal(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> npt.NDArray[np.bool_]:
    """Return whether a block can be built and be resident."""
    found = (space.m % (MMA_M * space.warps_m) == 0) & (space.n % (2 * MMA_N * space.warps_n) == 0)
    found &= space.k % (problem.depth * space.warps_k) == 0
    found &= _holds_whole(problem, space)
    for extent, rows in ((space.m, problem.first_rows), (space.n, problem.second_rows)):
        # Columns of 16-bit elements are swizzled, which takes 32, 64 or a multiple of 128 bytes of them.
        # Those of warpgroups are panels of such rows.
        swizzled = (extent % 64 == 0) | (extent == 16) | (extent == 32) | (space.groups > 0)
        found &= rows | (problem.element_bytes != 2) | swizzled
    each, whole = chunks_of(problem, space), all_chunks(problem, space)
    found &= (space.parts - 1) * each < whole
    found &= (space.left_over == 0) | _leaves_over(tiles_of(problem, space), space.blocks, space.parts)
    taken = takes_groups(problem, hardware) | (space.by_roles & takes_roles(problem, hardware))
    found &= (space.groups == 0) | (taken & (space.n <= MOST_N * space.warps_n))
    threads, registers = WARP * space.warps, registers_of(problem, space)
    most = np.where((space.groups > 0) & ~space.by_roles, MOST_GROUP_SUMS, MAX_SUMS)
    if problem.stored:
        found &= space.by_roles
    if problem.stored or problem.promotes:
        most = np.where(space.groups > 0, np.minimum(most, MOST_PROMOTED_SUMS), most)
    sums = space.m * space.n * space.warps_k
    found &= (sums <= most * (WARP * space.team_warps)) & (threads <= hardware.max_threads_per_block)
    # Roles multiply whole rows of 128 bytes (shorter ones were slower than without roles), every
    # team has a tile, and clusters lie within rasters.
    tiles_m = ceil_div(problem.m, space.m)
    three = space.team_warps > 2 * WARPGROUP_WARPS
    least = np.where(three, LEAST_SUMS_OF_THREE, LEAST_ROLE_SUMS)
    all_shared = (space.parts > 1) & (space.left_over == 0)
    several = (space.resident > 1) | all_shared | splits_on_the_way(problem)
    least = np.where(several, LEAST_RESIDENT_SUMS, least)
    given = WARP * (COPIER_REGISTERS * space.copiers + TURNER_REGISTERS * space.turners)
    left = (registers * threads - given) // (WARP * space.multiplying_warps)
    beside = (1 + problem.promotes) * sums // (WARP * space.team_warps) + OTHER_REGISTERS
    beside = beside + GROUP_REGISTERS * (space.turners == 0) + held_registers(problem, space)
    beside = beside + (0 if problem.summed is None else SUMMED_REGISTERS)
    together = resident_blocks(hardware, space.warps, shared_bytes(problem, space), registers)
    # One instruction holds the sums of 64 rows, and ptxas wants these beside all else within what a thread
    # has at launch.
    beside_one = space.n // space.warps_n // 2 + OTHER_REGISTERS
    fits = (beside <= left) & (beside_one <= registers) & (together >= space.resident)
    found &= (space.resident == 1) | fits
    held = space.by_roles & holds_first(problem)
    found &= ~held | ((beside <= left) & (space.stages >= LEAST_HELD_STAGES))
    wide = (space.n >= ROW_BYTES[-1] // problem.row_bytes) & (beside_one <= registers)
    found &= (space.turners == 0) | wide | splits_on_the_way(problem)
    each_sum = sums // (WARP * space.team_warps)
    promoted = each_sum * sums_beside(problem) + OTHER_REGISTERS + GROUP_REGISTERS <= left
    found &= ~space.by_roles | promoted | (not splits_on_the_way(problem))
    found &= ~(space.by_roles & three) | (sums <= MOST_SUMS_OF_THREE * WARP * space.team_warps)
    found &= ~space.by_roles | (
        (space.k == (GROUP_CHUNK if problem.stored else ROW_BYTES[-1] // problem.element_bytes))
        & (blocks_of(problem, space) > (space.teams - 1) * space.blocks)
        & (tiles_m % space.cluster == 0)
        # Nothing smaller was measured: they take a multiprocessor each, and have much to do there.
        & (sums >= least * WARP * space.team_warps)
        & (PER_MULTIPROCESSORS * blocks_of(problem, space) >= LEAST_ROLE_TILES * hardware.sm_count)
    )
    found &= (registers <= hardware.max_registers_per_thread) & (
        registers * threads <= hardware.registers_per_sm
    )
    return np.asarray(found & (shared_bytes(problem, space) <= hardware.smem_per_block_max_bytes))


def _holds_members(problem: MatrixProblem, space: MatrixSpace) -> npt.NDArray[np.bool_]:
    """Return whether each warp, and each piece of what it writes, has all sums of its results."""
    columns = space.n // space.warps_n
    widths = range(int(columns.max(initial=0)) + 1)
    pieces = [piece_columns(n, stored=problem.stored) if n else 0 for n in widths]
    by_threads = np.array([holds_members(n, n, problem.members) for n in widths])
    by_roles = np.array([holds_members(n, p, problem.members) for n, p in zip(widths, pieces, strict=True)])
    return np.asarray(np.where(space.by_roles, by_roles[columns], by_threads[columns]))


def registers_of(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Registers per thread: sums, two sets of fragments, addresses, what is copied through registers."""
    sums = space.m * space.n // (WARP * space.warps_m * space.warps_n)
    a = space.m // space.warps_m // MMA_M * A_REGISTERS
    b = space.n // space.warps_n // MMA_N * B_REGISTERS
    ahead = np.zeros(len(space))
    for extent, copy in ((space.m, problem.first_copy), (space.n, problem.second_copy)):
        if not copy:
            each = COPIED_REGISTERS + COMPUTED_REGISTERS * problem.head_work
            ahead = ahead + (each * extent * space.k / (WARP * space.warps) - FREE_REGISTERS).clip(0)
    # Of a single chunk nothing is copied ahead.
    ahead = np.where(chunks_of(problem, space) > 1, ahead, 0.0).astype(np.int64)
    other = OTHER_REGISTERS + (WINDOW_REGISTERS if problem.taps > 1 else 0)
    steps = space.k * problem.element_bytes // MMA_K_BYTES if rounds_first(problem) else 0
    fragments = np.where(space.groups > 0, GROUP_REGISTERS + a * steps, 2 * (a + b))
    if problem.promotes:
        fragments = fragments + np.where(space.groups > 0, sums, 0)
    if problem.split:
        fragments = split_registers(problem, space)
    for extent, copy, rows in (
        (space.m, problem.first_copy, problem.first_rows),
        (space.n, problem.second_copy, problem.second_rows),
    ):
        if copy and not rows and copy * problem.element_bytes < ASYNC_COPY_BYTES[0]:
            # Each of a thread's many narrow copies to a turned tile keeps its place in a register.
            narrow = extent * space.k // (copy * WARP * space.warps)
            fragments = fragments + np.where(space.groups > 0, narrow, 0)
    # Roles share what the block has at launch, which is all of a multiprocessor's.
    share = REGISTERS_PER_SM // (space.resident * WARP * space.warps) // REGISTER_UNIT * REGISTER_UNIT
    found = np.where(space.by_roles, np.minimum(share, MOST_ROLE_REGISTERS), sums + fragments + other + ahead)
    return np.asarray(found, dtype=np.int64)


def split_registers(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Registers of pieces: those of the first factor, and of the columns that are multiplied together.

    Beside them sums of one step, and float32 fragments before they are split. Warpgroups multiply all columns
    of a chunk, the second factor from shared memory.
    """
    a, columns = space.m // space.warps_m // MMA_M, columns_together(space)
    pieces = PIECES * (a * A_REGISTERS + columns * B_REGISTERS)
    parts = len(PRODUCTS) * a * columns * SUM_REGISTERS
    fragments = pieces + parts + 2 * B_REGISTERS * columns + 2 * A_REGISTERS + AHEAD_REGISTERS
    fragments = fragments + (RESIDUAL_REGISTERS if problem.tail_bytes else 0)
    sums = space.m * space.n // (WARP * space.warps)
    groups = PIECES * a * A_REGISTERS * (space.k // problem.depth) + len(PRODUCTS) * sums
    return np.asarray(np.where(space.groups > 0, groups, fragments), dtype=np.int64)


def together(rows: int, columns: int) -> int:
    """Of a warp's tiles, rows by columns, how many columns are multiplied together in pieces."""
    most = min(columns, max(1, MOST_TOGETHER // rows))
    return next(n for n in range(most, 0, -1) if columns % n == 0)


_MOST_ROWS, _MOST_COLUMNS = max(_M) // MMA_M, max(_N) // MMA_N
_TOGETHER = np.array(
    [
        [together(rows, columns) if rows and columns else 1 for columns in range(_MOST_COLUMNS + 1)]
        for rows in range(_MOST_ROWS + 1)
    ],
    dtype=np.int64,
)


def columns_together(space: MatrixSpace) -> IntArray:
    """Tiles along n whose pieces are multiplied together, so that sums of several tiles are under way."""
    return np.asarray(_TOGETHER[space.m // space.warps_m // MMA_M, space.n // space.warps_n // MMA_N])


def _staging_bytes(columns: int, stored: bool) -> int:
    """Bytes through which a warp brings some of its sums into rows, whichever way these are stored."""
    piece = max(PIECE_COLUMNS, piece_columns(columns, stored=stored))
    return 4 * max(MMA_M * (piece + PIECE_PADS[False]), piece * (MMA_M + PIECE_PADS[True]))


_STAGING_BYTES = {
    stored: np.array([_staging_bytes(n, stored) for n in range(max(_N) + 1)], dtype=np.int64)
    for stored in (False, True)
}


def shared_bytes(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Bytes of the ring of tiles, or of the tiles of sums that take its place, whichever is more."""
    columns = fetched_columns(problem, space)
    second_slots: IntArray = np.where(space.preloaded > 0, chunks_of(problem, space), space.stages)
    ring = (space.stages * space.m + second_slots * columns) * (space.k * problem.element_bytes)
    if splits_on_the_way(problem):  # the second factor's pieces; by roles slots of those of both
        rows = np.where(space.by_roles, SPLIT_SLOTS * (space.m + space.n), space.n)
        ring = ring + np.where(space.groups > 0, PIECES * PIECE_BYTES * rows * space.k, 0)
    tile = sums = 4 * space.warps_k * space.m * (space.n + SUM_PAD_WORDS)
    room = ring
    if turns_second(problem):
        # Sums find room where chunks of the first factor were, or behind everything.
        first, row = space.stages * space.m, space.k * problem.element_bytes
        turned = (first + slots_of_columns(space) * columns + TURNED_SLOTS * space.n) * row
        ring, room = np.where(space.by_roles, turned, ring), first * row
        sums = np.where(space.by_roles & (sums > room), turned + sums, sums)
    staging = _STAGING_BYTES[problem.stored][space.n // space.warps_n]
    pieces = space.multiplying_warps * staging + ROLE_BARRIER_BYTES
    if problem.summed is not None:
        team = problem.summed.shared_bytes(space.m, space.n, space.team_warps * MMA_M * SUMMED_COLUMNS)
        pieces = pieces + space.teams * team
        whole = problem.summed.shared_bytes(space.m, space.n, space.m * (space.n + SUM_PAD_WORDS))
        sums = sums + np.where(space.by_roles, 0, whole)
    staged = np.where(space.parts > 1, np.maximum(ring, sums) + ROLE_BARRIER_BYTES, ring + pieces)
    # Whole tiles are staged in pieces besides, behind which sums lie that the ring has no room for.
    left_over = ring + pieces + np.where(tile > room, tile, 0)
    staged = np.where(space.left_over > 0, left_over, staged)
    return np.asarray(np.where(space.by_roles, staged, np.maximum(ring, sums)), dtype=np.int64)


def laid_stages(problem: MatrixProblem, space: MatrixSpace, hardware: GpuHardware) -> IntArray:
    """Stages of the ring beside results that warps lay down out of fragments; 0 where threads write them.

    Those pieces must leave the ring `LEAST_LAID_STAGES`, or as many as it has where nothing is stored. Where
    clusters share what full turns leave over, they must leave room for a tile of sums as well, which lies on
    the ring; no block that shares every tile lays results down.
    """
    laid = problem.laid
    if laid is None:
        return np.zeros(len(space), dtype=np.int64)
    columns = laid.columns(space.n // space.warps_n // problem.members)
    warps = space.teams * space.team_warps
    beside = laid.values * laid.value_bytes * LAID_PIECES * MMA_M * warps * columns
    if problem.summed is not None:
        beside = beside + space.teams * (space.m // MMA_M * space.n) * problem.summed.group_bytes
    panel = ROW_BYTES[-1] // problem.element_bytes
    stage = space.k * (space.m + ceil_div(space.n, panel) * panel) * problem.element_bytes
    room = hardware.smem_per_block_max_bytes // space.resident - beside - BESIDE_RING_BYTES
    stages = np.minimum(space.stages, room // stage)
    least = LEAST_LAID_STAGES if laid.written else np.minimum(space.stages, LEAST_LAID_STAGES)
    whole = (space.parts == 1) | ((space.left_over > 0) & _holds_sums(space, stages * stage))
    fits = space.by_roles & whole & (columns > 0) & (stages >= least)
    return np.asarray(np.where(fits, stages, 0), dtype=np.int64)


def _holds_sums(space: MatrixSpace, ring_bytes: IntArray) -> npt.NDArray[np.bool_]:
    """Return whether a tile of sums fits a ring of so many bytes, all of which is free at its end."""
    pads = np.maximum(SUM_PADS[False] * space.m, SUM_PADS[True] * space.n)
    return np.asarray((space.turners == 0) & (SUM_BYTES * (space.m * space.n + pads) <= ring_bytes))


def slots_of_columns(space: MatrixSpace) -> IntArray:
    """Slots of a second factor that is turned (`parameters.column_slots`)."""
    return np.maximum(LEAST_COLUMN_SLOTS, space.stages - TURNED_SLOTS)


def in_whole_waves(problem: MatrixProblem, space: MatrixSpace) -> npt.NDArray[np.bool_]:
    """Return whether tiles by roles have extents, or blocks, that exist for the sake of their number."""
    three = space.team_warps > 2 * WARPGROUP_WARPS
    three = three | (space.resident > 1)
    return np.asarray(space.by_roles & (three | ~np.isin(space.n, _STORED_N if problem.stored else _N)))


def fetched_columns(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Columns of the second factor that a chunk holds: the copy engine brings whole panels of turned ones."""
    if problem.second_rows:
        return space.n
    panel = ROW_BYTES[-1] // problem.row_bytes
    whole = np.where(space.n > panel, ceil_div(space.n, panel) * panel, space.n)
    return np.asarray(np.where(space.by_roles, whole, space.n))


def lines_of_columns(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Lines of memory that a row of a panel of the second factor crosses, where it is turned.

    Panels begin with tiles: where these are no whole number of lines wide, most of them begin inside of one.
    """
    whole = (space.n * problem.row_bytes % LINE_BYTES == 0) | (space.n >= problem.n)
    return np.where(problem.second_rows | whole, 1, 2)


def shared_rows(problem: MatrixProblem, space: MatrixSpace) -> FloatArray:
    """Rows of tiles that cross the port of shared memory per chunk: written once, read by every user.

    A warpgroup reads the rows of the second factor once for every 64 of the first. Where that is split, the
    block reads and writes its pieces before, and each product reads one of them.
    """
    readers = np.where(space.groups > 0, space.m // GROUP_M, space.warps_m) * 1.0
    if problem.stored:  # each product reads one piece of either
        share = problem.products / PIECES
        return np.asarray(space.m * (share * space.warps_n + 1) + space.n * (share * readers + 1))
    if problem.split:
        share = PIECE_BYTES / problem.element_bytes
        split = (problem.products * readers + PIECES) * share + 1.0
        # Roles split the first factor in shared memory, too, for each warpgroup to read its own rows.
        first = np.where(space.by_roles, (problem.products + PIECES) * share + 1.0, space.warps_n)
        readers = np.where(space.groups > 0, split, readers)
        return np.asarray(space.m * (first + 1) + space.n * (readers + 1))
    # Elements of columns are loaded one by one, two lanes of a warp from each bank unless their order is that
    # of a factor that was turned. That was read and written besides.
    held = space.by_roles & holds_first(problem) & (space.turners == 0)
    first = np.where(held, HELD_READS, 1) * space.warps_n
    turned = np.where(space.turners > 0, 2, 0)
    of_first = 0 if problem.handed else space.m * (first + 1)
    return np.asarray(of_first + space.n * (readers + turned + 1))


def blocks_of(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Blocks that have something to do of their own: one for each tile, or for each part of one.

    Those that share what is left over stay, and have all a tile of their own before.
    """
    blocks = tiles_of(problem, space) * space.parts
    return np.asarray(np.where(space.left_over > 0, space.blocks, blocks))


def tiles_of(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Tiles of results."""
    return problem.batch * (ceil_div(problem.m, space.m) * ceil_div(problem.n, space.n))


def chunks_of(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Chunks that a block multiplies: those of the reduced domain, or a part of them."""
    return ceil_div(all_chunks(problem, space), space.parts)


def chunks_in_order(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """The same, with the chunks of all whole tiles that a block has before its part of one left over."""
    return chunks_of(problem, space) + full_turns(problem, space) * all_chunks(problem, space)


def full_turns(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Turns in which all blocks have a tile of their own before they share what is left over; else 0."""
    turns = tiles_of(problem, space) // np.maximum(space.blocks, 1)
    return np.asarray(np.where(space.left_over > 0, turns, 0))


def _leaves_over(tiles: IntArray, blocks: IntArray, parts: IntArray) -> npt.NDArray[np.bool_]:
    """Return whether full turns leave tiles over, at most one per cluster (`parameters.shares_left_over`)."""
    left = tiles % np.maximum(blocks, 1)
    return np.asarray((tiles >= blocks) & (left > 0) & (left <= blocks // parts))


def all_chunks(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Chunks of the reduced domain."""
    return problem.taps * ceil_div(problem.channel, space.k)


def ahead_of(problem: MatrixProblem, space: MatrixSpace) -> IntArray:
    """Chunks whose copies are in flight while one is multiplied."""
    return np.maximum(1, space.stages - 1 - two_at_a_time(problem, space))


def rounds_first(problem: MatrixProblem) -> bool:
    """Return whether warpgroups round the first factor in registers, from where they multiply it."""
    return problem.element_bytes == 4


def two_at_a_time(problem: MatrixProblem, space: MatrixSpace) -> npt.NDArray[np.bool_]:
    """Return whether warpgroups start to multiply a chunk before they are done with the one before."""
    overlaps = (space.groups > 0) & (space.stages >= OVERLAP_STAGES)
    return np.asarray(overlaps & (not rounds_first(problem) and not problem.promotes))


def raster_of(blocks_m: int) -> int:
    """The widest group of blocks along m that all groups have alike."""
    return max(g for g in range(1, MOST_RASTER + 1) if blocks_m % g == 0)
