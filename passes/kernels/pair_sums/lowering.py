"""Sums over pairs in one kernel on tensor cores: weights of a tile of pairs stay in registers.

A block owns a tile of rows, each of its warps 16 of them or a few times 16, and walks over all others, a tile
after the other, through a ring of asynchronous copies in shared memory. Products of the rows with a tile of
others are accumulators; weights are computed from them element by element in registers, where they become the
first factor of the sums. Rows of keys and others of queries give dk and dv, rows of queries and others of
keys dq: no sum is shared between blocks, so the results are the same bits in every run (T. Dao,
FlashAttention-2, 2023, section 3.2, adds up dq with atomics instead).
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP
from tilewright.passes.kernels.attention.epilogue import write_outputs
from tilewright.passes.kernels.attention.parameters import depth_of, padded
from tilewright.passes.kernels.attention.ring import TileRing
from tilewright.passes.kernels.attention.stage import StagedTile
from tilewright.passes.kernels.pair_sums.parameters import PairParameters, pair_parameters
from tilewright.passes.kernels.pair_sums.roles import lower_pairs_by_roles
from tilewright.passes.kernels.pair_sums.tiles import pair_tiles
from tilewright.passes.kernels.pair_sums.view import PairView, pair_view
from tilewright.passes.kernels.pair_sums.weights import WeightMaps
from tilewright.passes.kernels.writing.tiling import MAX_GRID_YZ
from tilewright.passes.kernels.writing.writer import Mask, Writer


def lower_pair_sums(kernel: Func) -> Func:
    """The thread-level function of a kernel that computes sums over pairs, on tensor cores.

    rewrite:  contract, contract -> maps -> contract, contract
        -->   per tile of others: mma, maps of fragments, mma; at the end the results
    """
    view = pair_view(kernel)
    if view is None:
        raise InputError(
            "expected sums over pairs with factors of f16, bf16 or tf32", where=f"@{kernel.name}"
        )
    plan = pair_parameters(kernel)
    if plan.by_roles:
        return lower_pairs_by_roles(kernel, view, plan)
    return _PairKernel(kernel, view, plan).lower()


class _PairKernel:
    def __init__(self, kernel: Func, view: PairView, plan: PairParameters) -> None:
        self.view, self.plan = view, plan
        self.depth = depth_of(view.dtype)
        self.rounding = "tf32" if view.dtype == "f32" else ""
        self.tiles, self.slots = plan.tiles(view), plan.slots(view)
        blocks, batch = -(-view.own // plan.rows), view.size(view.batch)
        on_z = batch <= MAX_GRID_YZ
        self.w = w = Writer(kernel, plan.threads, (blocks, 1, batch) if on_z else (blocks * batch, 1, 1))
        self.ring = TileRing(w, self.tiles, self.slots, self._fetch)
        if not self.ring.ahead:
            raise InputError("expected at least 2 stages for several tiles", where=f"@{kernel.name}")
        x: Expr = Sym("bid.x")
        number: Expr = Sym("bid.z") if on_z else x // blocks
        place = x if on_z else x % blocks
        self.band = plan.band(view)
        if self.band is not None and self.band[1] - abs(self.band[0]) < 0:
            place = blocks - 1 - place  # the last rows have most pairs: they start first
        names = view.batch
        where = w.unravel(number, [view.sizes[d] for d in names])
        self.batch: Mapping[str, Expr] = dict(zip(names, where, strict=True))
        self.origin = w.simple(place * plan.rows)
        self.warp_row = w.simple(Sym("tid") // WARP * (plan.rows // plan.warps))

    def lower(self) -> Func:
        w, view, plan = self.w, self.view, self.plan
        layouts = pair_tiles(view, plan)
        with w.b.at(view.products[0].leaf.op.loc):
            self.own = [StagedTile(w, x, 1, self.batch, f"own_{i}") for i, x in enumerate(layouts.own)]
            self.others = [
                StagedTile(w, x, self.slots, self.batch, f"others_{i}") for i, x in enumerate(layouts.others)
            ]
            self.of_sum = layouts.of_sum
            self._start()
            self._allocate()
            if plan.held:
                self.ring.arrive(self.ring.ahead)
                self.held = [self._held(i) for i in range(len(self.own))]
            self.weights = WeightMaps(w, view, plan, w.simple(self.origin + self.warp_row), self.batch)
            self.weights.read_rows()
            with w.loop("tile", self.tiles) as tile:
                self._tile(tile)
            self.ring.arrive(0)
        for i, mixed in enumerate(self.mixed):
            with w.b.at(view.sums[i].mixed.op.loc):
                write_outputs(w, view.result(i), plan, mixed, self.origin, self.batch)
        lowered = w.finish()
        return lowered if plan.resident == 1 else lowered.with_attrs(resident=plan.resident)

    # -- copies ----------------------------------------------------------------------------------------------
    def _start(self) -> None:
        """Start copying own rows and the first tiles of others."""
        for staged in self.own:
            staged.fetch(0, self.origin)
        self.ring.start()

    def _fetch(self, tile: Expr, slot: Expr) -> None:
        """Start copying a tile that there is and that some row of the block makes a pair with."""
        w = self.w
        origin = w.simple(tile * self.plan.tile)
        with w.when((*w.below(tile, self.tiles), *self._paired(tile, self.origin, self.plan.rows))):
            for staged in self.others:
                staged.fetch(slot, origin)

    def _paired(self, tile: Expr, first: Expr, rows: int) -> Mask:
        """The condition that one of `rows` rows makes a pair with one of the tile, if any do not."""
        if self.band is None:
            return ()
        w, (least, most) = self.w, self.band
        row = w.simple(first % self.view.sizes[self.view.rows[-1]])
        other = w.simple(tile * self.plan.tile % self.view.sizes[self.view.other[-1]])
        limit = self.view.own + self.view.others + self.plan.rows + self.plan.tile
        mask: Mask = ()
        # the last row and the first of the tile, the first row and the last of the tile
        if most < self.view.sizes[self.view.other[-1]] - 1:
            mask += w.bounds((w.simple(row + (rows - 1 + most) - other),), (limit,))
        if least > 1 - self.view.sizes[self.view.rows[-1]]:
            mask += w.bounds((w.simple(other + (self.plan.tile - 1 - least) - row),), (limit,))
        return mask

    # -- registers -------------------------------------------------------------------------------------------
    def _allocate(self) -> None:
        w, plan, view = self.w, self.plan, self.view
        rows, dtype = plan.row_tiles, view.dtype
        columns = plan.tile // MMA_N
        self.pairs = [
            w.alloc((rows, columns, MMA_M, MMA_N), "f32", "frag", f"pairs_{i}")
            for i in range(len(view.products))
        ]
        self.mixed = [
            w.alloc((rows, self._width(i), MMA_M, MMA_N), "f32", "frag", f"mixed_{i}")
            for i in range(len(view.sums))
        ]
        self.factor = w.alloc((rows, MMA_M, self.depth), dtype, "frag", "factor")
        for mixed in self.mixed:
            w.b.do("thread.fill_fragment", mixed, value=0.0)

    def _width(self, index: int) -> int:
        """Tiles of 8 columns of a sum."""
        return -(-self.view.size(self.view.sums[index].width) // MMA_N)

    def _steps(self, index: int) -> int:
        """Instructions of the tensor cores along the inner dimension of a product."""
        return padded(self.view.sizes[self.view.products[index].inner], self.depth) // self.depth

    def _held(self, index: int) -> Value:
        """The factors of own rows of a product, in registers."""
        steps = self._steps(index)
        held = self.w.alloc((self.plan.row_tiles, steps, MMA_M, self.depth), self.view.dtype, "frag", "own")
        with self.w.loops("i", (self.plan.row_tiles, steps), unroll=1) as (i, step):
            self._load_own(index, held, i, step, (i, step))
        return held

    def _load_own(self, index: int, target: Value, i: Expr, step: Expr, item: tuple[Expr, ...]) -> None:
        w, staged = self.w, self.own[index]
        row = w.simple(self.warp_row + i * MMA_M)
        w.b.do(
            "thread.load_fragment", target, staged.tiles,
            at=staged.place(0, row, w.simple(step * self.depth)), role="a",
            transposed=not staged.layout.by_inner, item=item, rounding=self.rounding,
        )  # fmt: skip

    # -- one tile of others ----------------------------------------------------------------------------------
    def _tile(self, tile: Expr) -> None:
        w, plan = self.w, self.plan
        slot = w.simple(tile % self.slots)
        first = w.simple(self.origin + self.warp_row)
        self.ring.arrive(self.ring.ahead - 1)
        self.ring.refill(tile)
        with w.when(self._paired(tile, first, plan.rows // plan.warps)):
            self.weights.read_others(tile)
            self.weights.read_words(tile, ())
            for i in range(len(self.pairs)):
                w.b.do("thread.fill_fragment", self.pairs[i], value=0.0)
                self._multiply(i, slot)
            self.weights.apply(self.pairs, tile)
            for i in range(len(self.mixed)):
                self._mix(i, slot)

    def _multiply(self, index: int, slot: Expr) -> None:
        """Add the products of own rows and a tile of others to accumulators."""
        w, plan = self.w, self.plan
        columns = plan.tile // MMA_N
        fragments = w.alloc((columns, self.depth, MMA_N), self.view.dtype, "frag", "other")
        own = (
            None
            if plan.held
            else w.alloc((plan.row_tiles, MMA_M, self.depth), self.view.dtype, "frag", "own")
        )
        for step in range(self._steps(index)):
            if own is not None:
                with w.loop("i", plan.row_tiles, unroll=1) as i:
                    self._load_own(index, own, i, step, (i,))
            self._load(self.others[index], fragments, slot, step * self.depth, of_pairs=True)
            a = own if own is not None else self.held[index]
            with w.loops("i", (plan.row_tiles, columns), unroll=1) as (i, j):
                place = (i,) if own is not None else (i, step)
                self._mma(a, fragments, self.pairs[index], place, (j,), (i, j))

    def _load(self, staged: StagedTile, fragments: Value, slot: Expr, depth: int, *, of_pairs: bool) -> None:
        """Fragments of others [inner, other], or [other, width], for one step along the first dimension."""
        w = self.w
        tiles = fragments.tensor.shape[0]
        count = 2 if tiles % 2 == 0 else 1
        with w.loop("j", tiles // count, unroll=1) as j:
            column = w.simple(j * (MMA_N * count))
            place = (column, depth) if of_pairs else (depth, column)
            w.b.do(
                "thread.load_fragment", fragments, staged.tiles,
                at=staged.place(slot, *place), role="b",
                transposed=staged.layout.by_inner == of_pairs,
                item=(w.simple(j * count),), count=count,
                rounding=self.rounding, paired=bool(self.rounding) and not of_pairs,
            )  # fmt: skip

    def _mix(self, index: int, slot: Expr) -> None:
        """Add the products of weights and the factor of a sum to its accumulators."""
        w, plan, mixed = self.w, self.plan, self.mixed[index]
        columns = self._width(index)
        fragments = w.alloc((columns, self.depth, MMA_N), self.view.dtype, "frag", "value")
        for step in range(plan.tile // self.depth):
            self._load(self.others[self.of_sum[index]], fragments, slot, step * self.depth, of_pairs=False)
            first = step * self.depth // MMA_N
            with w.loop("i", plan.row_tiles, unroll=1) as i:
                w.b.do("thread.pack_fragment", self.pairs[index], self.factor, item=(i, first), to=(i,))
            with w.loops("i", (plan.row_tiles, columns), unroll=1) as (i, j):
                self._mma(self.factor, fragments, mixed, (i,), (j,), (i, j))

    def _mma(self, a: Value, b: Value, c: Value, *items: tuple[Expr, ...]) -> None:
        self.w.b.do(
            "thread.mma", a, b, c,
            shape=(MMA_M, MMA_N, self.depth), engine="mma", rounded=bool(self.rounding),
            a_item=items[0], b_item=items[1], c_item=items[2],
        )  # fmt: skip
