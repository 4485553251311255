"""Matrix products by roles: one role copies chunks to a channel, others multiply them and write results.

The grid may stay: a block then takes tile after tile, and what it copies of the next tile arrives while it
writes the results of the last one. With two teams, tiles go to them in turn: one multiplies while the other
writes. The chunks of all tiles are the items of one channel, in the order in which they are multiplied, and
a team hands the turn to the next one when it has received its last chunk: a barrier of a slot tells only
phases that follow one another apart, so that nobody may wait for an item while the one before it in its slot
is still to come.

Where both factors are of 32 bits and lie in columns, a third role turns the second one's chunks.
Each factor then has a channel of its own, and the turned chunks have a third; items count alike in all.
Where float32 factors are multiplied in pieces that are not stored, the third role splits both: it receives
items of one channel and publishes their pieces as items of another.

Where tiles are few, the blocks of a cluster share one (`parts`): each multiplies some of its chunks, the last
one perhaps fewer, lays its sums down where the ring was, and finishes a part of the results. Where tiles are
many, and the last turn of a grid that stays would leave most blocks without one (`left_over`), each block
takes whole tiles as long as all have one; then the blocks of a cluster share one of those that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import gcd

from tilewright.ir import Expr, Func, InputError, Sym, TensorType, Value
from tilewright.ir.float_pieces import SCALE
from tilewright.ir.hardware_facts import (
    MMA_M,
    MMA_N,
    MOST_REGISTERS,
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    WARP,
    WARPGROUP_WARPS,
)
from tilewright.ir.tensor.ops import dims
from tilewright.ir.thread.channel_ops import REUSE
from tilewright.ir.thread.split_ops import PRODUCTS
from tilewright.passes.analysis.shared_work import LANES
from tilewright.passes.kernels.column_members import column_of, members_apart
from tilewright.passes.kernels.matrix.parameters import (
    ENGINE,
    ONLY_SUMS,
    PIECE_PADS,
    SPLIT_SLOTS,
    TURNED_SLOTS,
    TURNER_REGISTERS,
    MatrixParameters,
    chunks_of_part,
    column_slots,
    piece_columns,
)
from tilewright.passes.kernels.matrix.problem import tiling_of
from tilewright.passes.kernels.matrix.split import chain_of
from tilewright.passes.kernels.matrix.stage import SplitRows, Staged, TurnedRows, chunk_count
from tilewright.passes.kernels.matrix.view import MatrixView, result_lanes, sums_apart, sums_of, turns_second
from tilewright.passes.kernels.matrix.warpgroup import (
    Factor,
    load_chunk,
    multiply_held,
    start_multiplying,
    warpgroup_rows,
)
from tilewright.passes.kernels.writing.cluster_sums import SUM_PADS, meet, own_part, own_vectors, summed
from tilewright.passes.kernels.writing.column_sums import GROUP_ROWS, TileSums, column_sums
from tilewright.passes.kernels.writing.engine_results import EngineResults, Panel, Place
from tilewright.passes.kernels.writing.points import Points, store_results
from tilewright.passes.kernels.writing.prefetch import shared_lines
from tilewright.passes.kernels.writing.tile_edges import inside_and_edges
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: registers of a thread that copies, by whether it only hands boxes to the copy engine
COPIER_REGISTERS = {False: 96, True: 40}
#: where a team lays down results: one buffer, or one per result that the copy engine writes
Stage = Value | dict[Value, Value]
#: the tiles of both factors, of each piece where there are such
Pieces = Sequence[Sequence[Factor]]


def raster_place(place: Expr, group: int, blocks_n: int) -> tuple[Expr, Expr]:
    """The tile along m and n of a number: `group` tiles along m are taken before the next ones along n."""
    inside = place % (group * blocks_n)
    return place // (group * blocks_n) * group + inside % group, inside // group


def role_registers(plan: MatrixParameters, *, by_engine: bool) -> tuple[int, int]:
    """Registers of a thread that copies, and of one that multiplies: all that is left.

    by_engine: whether the role that copies only hands boxes to the copy engine. (0, 0): all threads have as
    many as a thread can have.
    """
    share = REGISTERS_PER_SM // plan.resident // plan.threads // REGISTER_UNIT * REGISTER_UNIT
    if share >= MOST_REGISTERS:
        return 0, 0
    copiers, turners = WARP * plan.copiers, WARP * plan.turners
    others = plan.threads - copiers - turners
    each = COPIER_REGISTERS[by_engine]
    left = share * plan.threads - each * copiers - TURNER_REGISTERS * turners
    left = left // others // REGISTER_UNIT * REGISTER_UNIT
    return each, min(MOST_REGISTERS - REGISTER_UNIT, left)


@dataclass(frozen=True)
class _Turning:
    """How the second factor is turned: the channel of its columns, its rows, and the channel of these."""

    columns: Value
    rows: TurnedRows
    turned: Value


@dataclass(frozen=True)
class _Splitting:
    """How both factors are split: the channel of what is split, the tiles of pieces, and their channel."""

    whole: Value
    rows: tuple[SplitRows, SplitRows]
    split: Value

    def pieces(self) -> Pieces:
        """Both factors of each piece."""
        first, second = (rows.pieces() for rows in self.rows)
        return list(zip(first, second, strict=True))


@dataclass(frozen=True)
class _Tile:
    """A tile of results: its first row and column, its place in the batch, the item of its first chunk.

    number: among all tiles. own: how many tiles the role has had before. shared: whether the block multiplies
    its part of the chunks only.
    """

    m: Expr
    n: Expr
    batch: Mapping[str, Expr]
    item: Expr
    number: Expr
    own: Expr
    shared: bool


def lower_by_roles(kernel: Func, view: MatrixView, plan: MatrixParameters) -> Func:
    """The thread-level function of a product whose parameters name a role that copies.

    rewrite:  tensor.contract + epilogue maps   -->   role { acquire; copies; publish }
                                                      role { receive; multiply; release; results } ...
    """
    return _RoleMatrix(kernel, view, plan).lower()


class _RoleMatrix:
    def __init__(self, kernel: Func, view: MatrixView, plan: MatrixParameters) -> None:
        self.view, self.plan, self.op = view, plan, view.op
        kernel, self.totals = members_apart(kernel, view.op, view.members)
        self.m, self.n = view.size(view.rows), view.size(view.columns)
        self.blocks_m, self.blocks_n = -(-self.m // plan.block.m), -(-self.n // plan.block.n)
        self.tiles = self.blocks_m * self.blocks_n * view.size(view.batch)
        #: tiles that clusters share after turns in which every block has a tile
        self.left = 0
        if plan.left_over:
            self.blocks = plan.blocks
            self.turns, self.left = divmod(self.tiles, self.blocks)
        else:
            self.blocks = min(plan.blocks or self.tiles, self.tiles) * plan.parts
            self.turns = -(-self.tiles * plan.parts // self.blocks)
        if plan.teams > self.turns:
            raise InputError(
                f"expected a tile per block for each of {plan.teams} teams, got {self.turns}",
                where=f"@{kernel.name}",
            )
        self.name = kernel.name
        self.w = Writer(kernel, plan.threads, (self.blocks, 1, 1), cluster=plan.cluster * plan.parts)
        self.all_chunks = chunk_count(view, plan)
        self.chunks, self.last_chunks = chunks_of_part(self.all_chunks, plan.parts)
        last = self._last()
        self.transposed = last in view.rows
        self.sums = sums_of(view.dtype)
        columns = self._piece_columns() // len(self.totals)
        piece = (MMA_M, columns) if self.transposed else (columns, MMA_M)
        self.lanes = result_lanes(kernel, view, *piece)
        #: sums of columns that the kernel takes besides, of each team's tiles, and what is summed of a piece
        self.column_sums = column_sums(kernel, view)
        self.tile_sums: list[TileSums] = []
        self.summed: list[dict[Value, Value]] = []

    def lower(self) -> Func:
        w, plan = self.w, self.plan
        with w.b.at(self.op.loc):
            columns = column_slots(plan.stages) if turns_second(self.view) else plan.stages
            slots = (plan.stages, columns)
            pieces = [
                [Staged(w, view, plan, i, 0, {}, slots[i]) for i in (0, 1)] for view in self.view.pieces()
            ]
            factors = [factor for both in pieces for factor in both]
            if plan.cluster > 1 and not all(both[1].by_engine for both in pieces):
                raise InputError(
                    "expected a second factor that the copy engine can bring to clusters",
                    where=f"@{self.name}",
                )
            if (self.view.rounds or self.view.splits) and not all(f.by_engine for f in factors):
                raise InputError(
                    "expected float32 factors that the copy engine can bring",
                    where=f"@{self.name}",
                )
            self.results = self._engine_results()
            stages = [self._stage() for _ in range(plan.teams)] if self._has_whole_tiles else []
            self._prepare_sums()
            self.turning = self._turning(factors[-1]) if turns_second(self.view) else None
            tiles = [f.tiles for f in factors if self.turning is None or f.operand == 0]
            scope = "cluster" if plan.cluster > 1 else "block"
            ring = w.b.value(
                "thread.channel", *tiles, hint="ring", slots=plan.stages, scope=scope,
                divided=plan.teams > 1,
            )  # fmt: skip
            multiplied: tuple[Pieces, Value] = (pieces, ring)
            splitting = self._splitting(pieces[0], ring) if self.view.splits else None
            if splitting is not None:
                multiplied = (splitting.pieces(), splitting.split)
            orders = [self._order(team) for team in range(plan.teams)]
            copiers, others = role_registers(plan, by_engine=all(f.by_engine for f in factors))
            self._prefetch(factors[-1])
            with w.role("copy", plan.copiers, copiers):
                self._copy(factors, ring)
                self._meet_others()
            if self.turning is not None:
                with w.role("turn", plan.turners, TURNER_REGISTERS if others else 0):
                    self._turn(self.turning)
                    self._meet_others()
            if splitting is not None:
                with w.role("split", plan.turners, TURNER_REGISTERS if others else 0):
                    self._split(splitting)
            for team in range(plan.teams):
                name = f"multiply{team}" if plan.teams > 1 else "multiply"
                with w.role(name, plan.team_warps, others):
                    sums = self._sums()
                    if self._has_whole_tiles:
                        self._multiply(*multiplied, sums, orders, stages[team], team)
                    if plan.parts > 1:
                        self._multiply_part(*multiplied, sums)
        func = w.finish()
        return func.with_attrs(resident=plan.resident) if plan.resident > 1 else func

    def _turning(self, columns: Staged) -> _Turning:
        rows = TurnedRows(self.w, self.plan, columns)
        slots = columns.tiles.tensor.shape[0]
        return _Turning(
            self.w.b.value("thread.channel", columns.tiles, hint="columns", slots=slots),
            rows,
            self.w.b.value(
                "thread.channel", rows.tiles, hint="turned", slots=TURNED_SLOTS, divided=self.plan.teams > 1
            ),
        )

    def _splitting(self, whole: list[Staged], ring: Value) -> _Splitting:
        first, second = (SplitRows(self.w, self.plan, factor) for factor in whole)
        tiles = (first.tiles, second.tiles)
        split = self.w.b.value("thread.channel", *tiles, hint="split", slots=SPLIT_SLOTS)
        return _Splitting(ring, (first, second), split)

    def _meet_others(self) -> None:
        """In a role without results: be there when the blocks that share a tile meet."""
        if self.plan.parts > 1:
            meet(self.w)
            meet(self.w)

    def _order(self, team: int) -> Value | None:
        """The channel by which a team hands the turn on; none where no tile follows one of its own."""
        if self.plan.teams == 1 or self.turns < team + 2:
            return None
        return self.w.b.value("thread.channel", hint=f"order{team}", slots=1)

    def _engine_results(self) -> EngineResults | None:
        """Results that the copy engine shall write and can, or what is summed and never written."""
        plan, view = self.plan, self.view
        if plan.stores == ONLY_SUMS:
            assert self.column_sums is not None
            return EngineResults.unwritten(
                self.w, self.totals, tiling_of(view, plan), self.column_sums.points
            )
        if plan.stores != ENGINE:
            return None
        results = list(self.w.outputs) if self.column_sums is None else self.column_sums.written
        return EngineResults.of(self.w, self.totals, tiling_of(view, plan), results)

    def _stage(self) -> Stage:
        """Where a team's warps bring sums into rows of results, each a piece of its own."""
        if self.results is not None:
            return self.results.pieces()
        pad, columns = PIECE_PADS[self.transposed], self._piece_columns()
        shape = (columns, MMA_M + pad) if self.transposed else (MMA_M, columns + pad)
        return self.w.alloc((self.plan.team_warps, *shape), self.sums, "shared", "pieces")

    def _prepare_sums(self) -> None:
        """Allocate what each team needs for sums of columns."""
        if self.column_sums is None:
            return
        w, plan = self.w, self.plan
        shape = (plan.team_warps, MMA_M, self._piece_columns() + PIECE_PADS[False])
        for _ in range(plan.teams):
            sums = TileSums(w, self.view, self.column_sums, plan.block.m, plan.block.n)
            self.tile_sums.append(sums)
            if self.results is not None:
                continue  # pieces of results are read where the copy engine reads them
            self.summed.append(
                {v: w.alloc(shape, v.tensor.dtype, "shared", "summed") for v in self.column_sums.points}
            )

    def _piece_columns(self) -> int:
        return piece_columns(self.plan.warp_n, stored=self.view.stored)

    @property
    def _has_whole_tiles(self) -> bool:
        """Whether blocks have tiles of their own, rather than parts of them alone."""
        return self.plan.parts == 1 or self.plan.left_over

    @contextmanager
    def _tiles(self, team: int | None) -> Iterator[_Tile]:
        """The tiles of this block one after the other, without one left over: all, or those of one team."""
        w, teams = self.w, self.plan.teams
        turns = self.turns if team is None else -(-(self.turns - team) // teams)
        with w.loop("turn", turns) as own:
            turn = own if team is None else w.simple(own * teams + team)
            number = w.simple(turn * self.blocks + self._first_number())
            with w.when(w.below(number, self.tiles)):
                yield self._tile(number, turn, own)

    def _first_number(self) -> Expr:
        """The first tile of the block, or of the cluster where its blocks share all they have."""
        return Sym("bid.x") if self._has_whole_tiles else Sym("bid.x") // self.plan.parts

    def _tiles_in_order(self) -> Iterator[_Tile]:
        """All tiles of this block, whose chunks are the items of the channel: one left over comes last."""
        with self._tiles(None) as tile:
            yield tile
        if self.left:
            mask, tile = self._shared_tile()
            with self.w.when(mask):
                yield tile

    def _shared_tile(self) -> tuple[Mask, _Tile]:
        """The tile that the blocks of the cluster share, and whether they have one, in which all agree."""
        w, cluster = self.w, self.w.simple(Sym("bid.x") // self.plan.parts)
        if not self.left:
            return (), self._tile(cluster, 0, 0)
        number = w.simple(self.turns * self.blocks + cluster)
        return w.below(cluster, self.left), self._tile(number, self.turns, self.turns, shared=True)

    def _lengths(self, tile: _Tile) -> Iterator[tuple[Mask, int]]:
        """How many chunks of a tile a block multiplies, and when: the last part may be shorter."""
        parts = self.plan.parts
        if not tile.shared or self.last_chunks == self.chunks:
            yield (), self.chunks if tile.shared else self.all_chunks
            return
        part = self.w.simple(own_part(parts))
        yield ((part, 0, parts - 1),), self.chunks
        yield ((part, parts - 1, parts),), self.last_chunks

    def _first_chunk(self, tile: _Tile) -> Expr:
        """The first chunk of a tile that a block multiplies."""
        return self.w.simple(own_part(self.plan.parts) * self.chunks) if tile.shared else 0

    def _tile(self, number: Expr, turn: Expr, own: Expr, *, shared: bool | None = None) -> _Tile:
        """A tile by its number. shared: by default, whether the blocks of a cluster share all tiles."""
        w, view = self.w, self.view
        if shared is None:
            shared = not self._has_whole_tiles
        each = self.blocks_m * self.blocks_n
        group = gcd(self.plan.raster, self.blocks_m)
        block_m, block_n = raster_place(w.simple(number % each), group, self.blocks_n)
        batch = w.unravel(w.simple(number // each), [view.sizes[d] for d in view.batch])
        return _Tile(
            w.simple(block_m * self.plan.block.m),
            w.simple(block_n * self.plan.block.n),
            dict(zip(view.batch, batch, strict=True)),
            w.simple(turn * self.all_chunks),
            number,
            own,
            shared,
        )

    def _prefetch(self, second: Staged) -> None:
        """Bring what the block's first tile reads of the second factor to the L2, by all threads."""
        tile = self._tile(self.w.simple(self._first_number()), 0, 0)
        second.move_to(tile.n, tile.batch)
        second.begin_at(self._first_chunk(tile), None)
        second.share_lines(*shared_lines(self.w.simple(tile.m // self.plan.block.m), self.blocks_m))
        second.prefetch_early(0, self.chunks if tile.shared else self.all_chunks)

    # -- roles -----------------------------------------------------------------------------------------------
    def _copy(self, factors: list[Staged], ring: Value) -> None:
        w = self.w
        for tile in self._tiles_in_order():
            for factor in factors:
                factor.move_to((tile.m, tile.n)[factor.operand], tile.batch)
                factor.begin_at(self._first_chunk(tile), None)
            for mask, chunks in self._lengths(tile):
                with w.when(mask), w.loop("chunk", chunks) as chunk:
                    item = w.simple(tile.item + chunk)
                    if self.turning is not None:
                        self._fill(self.turning.columns, factors[1:], chunk, item)
                        self._fill(ring, factors[:1], chunk, item)
                    else:
                        self._fill(ring, factors, chunk, item)

    def _fill(self, channel: Value, factors: list[Staged], chunk: Expr, item: Expr) -> None:
        """Copy a chunk of some factors as an item of their channel."""
        w = self.w
        w.b.do("thread.acquire", channel, item=item)
        for factor in reversed(factors):
            factor.fetch(chunk, w.simple(item % factor.tiles.tensor.shape[0]))
        w.b.do("thread.publish", channel, item=item)

    def _turn(self, turning: _Turning) -> None:
        """Write the columns of every chunk as rows, while those before are multiplied."""
        w, slots = self.w, turning.rows.columns.tiles.tensor.shape[0]
        for tile in self._tiles_in_order():
            for mask, chunks in self._lengths(tile):
                with w.when(mask), w.loop("chunk", chunks) as chunk:
                    item = w.simple(tile.item + chunk)
                    w.b.do("thread.receive", turning.columns, item=item)
                    w.b.do("thread.acquire", turning.turned, item=item)
                    turning.rows.turn(w.simple(item % slots), w.simple(item % TURNED_SLOTS))
                    w.b.do("thread.publish", turning.turned, item=item)
                    w.b.do("thread.release", turning.columns, item=item)

    def _split(self, splitting: _Splitting) -> None:
        """Write the pieces of every chunk, while those of chunks before are multiplied."""
        w = self.w
        with self._tiles(None) as tile, w.loop("chunk", self.chunks) as chunk:
            item = w.simple(tile.item + chunk)
            w.b.do("thread.receive", splitting.whole, item=item)
            w.b.do("thread.acquire", splitting.split, item=item)
            for rows in splitting.rows:
                rows.split(w.simple(item % self.plan.stages), w.simple(item % SPLIT_SLOTS))
            w.b.do("thread.publish", splitting.split, item=item)
            w.b.do("thread.release", splitting.whole, item=item)

    def _sums(self) -> tuple[Value, list[Value]]:
        """The sums of a tile in fragments, and those of a chunk that are promoted to them, if any."""
        plan = self.plan
        shape = (plan.warp_m // MMA_M, plan.warp_n // MMA_N, MMA_M, MMA_N)
        return self.w.alloc(shape, self.sums, "frag", "sums"), self._parts_of_sums(shape)

    def _multiply(
        self,
        pieces: Pieces,
        ring: Value,
        sums: tuple[Value, list[Value]],
        orders: list[Value | None],
        stage: Stage,
        team: int,
    ) -> None:
        w, (acc, parts) = self.w, sums
        with self._tiles(team) as tile:
            w.b.do("thread.fill_fragment", acc, value=0.0 if self.in_pieces else self._start())
            self._await_turn(orders, team, tile)
            if parts:
                self._sum_of_pieces(pieces, ring, parts, acc, tile, self.all_chunks)
            else:
                self._sum(pieces[0], ring, acc, tile, self.all_chunks)
            self._hand_on_turn(orders[team], tile)
            if not parts:
                w.b.do("thread.warpgroup_wait", acc)
                w.b.do("thread.release", self._kept(ring), item=w.simple(tile.item + self.all_chunks - 1))
            self._epilogue(acc, stage, tile, team)

    def _multiply_part(self, pieces: Pieces, ring: Value, sums: tuple[Value, list[Value]]) -> None:
        """This block's part of a sum, and its part of the results of the tile that the cluster shares.

        All threads of a cluster meet, also of one that no tile is left for.
        """
        w, (acc, parts) = self.w, sums
        has_tile, tile = self._shared_tile()
        with w.when(has_tile):
            w.b.do("thread.fill_fragment", acc, value=type(self._start())(0))
            for mask, chunks in self._lengths(tile):
                with w.when(mask):
                    if parts:
                        self._sum_of_pieces(pieces, ring, parts, acc, tile, chunks)
                    else:
                        self._sum(pieces[0], ring, acc, tile, chunks)
                        w.b.do("thread.warpgroup_wait", acc)
                        w.b.do("thread.release", self._kept(ring), item=w.simple(tile.item + chunks - 1))
        w.b.do("thread.barrier")
        whole = self._sum_tile(ring)
        with w.when(has_tile):
            self._lay_down(acc, whole)
        meet(w)
        with w.when(has_tile):
            self._shared_results(whole, tile)
        meet(w)

    def _sum_tile(self, ring: Value) -> Value:
        """A tile of sums on the bytes of the ring: neighbours in memory are last."""
        plan, pad = self.plan, SUM_PADS[self.transposed]
        shape = (plan.block.n, plan.block.m + pad) if self.transposed else (plan.block.m, plan.block.n + pad)
        whole_type = TensorType(self.sums, shape, "shared")
        (whole,) = self.w.b.emit(REUSE, (ring,), {}, types=[whole_type], hint="sum_tile")
        return whole

    def _lay_down(self, acc: Value, whole: Value) -> None:
        """Write the block's sums to the tile."""
        w, plan = self.w, self.plan
        _, own = warpgroup_rows(w, plan)
        first_column = w.simple(Sym("tid") // WARP // plan.warps.m * plan.warp_n)
        with w.loops("i", acc.tensor.shape[:2], unroll=1) as (i, j):
            row, column = own + i * (WARPGROUP_WARPS * MMA_M), first_column + j * MMA_N
            at = (column, row) if self.transposed else (row, column)
            w.b.do(
                "thread.store_fragment", acc, whole,
                at=tuple(map(w.simple, at)), transposed=self.transposed, item=(i, j),
            )  # fmt: skip

    def _shared_results(self, whole: Value, tile: _Tile) -> None:
        """Write this block's part of the results, each from the sum of what the blocks have."""
        w, plan, lanes = self.w, self.plan, gcd(self.lanes, LANES)
        major, minor = (plan.block.n, plan.block.m) if self.transposed else (plan.block.m, plan.block.n)
        vectors = minor // lanes
        with own_vectors(w, plan.parts, major * vectors, WARP * plan.team_warps) as (number, inside):
            outer, vector = w.unravel(number, (major, vectors))
            inner = w.simple(vector * lanes)
            m, n = (inner, outer) if self.transposed else (outer, inner)
            with w.when((*inside, *self._inside(w.simple(tile.m + m), w.simple(tile.n + n)))):
                sums = summed(w, whole, (outer, inner), lanes)
                if self.in_pieces:
                    self._recompute_shared(sums, tile, outer, inner, lanes)
                with w.loop("v", lanes, unroll=1) as v:
                    at = w.simple(inner + v)
                    row, column = (at, outer) if self.transposed else (outer, at)
                    self._result([w.load(sums, (v,))], tile, row, column)

    def _recompute_shared(self, sums: Value, tile: _Tile, outer: Expr, inner: Expr, lanes: int) -> None:
        """Compute sums that are not finite once more, as kernels on the lanes do."""
        w = self.w
        with w.loop("s", lanes, unroll=1) as lane:  # sums stay in registers
            finite = w.b.value("scalar.isfinite", w.load(sums, (lane,)))
            with w.when((), w.b.value("scalar.not", finite)):
                at = w.simple(inner + lane)
                row, column = (at, outer) if self.transposed else (outer, at)
                w.store(chain_of(w, self.op, self._index(tile, row, column)), sums, (lane,))

    @property
    def in_pieces(self) -> bool:
        """Whether products of pieces are summed: stored ones, or those that a role splits."""
        return self.view.stored or self.view.splits

    def _parts_of_sums(self, shape: tuple[int, ...]) -> list[Value]:
        """The sums of a chunk that are promoted: of all products (of pieces), or of small and large ones."""
        if self.view.promotes:
            return [self.w.alloc(shape, "f32", "frag", "part")]
        if not self.in_pieces:
            return []
        names = ("part",) if sums_apart(self.view) == 1 else ("small", "large")
        return [self.w.alloc(shape, "f32", "frag", name) for name in names]

    def _start(self) -> float:
        start = float(self.op["init"][0])  # type: ignore[index, arg-type]
        return start if self.sums == "f32" else int(start)

    def _sum(self, factors: Sequence[Factor], ring: Value, acc: Value, tile: _Tile, chunks: int) -> None:
        """Start all multiplications of a tile; that of the last chunk is not waited for."""
        w, plan = self.w, self.plan
        if self.turning is not None:
            first = factors[0]
            assert isinstance(first, Staged)
            self._sum_of_turned(self.turning, first, ring, acc, tile, chunks)
            return
        with w.loop("chunk", chunks) as chunk:
            item = w.simple(tile.item + chunk)
            w.b.do("thread.receive", ring, item=item)
            if factors[0].held and chunks > 1:
                # the registers from which the chunk before is multiplied are loaded anew
                w.b.do("thread.warpgroup_wait", acc)
            slot = w.simple(item % plan.stages)
            start_multiplying(w, plan, factors, acc, (slot, slot))
            if chunks > 1 and not factors[0].held:
                w.b.do("thread.warpgroup_wait", acc, pending=1)
            with w.when(w.bounds((w.simple(chunk - 1),), (chunks,))):
                if chunks > 1:
                    w.b.do("thread.release", ring, item=w.simple(item - 1))

    def _kept(self, ring: Value) -> Value:
        """The channel whose last item is multiplied until the sums of a tile are finished."""
        return ring if self.turning is None else self.turning.turned

    def _sum_of_turned(
        self, turning: _Turning, first: Staged, ring: Value, acc: Value, tile: _Tile, chunks: int
    ) -> None:
        """The same with the first factor in registers, which frees its slot, and the second one turned."""
        w, plan = self.w, self.plan
        with w.loop("chunk", chunks) as chunk:
            item = w.simple(tile.item + chunk)
            w.b.do("thread.receive", ring, item=item)
            if chunks > 1:
                # the registers from which the chunk before is multiplied are loaded anew
                w.b.do("thread.warpgroup_wait", acc)
                with w.when(w.bounds((w.simple(chunk - 1),), (chunks,))):
                    w.b.do("thread.release", turning.turned, item=w.simple(item - 1))
            fragments = load_chunk(w, plan, first, acc, w.simple(item % plan.stages))
            w.b.do("thread.release", ring, item=item)
            w.b.do("thread.receive", turning.turned, item=item)
            multiply_held(w, plan, fragments, turning.rows, acc, w.simple(item % TURNED_SLOTS))

    def _sum_of_pieces(
        self,
        pieces: Pieces,
        ring: Value,
        parts: Sequence[Value],
        acc: Value,
        tile: _Tile,
        chunks: int,
    ) -> None:
        """Multiply (the pieces of) every chunk, the smaller products first, and promote their sums."""
        w, plan = self.w, self.plan
        slots = SPLIT_SLOTS if self.view.splits else plan.stages
        with w.loop("chunk", chunks) as chunk:
            item = w.simple(tile.item + chunk)
            slot = w.simple(item % slots)
            w.b.do("thread.receive", ring, item=item)
            # one group of the device for all products, whose small ones come first
            products = PRODUCTS if self.in_pieces else (((0, 0),),)
            groups = products if len(parts) > 1 else (tuple(chain.from_iterable(products)),)
            numbered = [(part, pair, not i) for part, pairs in zip(parts, groups, strict=True)
                        for i, pair in enumerate(pairs)]  # fmt: skip
            for part, pair, fresh in numbered:
                first, last = (part, pair, fresh) == numbered[0], (part, pair, fresh) == numbered[-1]
                factors = (pieces[pair[0]][0], pieces[pair[1]][1])
                start_multiplying(
                    w, plan, factors, part, (slot, slot),
                    fresh=fresh, opens=first or len(parts) > 1, closes=last or len(parts) > 1,
                )  # fmt: skip
            for part in parts:
                w.b.do("thread.warpgroup_wait", part)
            w.b.do("thread.release", ring, item=item)
            if len(parts) > 1:
                w.b.do("thread.promote_fragment", *parts, acc, dst=(0, 0))
            else:
                w.b.do("thread.add_fragment", *parts, acc)
        if self.in_pieces:
            w.b.do("thread.scale_fragment", acc, factor=1.0 / SCALE**2)

    def _place(self, tile: _Tile, row_tiles: int) -> Place:
        """Where the results of this warp's sums belong."""
        w, plan, members = self.w, self.plan, len(self.totals)
        _, own = warpgroup_rows(w, plan)
        rows = tuple(w.simple(own + i * (WARPGROUP_WARPS * MMA_M)) for i in range(row_tiles))
        column = w.simple(Sym("tid") // WARP // plan.warps.m * (plan.warp_n // members))
        return Place(tile.batch, tile.m, w.simple(tile.n // members), rows, column)

    def _await_turn(self, orders: list[Value | None], team: int, tile: _Tile) -> None:
        """Wait until the team before has received all chunks of the tile before."""
        w, order = self.w, orders[team - 1]
        if order is None:
            return
        turn = tile.own if team else w.simple(tile.own - 1)
        with w.when(w.bounds((turn,), (self.turns,))):
            w.b.do("thread.receive", order, item=turn)
            w.b.do("thread.release", order, item=turn)

    def _hand_on_turn(self, order: Value | None, tile: _Tile) -> None:
        """Let the next team multiply, where the block has another tile."""
        w = self.w
        if order is None:
            return
        with w.when(w.below(w.simple(tile.number + self.blocks), self.tiles)):
            w.b.do("thread.acquire", order, item=tile.own)
            w.b.do("thread.publish", order, item=tile.own)

    # -- results ---------------------------------------------------------------------------------------------
    def _last(self) -> str:
        """The dimension along which results are neighbours in memory."""
        par = dims(self.op, "par")
        return next((d for d in reversed(par) if par[d] > 1), "")

    def _epilogue(self, acc: Value, stage: Stage, tile: _Tile, team: int) -> None:
        """Write the results of a tile; tiles at an edge have code of their own, so that others test nothing.

        A test around every vector would keep the loads and computations of all others from running side by
        side with it.
        """
        w, plan, members = self.w, self.plan, len(self.totals)
        first, columns = w.simple(tile.n // members), self.view.result_columns
        sides = (("m", tile.m, self.m, plan.block.m), ("n", first, columns, plan.block.n // members))
        always = frozenset(name for name, _, size, extent in sides if not size % extent)
        for mask, whole in inside_and_edges(sides):
            with w.when(mask):
                self._results(acc, stage, tile, always | whole, team)
        if self.tile_sums:
            self.tile_sums[team].finish((tile.m, tile.n), WARP * plan.team_warps)

    def _results(self, acc: Value, stage: Stage, tile: _Tile, whole: frozenset[str], team: int) -> None:
        """Every warp brings its sums into rows, piece by piece, and writes results by vectors.

        Or it has the copy engine write them. whole: the dimensions along which all of the tile lies inside of
        the results.
        """
        w, plan = self.w, self.plan
        if self.results is not None:
            assert not isinstance(stage, Value)
            read = partial(self._sum_panel, team, tile) if self.tile_sums else None
            self.results.write(acc, stage, self._place(tile, acc.tensor.shape[0]), whole, read=read)
            return
        assert isinstance(stage, Value)
        columns = self._piece_columns()
        warp: Expr = w.simple(Sym("tid") // WARP)
        not_finite = w.b.value("thread.any_not_finite_of_warp", acc) if self.in_pieces else None
        _, own = warpgroup_rows(w, plan)
        first_column = w.simple(warp // plan.warps.m * plan.warp_n)
        pieces = plan.warp_n // columns
        with w.loops("piece", (acc.tensor.shape[0], pieces), unroll=1) as (i, piece):
            with w.loop("j", columns // MMA_N, unroll=1) as j:
                at = (warp, j * MMA_N, 0) if self.transposed else (warp, 0, j * MMA_N)
                w.b.do(
                    "thread.store_fragment", acc, stage,
                    at=tuple(map(w.simple, at)), transposed=self.transposed,
                    item=(i, w.simple(piece * (columns // MMA_N) + j)),
                )  # fmt: skip
            m = w.simple(own + i * (WARPGROUP_WARPS * MMA_M))
            n = w.simple(first_column + piece * columns)
            if not_finite is not None:
                self._recompute(not_finite, stage, tile, m, n, whole)
            first = w.simple(n // len(self.totals))
            self._piece(stage, tile, m, first, whole, self.summed[team] if self.summed else {})
            if self.tile_sums:
                self._sum_piece(team, tile, m, n)

    def _sum_panel(self, team: int, tile: _Tile, panel: Panel) -> None:
        """Add up the columns of a warp's panel of results, of which a lane takes two neighbours."""
        w, lane = self.w, Sym("tid") % WARP
        assert self.results is not None
        columns = self.results.columns

        def laid(value: Value, row: Expr, column: Expr) -> Value:
            piece, (warp, turn, _, _) = panel.laid[value]
            return w.load(piece, (warp, turn, row, column))

        with w.loop("c", -(-columns // (2 * WARP)), unroll=1) as step:
            first = w.simple((step * WARP + lane) * 2)
            with w.when(w.below(first, columns)):
                self.tile_sums[team].fold_laid(
                    lambda value, row, behind: laid(value, row, w.simple(first + behind)),
                    (tile.m, tile.n),
                    w.simple(panel.row // GROUP_ROWS),
                    w.simple(panel.column + first),
                    2,
                )

    def _sum_piece(self, team: int, tile: _Tile, m: Expr, n: Expr) -> None:
        """Add up the columns of a warp's piece of results, a lane each."""
        w, columns, summed = self.w, self._piece_columns(), self.summed[team]
        warp, lane = w.simple(Sym("tid") // WARP), w.simple(Sym("tid") % WARP)
        with w.loop("c", -(-columns // WARP), unroll=1) as step:
            column = w.simple(step * WARP + lane)
            with w.when(w.below(column, columns)):
                self.tile_sums[team].fold(
                    lambda v, row, _: w.load(summed[v], (warp, row, column)),
                    (tile.m, tile.n),
                    w.simple(m // GROUP_ROWS),
                    w.simple(n + column),
                )

    def _recompute(
        self, not_finite: Value, stage: Value, tile: _Tile, m: Expr, n: Expr, whole: frozenset[str]
    ) -> None:
        """In a warp with sums that are not finite, compute those of a piece as kernels on the lanes do."""
        w, columns = self.w, self._piece_columns()
        major, minor = (columns, MMA_M) if self.transposed else (MMA_M, columns)
        warp, lane = w.simple(Sym("tid") // WARP), w.simple(Sym("tid") % WARP)
        with w.when((), not_finite), w.loop("s", major * minor // WARP) as step:
            outer, inner = w.unravel(w.simple(step * WARP + lane), (major, minor))
            row, column = (inner, outer) if self.transposed else (outer, inner)
            mask = self._inside(w.simple(tile.m + m + row), w.simple(tile.n + n + column), whole)
            with w.when(mask):
                total = w.load(stage, (warp, outer, inner))
                finite = w.b.value("scalar.isfinite", total)
                with w.when((), w.b.value("scalar.not", finite)):
                    index = self._index(tile, w.simple(m + row), w.simple(n + column))
                    w.store(chain_of(w, self.op, index), stage, (warp, outer, inner))

    def _piece(
        self,
        stage: Value,
        tile: _Tile,
        m: Expr,
        n: Expr,
        whole: frozenset[str],
        summed: Mapping[Value, Value],
    ) -> None:
        """The results of a warp's piece of sums; m, n: the first row and column in the tile's results.

        Vectors of a tile at an edge, of which there are few, take turns in a short loop. summed: where values
        lie whose columns are added up.
        """
        w, plan, members = self.w, self.plan, len(self.totals)
        columns, first = self._piece_columns() // members, w.simple(tile.n // members)
        major, minor = (columns, MMA_M) if self.transposed else (MMA_M, columns)
        vectors = minor // self.lanes
        warp, lane = w.simple(Sym("tid") // WARP), w.simple(Sym("tid") % WARP)
        at_edge = whole != {"m", "n"} and self.m >= plan.block.m and self.n >= plan.block.n
        with w.loop("e", major * vectors // WARP, unroll=0 if at_edge else 1) as step:
            outer, vector = w.unravel(w.simple(step * WARP + lane), (major, vectors))
            inner = w.simple(vector * self.lanes)
            rows, cols = (inner, outer) if self.transposed else (outer, inner)
            inside = () if "m" in whole else w.below(w.simple(tile.m + m + rows), self.m)
            if "n" not in whole:
                inside = (*inside, *w.below(w.simple(first + n + cols), self.view.result_columns))
            with w.when(inside), w.loop("v", self.lanes, unroll=1) as v:
                at = w.simple(inner + v)
                row, column = (at, outer) if self.transposed else (outer, at)
                totals = [w.load(stage, (warp, *self._sum_of(outer, inner, v, i))) for i in range(members)]
                points, place = self._result(totals, tile, w.simple(m + row), w.simple(n + column))
                for value, buffer in summed.items():
                    w.store(points.value(value, place), buffer, (warp, outer, at))

    def _sum_of(self, outer: Expr, inner: Expr, lane: Expr, member: int) -> tuple[Expr, Expr]:
        """Where a piece of sums holds a member of the result `lane` places behind one of the piece.

        The neighbours of a vector lie within a group of columns.
        """
        w, members = self.w, len(self.totals)
        if self.transposed:
            return w.simple(column_of(outer, member, members)), w.simple(inner + lane)
        return outer, w.simple(column_of(inner, member, members) + lane)

    def _inside(self, m: Expr, n: Expr, whole: frozenset[str] = frozenset()) -> Mask:
        rows = () if "m" in whole else self.w.below(m, self.m)
        return rows if "n" in whole else (*rows, *self.w.below(n, self.n))

    def _index(self, tile: _Tile, m: Expr, n: Expr) -> dict[str, Expr]:
        """The index of a result in every dimension, by its row and column in the tile."""
        w, view = self.w, self.view
        index: dict[str, Expr] = dict(tile.batch)
        for names, at in ((view.rows, tile.m + m), (view.columns, tile.n + n)):
            index.update(zip(names, w.unravel(w.simple(at), [view.sizes[d] for d in names]), strict=True))
        return index

    def _result(
        self, totals: Sequence[Value], tile: _Tile, m: Expr, n: Expr
    ) -> tuple[Points, tuple[Expr, ...]]:
        """Compute a result from its sums and store it; gives the values at its point, and the point.

        m, n: its row and column among those of the tile.
        """
        w, view, members = self.w, self.view, len(self.totals)
        if (self.in_pieces or tile.shared) and self._start() != 0.0:
            start = w.b.const(self._start(), self.sums)
            totals = [w.b.value("scalar.add", total, start) for total in totals]
        index: dict[str, Expr] = dict(tile.batch)
        for names, at in ((view.rows, tile.m + m), (view.columns, tile.n // members + n)):
            index.update(zip(names, w.unravel(w.simple(at), [view.results[d] for d in names]), strict=True))
        place = tuple(index[d] for d in dims(self.op, "par"))
        points = Points(w, dict(zip(self.totals, totals, strict=True)))
        ends = self.column_sums.results if self.column_sums is not None else frozenset()
        store_results(w, points, place, [v for v in w.outputs if v not in ends])
        return points, place
