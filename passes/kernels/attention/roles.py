"""Attention by roles: one role copies queries, keys and values to channels, warpgroups multiply them.

A warpgroup has 64 queries. It starts the scores of a tile of keys and the mix of the tile before, and while
the mix runs it takes the softmax of the scores, which become the first factor of the next mix without leaving
registers (the order of FlashAttention-3: Shah and others 2024). Tiles of keys are walked from the last one
that the queries see to the first: pairs are hidden in the first few alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import gcd, inf

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.hardware_facts import (
    MMA_M,
    MMA_N,
    MOST_REGISTERS,
    REGISTER_UNIT,
    REGISTERS_PER_SM,
    WARP,
    WARPGROUP_WARPS,
)
from tilewright.passes.analysis.attention import INNER, KEY
from tilewright.passes.analysis.terms import Read, Term, leaves
from tilewright.passes.kernels.attention.bands import Band, BandedScore, Steps, banded_score
from tilewright.passes.kernels.attention.epilogue import (
    PIECE_COLUMNS,
    PIECE_PAD,
    ResultTile,
    RowState,
    write_pieces,
)
from tilewright.passes.kernels.attention.panels import PanelTiles
from tilewright.passes.kernels.attention.parameters import (
    COPIER_WARPS,
    GROUP_ROWS,
    AttentionParameters,
    depth_of,
    width_tiles,
)
from tilewright.passes.kernels.attention.scores import ScoreMaps
from tilewright.passes.kernels.attention.view import AttentionView
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: registers of a thread that copies, by whether it only hands boxes to the copy engine
COPIER_REGISTERS = {False: 96, True: 24}
#: more tiles of keys than any walk has
MOST_STEPS = 1 << 20


@dataclass(frozen=True)
class RowTile:
    """A tile of queries: its place in the batch, first query, and the tiles of keys that it meets.

    last: the first of them to be walked; count: how many. item: number of the first among the items of
    the block; number: of the tile of queries among those of the block.
    """

    batch: Mapping[str, Expr]
    origin: Expr
    last: Expr
    count: Expr
    item: Expr
    number: Expr


def by_rows(view: AttentionView) -> AttentionView:
    """The view with its longest dimension of rows alone as rows; the others are further ones of the batch."""
    row = max(view.rows, key=lambda d: view.sizes[d])
    others = tuple(d for d in view.rows if d != row)
    return replace(view, rows=(row,), batch=(*view.batch, *others))


def steps_of(view: AttentionView, plan: AttentionParameters, band: Band) -> Steps:
    """The tiles of keys that tiles of queries meet."""
    return Steps(band, plan.rows, plan.keys, -(-view.size(view.rows) // plan.rows), plan.tiles(view))


@dataclass(frozen=True)
class Turns:
    """The order in which blocks take tiles of queries.

    units: of work, `parts` tiles of queries each, a long and a short one where they differ in length;
    blocks: of the grid; turns: units of a block, at most; items: tiles of keys of a unit, where all have
    as many.
    """

    units: int
    parts: int
    blocks: int
    turns: int
    items: int

    @staticmethod
    def of(view: AttentionView, plan: AttentionParameters, steps: Steps) -> Turns | None:
        """The order for a plan; None where blocks that stay would not know how many items came before."""
        tiles = steps.row_tiles * view.size(view.batch)
        if not plan.blocks:
            return Turns(tiles, 1, tiles, 1, 0)
        if not steps.pairs and not steps.equal:
            return None
        parts = 2 if steps.pairs else 1
        units, counts = tiles // parts, steps.counts
        blocks = min(plan.blocks, units)
        return Turns(units, parts, blocks, -(-units // blocks), counts[0] + (counts[-1] if parts == 2 else 0))


def role_registers(plan: AttentionParameters, *, by_engine: bool) -> tuple[int, int]:
    """Registers of a thread that copies, and of one that multiplies: all that is left.

    by_engine: whether the copying role only hands boxes to the copy engine. (0, 0): all threads have as many
    as a thread can have.
    """
    share = REGISTERS_PER_SM // plan.resident // plan.threads // REGISTER_UNIT * REGISTER_UNIT
    if share >= MOST_REGISTERS:
        return 0, 0
    each, copiers = COPIER_REGISTERS[by_engine], WARP * COPIER_WARPS
    left = (share * plan.threads - each * copiers) // (plan.threads - copiers)
    return each, min(MOST_REGISTERS - 2 * REGISTER_UNIT, left // REGISTER_UNIT * REGISTER_UNIT)


def lower_attention_by_roles(kernel: Func, view: AttentionView, plan: AttentionParameters) -> Func:
    """The thread-level function of attention whose parameters name warpgroups.

    rewrite:  contract -> maps -> softmax -> contract -> maps
        -->   role { copies of queries, keys, values; publish }
              role { receive; scores of a tile, mix of the one before; softmax; release }
    """
    return _RoleAttention(kernel, by_rows(view), plan).lower()


class _RoleAttention:
    def __init__(self, kernel: Func, view: AttentionView, plan: AttentionParameters) -> None:
        self.name, self.view, self.plan = kernel.name, view, plan
        self.depth = depth_of(view.dtype)
        self.score: BandedScore = banded_score(view)
        self.steps = steps_of(view, plan, self.score.band)
        turns = Turns.of(view, plan, self.steps)
        if turns is None:
            raise InputError(
                "expected tiles of queries that meet equally many tiles of keys for blocks that stay",
                where=f"@{kernel.name}",
            )
        self.turns = turns
        self.w = Writer(kernel, plan.threads, (turns.blocks, 1, 1))
        self.most = max(self.steps.counts)

    def lower(self) -> Func:
        w, view, plan = self.w, self.view, self.plan
        with w.b.at(view.product.op.loc):
            (row,) = view.rows
            slots = plan.slots(view)
            self.q = PanelTiles(w, view, view.q, row, (INNER,), plan.rows, 1, "q_tile")
            self.k = PanelTiles(w, view, view.k, KEY, (INNER,), plan.keys, slots, "k_tiles")
            self.v = PanelTiles(w, view, view.v, KEY, view.width, plan.keys, slots, "v_tiles")
            self.queries, self.keys, self.values = (
                w.b.value("thread.channel", t.tiles, hint=name, slots=t.slots)
                for t, name in ((self.q, "queries"), (self.k, "keys"), (self.v, "values"))
            )
            columns = width_tiles(view) * MMA_N
            piece = gcd(columns, PIECE_COLUMNS) + PIECE_PAD
            team_warps = plan.warps // plan.teams
            pieces = [
                w.alloc((team_warps, MMA_M, piece), "f32", "shared", "pieces") for _ in range(plan.teams)
            ]
            orders = [self._order(team) for team in range(plan.teams)]
            copiers, others = self._registers()
            with w.role("copy", COPIER_WARPS, copiers):
                self._copy()
            for team, stage in enumerate(pieces):
                name = f"multiply{team}" if plan.teams > 1 else "multiply"
                with w.role(name, team_warps, others):
                    self._multiply(team, stage, orders)
        lowered = w.finish()
        return lowered if plan.resident == 1 else lowered.with_attrs(resident=plan.resident)

    def _order(self, team: int) -> Value | None:
        """The channel by which a team lets the next one start its products; none where there is one team."""
        if self.plan.teams == 1 or (team == self.plan.teams - 1 and self.most == 1):
            return None
        return self.w.b.value("thread.channel", hint=f"order{team}", slots=1)

    def _registers(self) -> tuple[int, int]:
        return role_registers(self.plan, by_engine=all(t.by_engine for t in (self.q, self.k, self.v)))

    # -- order of tiles --------------------------------------------------------------------------------------
    @contextmanager
    def _row_tiles(self) -> Iterator[RowTile]:
        """The tiles of queries of this block in order: the longest of a place in the batch first."""
        w, turns, count = self.w, self.turns, self.steps.row_tiles
        block: Expr = Sym("bid.x")
        if not self.plan.blocks:
            place = w.simple(count - 1 - block % count)
            yield self._row_tile(place, w.simple(block // count), 0, 0)
            return
        per = count // turns.parts
        with w.loop("turn", turns.turns * turns.parts) as turn:
            unit = w.simple(turn // turns.parts * turns.blocks + block)
            with w.when(w.below(unit, turns.units)):
                part, group = w.simple(turn % turns.parts), w.simple(unit % per)
                place = w.simple(count - 1 - group)
                item = w.simple(turn // turns.parts * turns.items)
                if turns.parts == 2:
                    item = w.simple(item + part * self.steps.count(place))
                    place = w.simple((1 - part) * place + part * group)
                yield self._row_tile(place, w.simple(unit // per), item, turn)

    def _row_tile(self, place: Expr, number: Expr, item: Expr, own: Expr) -> RowTile:
        w, view = self.w, self.view
        where = w.unravel(number, [view.sizes[d] for d in view.batch])
        batch = dict(zip(view.batch, where, strict=True))
        last, count = w.simple(self.steps.last(place)), w.simple(self.steps.count(place))
        return RowTile(batch, w.simple(place * self.plan.rows), last, count, item, own)

    def _some(self, tile: RowTile, step: Expr) -> Mask:
        """The condition that a tile of queries meets more than `step` tiles of keys, where it may not."""
        left = self.w.simple(tile.count - 1 - step)
        return self.w.bounds((left,), (MOST_STEPS,))

    # -- the role that copies --------------------------------------------------------------------------------
    def _copy(self) -> None:
        w = self.w
        with self._row_tiles() as tile:
            w.b.do("thread.acquire", self.queries, item=tile.number)
            self.q.fetch(0, tile.origin, tile.batch)
            w.b.do("thread.publish", self.queries, item=tile.number)
            self._bring(self.k, self.keys, tile, 0)
            if self.most > 1:
                with w.loop("step", self.most - 1) as at:
                    step = w.simple(at + 1)
                    with w.when(self._some(tile, step)):
                        self._bring(self.k, self.keys, tile, step)
                        self._bring(self.v, self.values, tile, w.simple(step - 1))
            self._bring(self.v, self.values, tile, w.simple(tile.count - 1))

    def _bring(self, factor: PanelTiles, channel: Value, tile: RowTile, step: Expr) -> None:
        """Hand on the tile of keys or values of a step."""
        w = self.w
        item = w.simple(tile.item + step)
        w.b.do("thread.acquire", channel, item=item)
        factor.fetch(w.simple(item % factor.slots), w.simple((tile.last - step) * self.plan.keys), tile.batch)
        w.b.do("thread.publish", channel, item=item)

    # -- roles that multiply ---------------------------------------------------------------------------------
    def _multiply(self, team: int, pieces: Value, orders: list[Value | None]) -> None:
        w, plan, view = self.w, self.plan, self.view
        self.team, self.orders = team, orders
        self.first_row = team * (plan.rows // plan.teams)
        self.warp_row = w.simple(self.first_row + Sym("tid") // WARP * MMA_M)
        self.scores = w.alloc((1, plan.keys // MMA_N, MMA_M, MMA_N), "f32", "frag", "scores")
        self.mixed = w.alloc((1, width_tiles(view), MMA_M, MMA_N), "f32", "frag", "mixed")
        self.weights = w.alloc((plan.keys // self.depth, 1, MMA_M, self.depth), view.dtype, "frag", "weights")
        self.largest, self.sums, self.factors = (
            w.alloc((1, 2), "f32", "reg", name) for name in ("largest", "total", "factors")
        )
        with self._row_tiles() as tile:
            self._begin(tile)
            masked = max(1, self.steps.masked)
            self._walk(tile, 1, min(masked, self.most), masked=True)
            self._walk(tile, masked, self.most, masked=False)
            self._end(tile)
            with w.b.at(view.mixed.op.loc):
                rows = RowState(w, view, plan, self.warp_row, tile.origin, tile.batch)
                rows.normalise(self.mixed, self.largest, self.sums)
            result = ResultTile(view.sizes, view.rows, view.width, view.mixed, view.outputs)
            origin = w.simple(tile.origin + self.warp_row)
            write_pieces(w, result, pieces, self.mixed, origin, tile.batch)

    def _begin(self, tile: RowTile) -> None:
        """The first tile of keys: its weights wait in registers for their mix."""
        w = self.w
        w.b.do("thread.fill_fragment", self.mixed, value=0.0)
        if self.plan.blocks:  # else ptxas keeps those of the turn before through the whole of this one
            w.b.do("thread.fill_fragment", self.scores, value=0.0)
        for at in ((0, 0), (0, 1)):
            w.store(w.b.const(-inf, "f32"), self.largest, at)
            w.store(w.b.const(0.0, "f32"), self.sums, at)
        w.b.do("thread.receive", self.queries, item=tile.number)
        maps, dropout = self._maps(tile, tile.last)
        w.b.do("thread.receive", self.keys, item=tile.item)
        self._await_turn(tile, 0)
        self._start_scores(tile.item)
        self._hand_on_turn(tile, 0)
        w.b.do("thread.warpgroup_wait", self.scores)
        w.b.do("thread.release", self.keys, item=tile.item)
        self._apply(maps, tile, tile.last, masked=True, first=True)
        w.b.do("thread.max_rows", self.scores, self.largest)
        self._exponentials(dropout)
        self._pack()

    def _walk(self, tile: RowTile, start: int, stop: int, *, masked: bool) -> None:
        """Steps of a walk: scores of a tile and mix of the one before, softmax while the mix runs."""
        w = self.w
        if stop <= start:
            return
        with w.loop("step", stop - start) as at:
            step = w.simple(at + start)
            with w.when(self._some(tile, step)):
                self._step(tile, step, masked=masked)

    def _step(self, tile: RowTile, step: Expr, *, masked: bool) -> None:
        w = self.w
        item, keys = w.simple(tile.item + step), w.simple(tile.last - step)
        before = w.simple(item - 1)
        maps, dropout = self._maps(tile, keys)
        w.b.do("thread.receive", self.keys, item=item)
        self._await_turn(tile, step)
        self._start_scores(item)
        w.b.do("thread.receive", self.values, item=before)
        self._start_mix(before)
        self._hand_on_turn(tile, step)
        w.b.do("thread.warpgroup_wait", self.scores, pending=1, done=True)
        w.b.do("thread.release", self.keys, item=item)
        self._apply(maps, tile, keys, masked=masked, first=False)
        for at in ((0, 0), (0, 1)):
            w.store(w.load(self.largest, at), self.factors, at)
        w.b.do("thread.max_rows", self.scores, self.largest)
        w.b.do("thread.rescale_factors", self.factors, self.largest, scale=self.view.scale)
        for at in ((0, 0), (0, 1)):
            total = w.b.value("scalar.mul", w.load(self.sums, at), w.load(self.factors, at))
            w.store(total, self.sums, at)
        self._exponentials(dropout)
        w.b.do("thread.settle", self.sums)
        w.b.do("thread.warpgroup_wait", self.mixed)
        w.b.do("thread.release", self.values, item=before)
        w.b.do("thread.scale_rows", self.mixed, self.factors, skip_if_one=True)
        self._pack()

    def _end(self, tile: RowTile) -> None:
        """The mix of the last tile."""
        w = self.w
        item = w.simple(tile.item + tile.count - 1)
        w.b.do("thread.receive", self.values, item=item)
        self._start_mix(item)
        w.b.do("thread.warpgroup_wait", self.mixed)
        w.b.do("thread.release", self.values, item=item)
        w.b.do("thread.release", self.queries, item=tile.number)

    # -- products --------------------------------------------------------------------------------------------
    def _start_scores(self, item: Expr) -> None:
        """Start scores = q k^T with the keys of an item, panel after panel along the inner dimension."""
        w, shape = self.w, self.q.shape
        slot = w.simple(item % self.k.slots)
        row = w.simple(self.first_row + Sym("tid") // (WARP * WARPGROUP_WARPS) * GROUP_ROWS)
        steps = -(-shape.columns // self.depth)
        for panel in range(shape.panels):
            count = min(steps, (panel + 1) * shape.panel // self.depth) - panel * shape.panel // self.depth
            w.b.do(
                "thread.warpgroup_mma", self.q.tiles, self.k.tiles, self.scores,
                a_at=(0, panel, row, 0), b_at=(slot, panel, 0, 0), steps=count,
                fresh=panel == 0, opens=panel == 0, closes=panel == shape.panels - 1,
            )  # fmt: skip

    def _start_mix(self, item: Expr) -> None:
        """Start mixed += weights v with the values of an item."""
        w = self.w
        slot = w.simple(item % self.v.slots)
        w.b.do(
            "thread.warpgroup_mma", self.weights, self.v.tiles, self.mixed,
            a_at=(0,), b_at=(slot, 0, 0, 0), b_turned=True, steps=self.plan.keys // self.depth,
        )  # fmt: skip

    def _pack(self) -> None:
        """The exponentials as first factors."""
        w = self.w
        with w.loop("k", self.plan.keys // self.depth, unroll=1) as k:
            first = w.simple(k * (self.depth // MMA_N))
            w.b.do("thread.pack_fragment", self.scores, self.weights, item=(0, first), to=(k, 0))

    # -- turns of teams --------------------------------------------------------------------------------------
    def _await_turn(self, tile: RowTile, step: Expr) -> None:
        """Wait until the team before has started its products of this step, or of the step before."""
        w, team = self.w, self.team
        order = self.orders[team - 1]
        if order is None:
            return
        if team:
            item = w.simple(tile.item + step)
        elif step == 0:
            return
        else:  # the last team hands on no turn at the end of a tile of queries
            item = w.simple(tile.item - tile.number + step - 1)
        w.b.do("thread.receive", order, item=item)
        w.b.do("thread.release", order, item=item)

    def _hand_on_turn(self, tile: RowTile, step: Expr) -> None:
        """Let the next team start its products."""
        w, team = self.w, self.team
        order = self.orders[team]
        if order is None:
            return
        last = team == self.plan.teams - 1
        item = w.simple(tile.item + step - (tile.number if last else 0))
        with w.when(self._some(tile, w.simple(step + 1)) if last else ()):
            w.b.do("thread.acquire", order, item=item)
            w.b.do("thread.publish", order, item=item)

    # -- softmax ---------------------------------------------------------------------------------------------
    def _maps(self, tile: RowTile, keys: Expr) -> tuple[ScoreMaps, ScoreMaps]:
        """The maps of the scores of a tile of keys, and of their weights, with what they read ahead."""
        maps = self._score_maps(tile, keys, self.score.inner)
        maps.read_ahead()
        dropout = self._score_maps(tile, keys, self.view.dropped)
        dropout.read_ahead(words=True)
        return maps, dropout

    def _score_maps(self, tile: RowTile, keys: Expr, term: Term) -> ScoreMaps:
        reads = tuple(dict.fromkeys(x for x in leaves(term) if isinstance(x, Read)))
        first = (self.w.simple(tile.origin + self.warp_row), 0)
        return ScoreMaps(self.w, self.view, self.plan, first, tile.batch, keys, term, reads)

    def _apply(self, maps: ScoreMaps, tile: RowTile, keys: Expr, *, masked: bool, first: bool) -> None:
        """Maps and masks of the scores of a tile."""
        maps.apply(self.scores)
        if self.score.mask is not None:
            self._hide(tile, keys, masked=masked)
        if first:
            maps.cut(self.scores)

    def _hide(self, tile: RowTile, keys: Expr, *, masked: bool) -> None:
        """Hide the pairs outside of the band, where the tile may hold such."""
        w, plan, band = self.w, self.plan, self.score.band
        assert self.score.mask is not None
        mask = self._score_maps(tile, keys, self.score.mask)
        if masked and band.high is not None:
            mask.apply(self.scores)
            return
        if band.low is not None:
            # the first key of the tile is before the first one that the last query sees
            first = w.simple(tile.origin + (plan.rows - 1 + band.low))
            with w.when(w.bounds((w.simple(first - keys * plan.keys - 1),), (MOST_STEPS,))):
                mask.apply(self.scores)

    def _exponentials(self, dropout: ScoreMaps) -> None:
        w, view = self.w, self.view
        w.b.do("thread.exp_rows", self.scores, self.largest, self.sums, scale=view.scale, folded=True)
        dropout.apply(self.scores)
