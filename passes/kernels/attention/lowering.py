"""Attention in one kernel on tensor cores: scores, softmax and mix of a tile of queries stay in registers.

A block owns a tile of queries, each of its warps 16 rows or a few times 16. Keys and values come tile by tile
through a ring of asynchronous copies in shared memory. The scores of a tile are accumulators; their maps are
computed element by element in registers, the largest of each row so far rescales what was summed before
(online softmax: Milakov and Gimelshein 2018; the order of loops is that of FlashAttention-2, Dao 2023), and
the exponentials become the first factor of the second product without leaving registers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP
from tilewright.passes.analysis.attention import INNER, KEY
from tilewright.passes.kernels.attention.epilogue import ResultTile, RowState, write_outputs
from tilewright.passes.kernels.attention.parameters import (
    AttentionParameters,
    attention_parameters,
    depth_of,
    padded,
    width_tiles,
)
from tilewright.passes.kernels.attention.ring import TileRing
from tilewright.passes.kernels.attention.roles import lower_attention_by_roles
from tilewright.passes.kernels.attention.scores import ScoreMaps
from tilewright.passes.kernels.attention.stage import StagedTile, TileLayout
from tilewright.passes.kernels.attention.view import AttentionView, attention_view, reach
from tilewright.passes.kernels.writing.tiling import MAX_GRID_YZ
from tilewright.passes.kernels.writing.writer import Mask, Writer


def lower_attention(kernel: Func) -> Func:
    """The thread-level function of a kernel that computes attention, on tensor cores.

    rewrite:  contract -> maps -> softmax -> contract -> maps
        -->   per tile of keys: mma, maps of fragments, row maxima, exponentials, mma; at the end the outputs
    """
    view = attention_view(kernel)
    if view is None:
        raise InputError("expected attention with factors of f16, bf16 or tf32", where=f"@{kernel.name}")
    plan = attention_parameters(kernel)
    if plan.by_roles:
        return lower_attention_by_roles(kernel, view, plan)
    return _Attention(kernel, view, plan).lower()


class _Attention:
    def __init__(self, kernel: Func, view: AttentionView, plan: AttentionParameters) -> None:
        self.view, self.plan = view, plan
        self.depth = depth_of(view.dtype)
        self.rounding = "tf32" if view.dtype == "f32" else ""
        self.tiles, self.slots = plan.tiles(view), plan.slots(view)
        blocks, batch = -(-view.size(view.rows) // plan.rows), view.size(view.batch)
        on_z = batch <= MAX_GRID_YZ
        self.w = w = Writer(kernel, plan.threads, (blocks, 1, batch) if on_z else (blocks * batch, 1, 1))
        self.ring = TileRing(w, self.tiles, self.slots, self._fetch)
        if not self.ring.ahead:
            raise InputError("expected at least 2 stages for several tiles of keys", where=f"@{kernel.name}")
        x: Expr = Sym("bid.x")
        number: Expr = Sym("bid.z") if on_z else x // blocks
        place = x if on_z else x % blocks
        self.reach = reach(view)
        if self.reach is not None:  # the last queries see most keys: they start first
            place = blocks - 1 - place
        names = view.batch
        where = w.unravel(number, [view.sizes[d] for d in names])
        self.batch: Mapping[str, Expr] = dict(zip(names, where, strict=True))
        self.origin = w.simple(place * plan.rows)
        warp = Sym("tid") // WARP
        self.warp_row = w.simple(warp % plan.warps * (plan.rows // plan.warps))
        #: the warp's first key in every tile
        self.warp_key = w.simple(warp // plan.warps * plan.part)

    def lower(self) -> Func:
        w, view, plan = self.w, self.view, self.plan
        with w.b.at(view.product.op.loc):
            q = StagedTile(
                w, TileLayout(view, view.q, view.rows, (INNER,), plan.rows), 1, self.batch, "q_tile"
            )
            self.k = StagedTile(
                w, TileLayout(view, view.k, (KEY,), (INNER,), plan.keys), self.slots, self.batch, "k_tiles"
            )
            self.v = StagedTile(
                w, TileLayout(view, view.v, (KEY,), view.width, plan.keys), self.slots, self.batch, "v_tiles"
            )
            if q.layout.lanes:
                q.fetch(0, self.origin)
            self._start()
            if not q.layout.lanes:  # computed while keys and values are on their way
                q.fetch(0, self.origin)
            self.ring.arrive(self.ring.ahead)
            self.steps = padded(view.inner, self.depth) // self.depth
            self.q = w.alloc((plan.row_tiles, self.steps, MMA_M, self.depth), view.dtype, "frag", "q")
            self._load_queries(q)
            self._allocate()
            with w.loop("tile", self.tiles) as tile:
                self._tile(tile)
        with w.b.at(view.mixed.op.loc):
            rows = RowState(w, view, plan, self.warp_row, self.origin, self.batch)
            rows.normalise(self.mixed, self.largest, self.sums)
            self.ring.arrive(0)
        result = ResultTile(view.sizes, view.rows, view.width, view.mixed, view.outputs)
        write_outputs(w, result, plan, self.mixed, self.origin, self.batch)
        lowered = w.finish()
        return lowered if plan.resident == 1 else lowered.with_attrs(resident=plan.resident)

    # -- copies ----------------------------------------------------------------------------------------------
    def _start(self) -> None:
        """Start copying the first tiles; with one tile the values come after queries and keys."""
        w = self.w
        if self.tiles == 1:
            self.k.fetch(0, 0)
            w.b.do("thread.async_commit")
            self.v.fetch(0, 0)
            w.b.do("thread.async_commit")
            return
        self.ring.start()

    def _fetch(self, tile: Expr, slot: Expr) -> None:
        """Start copying a tile that there is and that some query of the block sees."""
        w = self.w
        origin = w.simple(tile * self.plan.keys)
        with w.when((*w.below(tile, self.tiles), *self._seen(tile, 0, self.origin, self.plan.rows))):
            self.k.fetch(slot, origin)
            self.v.fetch(slot, origin)

    def _seen(self, tile: Expr, key: Expr, first: Expr, rows: int) -> Mask:
        """The condition that one of `rows` queries sees a key from `key` of the tile on, if any is hidden."""
        if self.reach is None or self.tiles == 1:
            return ()
        last = first + (rows - 1 + self.reach)
        apart = self.w.simple(last - (tile * self.plan.keys + key))
        return self.w.bounds((apart,), (self.view.size(self.view.rows) + self.plan.rows + self.view.keys,))

    # -- registers -------------------------------------------------------------------------------------------
    def _allocate(self) -> None:
        w, plan = self.w, self.plan
        rows, columns = plan.row_tiles, plan.part // MMA_N
        self.scores = w.alloc((rows, columns, MMA_M, MMA_N), "f32", "frag", "scores")
        self.mixed = w.alloc((rows, width_tiles(self.view), MMA_M, MMA_N), "f32", "frag", "mixed")
        self.weights = w.alloc((rows, MMA_M, self.depth), self.view.dtype, "frag", "weights")
        self.largest, self.sums = (w.alloc((rows, 2), "f32", "reg", name) for name in ("largest", "total"))
        w.b.do("thread.fill_fragment", self.mixed, value=0.0)
        with w.loops("i", (rows, 2), unroll=1) as at:
            w.store(w.b.const(-inf, "f32"), self.largest, at)
            w.store(w.b.const(0.0, "f32"), self.sums, at)

    def _load_queries(self, q: StagedTile) -> None:
        w = self.w
        with w.loops("i", (self.plan.row_tiles, self.steps), unroll=1) as (i, step):
            row = w.simple(self.warp_row + i * MMA_M)
            w.b.do(
                "thread.load_fragment", self.q, q.tiles,
                at=q.place(0, row, step * self.depth), role="a",
                transposed=not q.layout.by_inner, item=(i, step), rounding=self.rounding,
            )  # fmt: skip

    # -- one tile of keys ------------------------------------------------------------------------------------
    def _tile(self, tile: Expr) -> None:
        w, plan = self.w, self.plan
        slot = w.simple(tile % self.slots)
        first = (w.simple(self.origin + self.warp_row), self.warp_key)
        view = self.view
        place = (w, view, plan, first, self.batch, tile)
        maps = ScoreMaps(*place, view.score, view.score_reads)
        dropout = ScoreMaps(*place, view.dropped, view.kept_reads)
        seen = self._seen(tile, self.warp_key, first[0], plan.rows // plan.warps)
        if not seen:
            maps.read_ahead()
            dropout.read_ahead()
        if self.tiles > 1:
            self.ring.arrive(self.ring.ahead - 1)
            self.ring.refill(tile)
        with w.when(seen):
            if seen:
                maps.read_ahead()
                dropout.read_ahead()
            w.b.do("thread.fill_fragment", self.scores, value=0.0)
            self._multiply(self.k, slot, self.steps, self._score_step)
            maps.apply(self.scores)
            maps.cut(self.scores)
            self._softmax()
            dropout.apply(self.scores)
            if self.tiles == 1:
                self.ring.arrive(0)
            self._multiply(self.v, slot, plan.part // self.depth, self._mix_step)

    def _multiply(
        self, staged: StagedTile, slot: Expr, steps: int, step_of: Callable[[Value, int], None]
    ) -> None:
        """Walk along the summed dimension; the compiler loads the fragments of later steps ahead."""
        keys = staged is self.k
        tiles = self.plan.part // MMA_N if keys else width_tiles(self.view)
        fragments = self.w.alloc((tiles, self.depth, MMA_N), self.view.dtype, "frag", "k" if keys else "v")
        for step in range(steps):
            self._load(staged, fragments, slot, step)
            step_of(fragments, step)

    def _load(self, staged: StagedTile, fragments: Value, slot: Expr, step: int) -> None:
        """Fragments of keys [inner, key] or values [key, width] for one step."""
        w = self.w
        keys = staged is self.k
        tiles = fragments.tensor.shape[0]
        count = 2 if tiles % 2 == 0 else 1
        with w.loop("j", tiles // count, unroll=1) as j:
            column, depth = w.simple(j * (MMA_N * count)), step * self.depth
            key = self.warp_key + (column if keys else depth)
            place = (key, depth) if keys else (key, column)
            w.b.do(
                "thread.load_fragment", fragments, staged.tiles,
                at=staged.place(slot, *place), role="b",
                transposed=staged.layout.by_inner == keys,
                item=(w.simple(j * count),), count=count,
                rounding=self.rounding, paired=bool(self.rounding) and not keys,
            )  # fmt: skip

    def _score_step(self, fragments: Value, step: int) -> None:
        with self.w.loops("i", self.scores.tensor.shape[:2], unroll=1) as (i, j):
            self._mma(self.q, fragments, self.scores, (i, step), (j,), (i, j))

    def _mix_step(self, fragments: Value, step: int) -> None:
        w = self.w
        rows, columns = self.mixed.tensor.shape[:2]
        first = step * self.depth // MMA_N
        with w.loop("i", rows, unroll=1) as i:
            w.b.do("thread.pack_fragment", self.scores, self.weights, item=(i, first), to=(i,))
        with w.loops("i", (rows, columns), unroll=1) as (i, j):
            self._mma(self.weights, fragments, self.mixed, (i,), (j,), (i, j))

    def _mma(self, a: Value, b: Value, c: Value, *items: tuple[Expr, ...]) -> None:
        self.w.b.do(
            "thread.mma", a, b, c,
            shape=(MMA_M, MMA_N, self.depth), engine="mma", rounded=bool(self.rounding),
            a_item=items[0], b_item=items[1], c_item=items[2],
        )  # fmt: skip

    # -- softmax ---------------------------------------------------------------------------------------------
    def _softmax(self) -> None:
        """Scores to exponentials; what was summed before is scaled where a row's maximum rises by much."""
        w = self.w
        if self.tiles == 1:
            w.b.do("thread.max_rows", self.scores, self.largest)
            w.b.do("thread.exp_rows", self.scores, self.largest, self.sums, scale=self.view.scale)
            return
        shape = self.largest.tensor.shape
        factors = w.alloc(shape, "f32", "reg", "factors")
        with w.loops("i", shape, unroll=1) as at:
            w.store(w.load(self.largest, at), factors, at)
        w.b.do("thread.max_rows", self.scores, self.largest)
        w.b.do("thread.rescale_factors", factors, self.largest, scale=self.view.scale)
        with w.loops("i", shape, unroll=1) as at:
            total = w.b.value("scalar.mul", w.load(self.sums, at), w.load(factors, at))
            w.store(total, self.sums, at)
        w.b.do("thread.scale_rows", self.mixed, factors, skip_if_one=True)
        w.b.do("thread.exp_rows", self.scores, self.largest, self.sums, scale=self.view.scale)
