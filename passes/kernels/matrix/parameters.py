"""The implementation parameters of tensor-core kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Literal

from tilewright.ir import AttrRecord, Func, InputError
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP, WARPGROUP_WARPS
from tilewright.ir.thread.warpgroup_ops import BYTES_N, MOST_N, ROW_BYTES
from tilewright.ir.types import BYTES, itemsize
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of
from tilewright.passes.kernels.matrix.view import MatrixView, takes_roles, takes_warpgroups, turns_second
from tilewright.passes.kernels.writing.column_sums import ColumnSums, known_sums

#: four warps together multiply tiles where they lie in shared memory (sm_90a)
WARPGROUPS = "wgmma"
#: elements along the channel after which warpgroups promote sums of split factors at the latest
GROUP_CHUNK = 32
MAX_STAGES = 6
#: the same of the first factor where all of the second one is loaded before
LONGEST_RING = 8
#: boxes brought by the copy engine (sm_90)
ENGINE: Literal["engine"] = "engine"
#: what is summed is laid down out of fragments, and never stored
ONLY_SUMS: Literal["sums"] = "sums"
#: threads write results, out of sums that they bring into rows
THREADS: Literal["threads"] = "threads"
#: roles that take tiles in turn
MOST_TEAMS = 2
#: blocks that share a tile: a cluster that every device with clusters runs
MOST_PARTS = 8
#: warps that turn the second factor, and registers of their threads; slots of what they have turned, and of
#: what they turn at least
ROLE_TURNERS, TURNER_REGISTERS, TURNED_SLOTS, LEAST_COLUMN_SLOTS = 4, 72, 2, 2
#: slots of pieces that a role has split
SPLIT_SLOTS = 2
#: columns of sums that a warp by roles brings into rows at a time, and the same where tiles are no multiple
PIECE_COLUMNS, LONG_COLUMNS = 32, 48
#: words added to each row of these, by whether they are transposed: no bank conflicts
PIECE_PADS = {False: 8, True: 4}


@dataclass(frozen=True)
class MatrixTile(AttrRecord):
    """The tile of a block: rows, columns, and elements along the channel."""

    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Warps(AttrRecord):
    """Warps that share a tile, m x n of them; k: sets of these, each with a part of every chunk."""

    m: int
    n: int
    k: int = 1


@dataclass(frozen=True)
class MatrixParameters(AttrRecord):
    """The division of one tensor-core kernel.

    block: the block's tile; warps: who shares it; stages: buffers of the ring of copies in flight; channel:
    the reduced dimension that is cut into chunks, '' in the model's space; raster: blocks along m that are
    taken before the next ones along n. engine: `wgmma` where groups of four warps along m multiply tiles in
    shared memory, `mma` where every warp multiplies fragments. rounded: the second factor holds TF32 numbers
    already. copiers: warps of a role that copies what others multiply, 0 where all warps do both (no roles).
    teams: roles of `warps` each that multiply; two take tiles in turn, so that the results of one are
    written while the other multiplies. blocks: of a grid that stays, each of which takes tile after tile; 0
    for a block per tile. transport: `engine` where the copy engine brings what it can, else threads copy;
    stores: the same of results, which it writes; `sums` where columns are summed of what is never stored, and
    warps lay that down out of their fragments. cluster: blocks whose tiles lie one after the other along m;
    each brings a part of the second factor to all of them. parts: blocks of a cluster that share a tile; each
    multiplies as many of its chunks, and finishes a part of its results. resident: blocks by roles of a
    multiprocessor, among which its registers are divided. exchanged: the contraction's second operand is the
    first factor, and its columns are the rows. turners: warps of a role that changes factors on their
    way: it turns the second one, of 32 bits in columns of the channel, to rows, or splits both. left_over:
    whether the blocks of a cluster, which stay, take whole tiles in every full turn, and share in parts only
    a tile of those that are left over after it. preloaded: whether a block asks for all its chunks of the
    second factor at once, before those of the first one, of which alone the ring is then.
    """

    block: MatrixTile
    warps: Warps
    stages: int
    channel: str
    raster: int
    engine: Literal["mma", "wgmma"]
    rounded: bool = False
    copiers: int = field(default=0, metadata={"least": 0})
    teams: int = 1
    blocks: int = field(default=0, metadata={"least": 0})
    transport: Literal["threads", "engine"] = "threads"
    cluster: int = 1
    stores: Literal["threads", "engine", "sums"] = "threads"
    parts: int = 1
    resident: int = 1
    exchanged: bool = False
    turners: int = field(default=0, metadata={"least": 0})
    left_over: bool = False
    preloaded: bool = False

    @property
    def team_warps(self) -> int:
        """Warps that share a tile."""
        return self.warps.m * self.warps.n * self.warps.k

    @property
    def threads(self) -> int:
        """Threads per block."""
        return WARP * (self.copiers + self.turners + self.teams * self.team_warps)

    @property
    def copying_threads(self) -> int:
        """Threads that share the copies of a chunk."""
        return WARP * (self.copiers or self.team_warps)

    @property
    def warp_m(self) -> int:
        """Rows of one warp."""
        return self.block.m // self.warps.m

    @property
    def warp_n(self) -> int:
        """Columns of one warp."""
        return self.block.n // self.warps.n

    def may_preload(self, view: MatrixView) -> bool:
        """Return whether threads copy the second factor as it is multiplied: none rounds it where it lies."""
        rounds = self.engine == WARPGROUPS and view.rounds and not self.rounded
        return not self.copiers and view.copy_elements(1) > 0 and not rounds

    def check(self, view: MatrixView) -> None:
        """Raise InputError where tiles, warps, stages or engine are impossible."""
        depth = view.depth
        warps = (self.warps.m, self.warps.n, self.warps.k)
        block = (self.block.m, self.block.n, self.block.k)
        tiles = zip(block, (MMA_M, MMA_N, depth), warps, strict=True)
        if any(size % (least * count) for size, least, count in tiles):
            raise InputError(
                f"expected tiles of warps in multiples of {MMA_M} x {MMA_N} x {depth}, got "
                f"{' x '.join(map(str, block))} for {' x '.join(map(str, warps))} warps"
            )
        check_threads(self.threads)
        self._check_parts(view)
        self._check_members(view)
        most = LONGEST_RING if self.preloaded else MAX_STAGES
        if self.stages > most:
            raise InputError(f"expected at most {most} stages, got {self.stages}")
        if self.channel != view.channel:
            raise InputError(f"expected channel {view.channel}, got {self.channel}")
        if self.engine == WARPGROUPS:
            self._check_groups(view)
        if view.stored and (not self.copiers or self.stores != THREADS):
            raise InputError(
                "expected a role that copies, and threads that store, for factors that are stored in pieces"
            )
        if self.preloaded and not self.may_preload(view):
            raise InputError(
                "expected a second factor that threads copy as it is multiplied, and no role that copies, "
                "where it is loaded first"
            )
        if self.copiers:
            self._check_roles(view)
        elif self.teams > 1 or self.blocks or {self.transport, self.stores} != {THREADS} or self.cluster > 1:
            raise InputError(
                "expected teams, a grid that stays, the copy engine and clusters with a role that copies"
            )
        elif self.resident > 1 or self.turners:
            raise InputError(
                "expected resident blocks, and warps that turn a factor, with a role that copies"
            )

    def check_sums(self, sums: ColumnSums | None) -> None:
        """Raise InputError where a tile does not hold whole parts of sums of columns, or not all of a row."""
        if sums is None:
            if self.stores == ONLY_SUMS:
                raise InputError("expected sums of columns where nothing else is stored")
            return
        if self.block.m % sums.length or self.exchanged or self.parts > 1:
            raise InputError(
                f"expected tiles of whole parts of {sums.length} rows, factors in their order and a block "
                "for each tile where a product sums columns"
            )
        if self.stores == ENGINE and not sums.stored:
            raise InputError(
                "expected threads that store where a product sums what is not computed from what it stores"
            )
        if self.stores == ONLY_SUMS and sums.written:
            raise InputError("expected results that are not stored where warps lay down what is summed alone")

    def _check_parts(self, view: MatrixView) -> None:
        chunks = max(1, view.size(view.taps)) * -(-view.sizes[view.channel] // self.block.k)
        if self.parts > MOST_PARTS or chunks_of_part(chunks, self.parts)[1] < 1:
            raise InputError(
                f"expected at most {MOST_PARTS} parts with a chunk each, got {self.parts} parts of {chunks}"
            )
        if self.left_over:
            self._check_left_over(view)
        elif self.parts > 1 and (self.cluster > 1 or self.teams > 1 or self.blocks or self.stores != THREADS):
            raise InputError(
                "expected a block per tile and part, one team and threads that store where blocks share sums"
            )

    def _check_left_over(self, view: MatrixView) -> None:
        if self.parts == 1 or max(self.cluster, self.teams, self.resident) > 1 or self.stores == ONLY_SUMS:
            raise InputError(
                "expected several parts, one team, one block of a multiprocessor and results that are stored "
                "where blocks share tiles that are left over"
            )
        rows, columns = view.size(view.rows), view.size(view.columns)
        tiles = view.size(view.batch) * -(-rows // self.block.m) * -(-columns // self.block.n)
        whole = self.blocks > 0 and self.blocks % self.parts == 0
        if not whole or not shares_left_over(tiles, self.blocks, self.parts):
            raise InputError(
                f"expected blocks in clusters of {self.parts} that have a full turn, and then at most a tile "
                f"per cluster left over, got {tiles} tiles for {self.blocks} blocks"
            )

    def _check_members(self, view: MatrixView) -> None:
        members = view.sums_of_result
        if members == 1:
            return
        if self.parts > 1 or self.exchanged:
            raise InputError(
                f"expected a block per tile and factors in their order for results of {members} sums each"
            )
        stored = view.stored
        piece = piece_columns(self.warp_n, stored=stored) if self.copiers else self.warp_n
        if not holds_members(self.warp_n, piece, members):
            raise InputError(
                f"expected columns of warps, and of their pieces, in multiples of {members} groups of "
                f"{MMA_N} for results of {members} sums each, got {self.warp_n} and {piece}"
            )

    def _check_groups(self, view: MatrixView) -> None:
        if not (takes_roles(view) if self.copiers else takes_warpgroups(view)):
            raise InputError("expected factors of 8 or 32 bits in rows of the channel for warpgroups")
        if self.warps.m % WARPGROUP_WARPS or self.warps.k != 1 or self.warp_n > MOST_N:
            raise InputError(
                f"expected multiples of {WARPGROUP_WARPS} warps along m, one set of them and at most "
                f"{MOST_N} columns each, got {self.warps.m} x {self.warps.n} x {self.warps.k} warps "
                f"and {self.warp_n} columns"
            )
        if view.dtype in BYTES and self.warp_n not in BYTES_N:
            raise InputError(
                f"expected columns of bytes in multiples of 16 for warpgroups, got {self.warp_n}"
            )
        row = self.block.k * itemsize("bf16" if view.splits else view.dtype)
        if row not in ROW_BYTES and any(view.along(i) in ("", view.channel) for i in (0, 1)):
            raise InputError(f"expected chunks of 32, 64 or 128 bytes for warpgroups, got {row}")
        if (view.splits or view.stored) and self.block.k > GROUP_CHUNK:
            raise InputError(f"expected chunks of split factors of at most {GROUP_CHUNK}, got {self.block.k}")

    def _check_roles(self, view: MatrixView) -> None:
        if self.engine != WARPGROUPS or self.copiers % WARPGROUP_WARPS or self.teams > MOST_TEAMS:
            raise InputError(
                f"expected roles of whole warpgroups that multiply as such, at most {MOST_TEAMS} teams, "
                f"got {self.copiers} warps that copy, {self.teams} teams and engine {self.engine}"
            )
        self._check_turners(view)
        tiles_m = -(-view.size(view.rows) // self.block.m)
        if tiles_m % self.cluster or self.blocks % self.cluster or gcd(self.raster, tiles_m) % self.cluster:
            raise InputError(
                f"expected tiles along m, raster and blocks in multiples of clusters of {self.cluster}, got "
                f"{tiles_m}, {self.raster} and {self.blocks}"
            )
        columns = view.rounds and not (view.in_rows(0) and view.in_rows(1))
        if columns and self.transport != ENGINE:
            raise InputError("expected the copy engine for TF32 factors in columns of the channel")
        if view.splits:
            self._check_splitting(view)

    def _check_splitting(self, view: MatrixView) -> None:
        """Both factors come in rows of the channel by the copy engine; one team multiplies their pieces."""
        if self.transport != ENGINE or not (view.in_rows(0) and view.in_rows(1)):
            raise InputError(
                "expected rows of the channel that the copy engine brings for a role that splits"
            )
        several = max(self.teams, self.parts, self.resident, self.cluster) > 1
        if several or self.block.k != GROUP_CHUNK or self.stores != THREADS:
            raise InputError(
                f"expected chunks of {GROUP_CHUNK}, a block per tile and multiprocessor, one team and "
                "threads that store for a role that splits"
            )

    def _check_turners(self, view: MatrixView) -> None:
        wanted = ROLE_TURNERS if turns_second(view) or view.splits else 0
        if self.turners != wanted:
            where = "columns" if turns_second(view) else "rows"
            what = "split rows" if view.splits else f"turn a second factor that lies in {where}"
            raise InputError(f"expected {wanted} warps that {what} of the channel, got {self.turners}")
        row = ROW_BYTES[-1] // itemsize(view.dtype)
        if turns_second(view) and (self.cluster > 1 or self.block.k != row or self.block.n < row):
            raise InputError(
                f"expected chunks of {row}, at least as many columns and no clusters that share copies where "
                f"a factor is turned, got {self.block.k}, {self.block.n} and clusters of {self.cluster}"
            )


def column_slots(stages: int) -> int:
    """Slots of a second factor that is turned: with what is turned already as many as of the first one."""
    return max(LEAST_COLUMN_SLOTS, stages - TURNED_SLOTS)


def chunks_of_part(chunks: int, parts: int) -> tuple[int, int]:
    """Chunks of every part of a sum but the last one, and of that."""
    each = -(-chunks // parts)
    return each, chunks - (parts - 1) * each


def shares_left_over(tiles: int, blocks: int, parts: int) -> bool:
    """Return whether full turns leave tiles over, and at most one for each cluster of `parts` blocks."""
    turns, left = divmod(tiles, blocks)
    return turns > 0 and 0 < left <= blocks // parts


def piece_columns(warp_n: int, *, stored: bool) -> int:
    """Columns of a piece of sums that a warp by roles writes: those of long rows where there are such."""
    if warp_n % PIECE_COLUMNS and not warp_n % LONG_COLUMNS and not stored:
        return LONG_COLUMNS
    return gcd(PIECE_COLUMNS, warp_n)


def holds_members(warp_n: int, piece: int, members: int) -> bool:
    """Return whether a warp's columns, and each piece of them, hold all sums of the results they are for."""
    group = MMA_N * members
    return warp_n % group == 0 and piece % group == 0


def panel_columns(plan: MatrixParameters, operand: int, element_bytes: int, *, filled: bool = False) -> int:
    """Columns of one panel of a factor that warpgroups multiply turned: as many as a row's bytes may be.

    A warpgroup starts at a panel, and the columns of the others are whole panels. Where the copy engine
    brings panels, the last one of the second factor may be `filled` beyond the columns that are multiplied:
    it brings short rows no faster.
    """
    widest = ROW_BYTES[-1] // element_bytes
    if filled and operand and plan.warps.n == 1 and plan.warp_n > widest:
        return widest
    shared = plan.warp_n if operand else WARPGROUP_WARPS * MMA_M
    return max(n // element_bytes for n in ROW_BYTES if shared * element_bytes % n == 0)


def matrix_parameters(kernel: Func, view: MatrixView) -> tuple[MatrixParameters, MatrixView]:
    """The parameters of a kernel, and the product as they take it.

    Raises InputError with what does not fit, named by the kernel.
    """
    found = parameters_of(kernel, MatrixParameters)
    taken = view.exchange() if found.exchanged else view
    with faults_of(kernel):
        found.check(taken)
        found.check_sums(known_sums(kernel, view))
    return found, taken
