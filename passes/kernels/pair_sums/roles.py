"""Sums over pairs by roles: one warp hands tiles to the copy engine, warpgroups multiply them.

A block owns tiles of 64 rows, one for each of its warpgroups, and walks over the tiles of others that make a
pair with one of them: the items of a channel. Products of the rows with a tile of others are sums of a
warpgroup. The part of the weights that the first product alone determines is computed while the second is
multiplied; weights become first factors in registers, and the tile of others, turned, is the second factor
of the sums. Nothing is shared between blocks, so the results are the same bits in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import gcd

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.expr import binary
from tilewright.ir.hardware_facts import (
    MMA_K_BYTES,
    MMA_M,
    MMA_N,
    WARP,
    WARPGROUP_WARPS,
)
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.terms import Term, peeled
from tilewright.passes.kernels.attention.epilogue import PIECE_COLUMNS, PIECE_PAD, write_pieces
from tilewright.passes.kernels.pair_sums.engine_tiles import EngineTile, role_tiles
from tilewright.passes.kernels.pair_sums.parameters import COPIER_REGISTERS, COPIERS, PairParameters
from tilewright.passes.kernels.pair_sums.view import PairView
from tilewright.passes.kernels.pair_sums.weight_stages import WeightStages, columns_read, weight_stages
from tilewright.passes.kernels.pair_sums.weights import WeightMaps
from tilewright.passes.kernels.writing.tiling import MAX_GRID_YZ
from tilewright.passes.kernels.writing.writer import Mask, Writer


@dataclass(frozen=True)
class Walk:
    """The tiles of others of a block: in each of `runs` runs of the last dimension those of a band.

    first, count: of the tiles in a run; most: of the blocks' counts; per_run: of all tiles in a run.
    """

    runs: int
    per_run: int
    first: Expr
    count: Expr
    most: int

    def item(self, run: Expr, place: Expr) -> Expr:
        """The number of a tile among those of the block."""
        return run * self.count + place


def tiles_of_band(view: PairView, plan: PairParameters, limits: tuple[int, int] | None, origin: Expr) -> Walk:
    """The tiles of others that make pairs with the rows of a block, whose first one is `origin`."""
    rows, others = view.sizes[view.rows[-1]], view.sizes[view.other[-1]]
    runs, per_run = view.others // others, -(-others // plan.tile)
    if limits is None:
        return Walk(1, plan.tiles(view), 0, plan.tiles(view), plan.tiles(view))
    first, limit = _ends(view, plan, limits, origin % rows)
    counts = [_number(_ends(view, plan, limits, at)) for at in range(0, rows, plan.rows)]
    return Walk(runs, per_run, first, limit - first, max(counts))


def words_before(view: PairView) -> bool:
    """Whether words of bits are read in the step before: where a block's tiles are one run, and follow each
    other.
    """
    return view.others == view.sizes[view.other[-1]]


def _ends(view: PairView, plan: PairParameters, limits: tuple[int, int], row: Expr) -> tuple[Expr, Expr]:
    """The first tile of a run that makes pairs with the rows from `row` on, and the one behind the last."""
    least, most = limits
    rows, others = view.sizes[view.rows[-1]], view.sizes[view.other[-1]]
    per_run = -(-others // plan.tile)
    low: Expr = binary("max", row + least, 0) // plan.tile if least > 1 - rows else 0
    high = binary("max", row + (plan.rows - 1 + most + plan.tile), 0) // plan.tile
    return low, binary("min", high, per_run) if most < others - 1 else per_run


def loads_of_blocks(view: PairView, plan: PairParameters, limits: tuple[int, int] | None) -> tuple[int, ...]:
    """Tiles of the blocks of a batch in the order in which they start; none where all have the same."""
    if limits is None:
        return ()
    rows, others = view.sizes[view.rows[-1]], view.sizes[view.other[-1]]
    runs, starts = view.others // others, range(0, view.own, plan.rows)
    loads = [runs * _number(_ends(view, plan, limits, at % rows)) for at in starts]
    if from_last(limits):
        loads.reverse()
    return tuple(loads) if len(set(loads)) > 1 else ()


def from_last(limits: tuple[int, int]) -> bool:
    """True where the last rows have most pairs: they start first."""
    return limits[1] - abs(limits[0]) < 0


def _number(ends: tuple[Expr, Expr]) -> int:
    low, high = ends
    assert isinstance(low, int)
    assert isinstance(high, int)
    return high - low


def role_stages(plan: PairParameters, stages: WeightStages) -> WeightStages:
    """The stages of the weights with these parameters, from those of the band of the block.

    Tiles whose pairs all count have code of their own, but not where factors in registers would be written on
    two paths while other products run: ptxas would then put a wait behind each (C7513).
    """
    return replace(stages, whole=None) if plan.ahead and stages.early else stages


def lower_pairs_by_roles(kernel: Func, view: PairView, plan: PairParameters) -> Func:
    """The thread-level function of sums over pairs whose parameters name the engine `wgmma`.

    rewrite:  contract, contract -> maps -> contract, contract
        -->   role { acquire; copies; publish }
              role { receive; products; maps of fragments; sums; release; results }
    """
    return _RolePairs(kernel, view, plan).lower()


class _RolePairs:
    def __init__(self, kernel: Func, view: PairView, plan: PairParameters) -> None:
        tiles = role_tiles(kernel, view, plan.rows, plan.tile)
        if tiles is None or itemsize(view.dtype) != 2:
            raise InputError(
                "expected factors of 16 bits that the copy engine can bring", where=f"@{kernel.name}"
            )
        self.view, self.plan, self.tiles = view, plan, tiles
        self.slots = plan.slots(view)
        self.depth = MMA_K_BYTES // itemsize(view.dtype)
        blocks, batch = -(-view.own // plan.rows), view.size(view.batch)
        on_z = batch <= MAX_GRID_YZ and not plan.spread
        self.w = w = Writer(kernel, plan.threads, (blocks, 1, batch) if on_z else (blocks * batch, 1, 1))
        x: Expr = Sym("bid.x")
        number: Expr = Sym("bid.z") if on_z else x // blocks
        place = x if on_z else x % blocks
        if plan.spread:
            number, place = x % batch, x // batch
        limits = plan.band(view)
        if limits is not None and from_last(limits):
            place = blocks - 1 - place
        where = w.unravel(number, [view.sizes[d] for d in view.batch])
        self.batch: Mapping[str, Expr] = dict(zip(view.batch, where, strict=True))
        self.origin = w.simple(place * plan.rows)
        self.walk = tiles_of_band(view, plan, limits, self.origin)
        self.limits = limits
        weights = [peeled(s.weight) for s in view.sums]
        self.stages = role_stages(plan, weight_stages(view, weights, limits))

    def lower(self) -> Func:
        w, plan = self.w, self.plan
        with w.b.at(self.view.products[0].leaf.op.loc):
            self._allocate()
            consumers = plan.registers
            with w.role("copy", COPIERS, COPIER_REGISTERS if consumers else 0):
                self._copy()
            with w.role("multiply", plan.warps, consumers):
                self._multiply()
        lowered = w.finish()
        return lowered if plan.resident == 1 else lowered.with_attrs(resident=plan.resident)

    def _allocate(self) -> None:
        """Buffers and channels: own rows are one item, tiles of others with their numbers one each."""
        w, tiles = self.w, self.tiles
        self.own = [x.alloc(w, 1, f"own_{i}") for i, x in enumerate(tiles.own)]
        self.others = [x.alloc(w, self.slots, f"others_{i}") for i, x in enumerate(tiles.others)]
        self.lines = [x.alloc(w, self.slots, f"numbers_{i}") for i, x in enumerate(tiles.lines)]
        self.numbers = {id(x): w.add_map(x.map) for x in (*tiles.own, *tiles.others, *tiles.lines)}
        part = gcd(PIECE_COLUMNS, *(self._width(i) * MMA_N for i in range(len(self.view.sums))))
        shape = (self.plan.warps, MMA_M, part + PIECE_PAD)
        self.pieces = w.alloc(shape, "f32", "shared", "pieces")
        self.kept = w.b.value("thread.channel", *self.own, hint="kept", slots=1)
        ring = (*self.others, *self.lines)
        self.ring = w.b.value("thread.channel", *ring, hint="ring", slots=self.slots)

    @contextmanager
    def _walked(self) -> Iterator[tuple[Expr, Expr]]:
        """For each tile of others of the block: its number among all, and its item."""
        w, walk = self.w, self.walk
        with w.loop("run", walk.runs) as run, w.loop("tile", walk.most) as place:
            left = w.simple(walk.count - 1 - place)
            with w.when(w.bounds((left,), (walk.per_run,))):
                yield w.simple(run * walk.per_run + walk.first + place), w.simple(walk.item(run, place))

    # -- the role that copies --------------------------------------------------------------------------------
    def _copy(self) -> None:
        w = self.w
        w.b.do("thread.acquire", self.kept, item=0)
        for x, buffer in zip(self.tiles.own, self.own, strict=True):
            self._fetch(x, buffer, 0, self.view.rows, self.origin)
        w.b.do("thread.publish", self.kept, item=0)
        with self._walked() as (tile, item):
            w.b.do("thread.acquire", self.ring, item=item)
            slot, origin = w.simple(item % self.slots), w.simple(tile * self.plan.tile)
            pairs = ((self.tiles.others, self.others), (self.tiles.lines, self.lines))
            for xs, buffers in pairs:
                for x, buffer in zip(xs, buffers, strict=True):
                    self._fetch(x, buffer, slot, self.view.other, origin)
            w.b.do("thread.publish", self.ring, item=item)

    def _fetch(self, x: EngineTile, buffer: Value, slot: Expr, side: tuple[str, ...], origin: Expr) -> None:
        w, sizes = self.w, self.view.sizes
        place = dict(zip(side, w.unravel(origin, [sizes[d] for d in side]), strict=True))
        last = x.outer[-1][0]
        outside = len([d for d in side if sizes[d] > 1]) == 1  # rows beyond the last one are zeros
        row = origin if outside else place[last]
        x.fetch(w, self.numbers[id(x)], buffer, slot, {**self.batch, **place}, row)

    # -- the role that multiplies ----------------------------------------------------------------------------
    def _multiply(self) -> None:
        w, plan, view = self.w, self.plan, self.view
        columns, factors = plan.tile // MMA_N, plan.tile // self.depth
        self.pairs = [
            w.alloc((1, columns, MMA_M, MMA_N), "f32", "frag", f"pairs_{i}")
            for i in range(len(view.products))
        ]
        self.factors = [
            w.alloc((factors, 1, MMA_M, self.depth), view.dtype, "frag", f"factor_{i}")
            for i in range(len(view.sums))
        ]
        self.mixed = [
            w.alloc((1, self._width(i), MMA_M, MMA_N), "f32", "frag", f"mixed_{i}")
            for i in range(len(view.sums))
        ]
        self.warp_row = w.simple(Sym("tid") // WARP * MMA_M)
        first = w.simple(self.origin + self.warp_row)
        self.weights = WeightMaps(w, view, plan, first, self.batch)
        self.weights.read_rows()
        for mixed in self.mixed:
            w.b.do("thread.fill_fragment", mixed, value=0.0)
        if words_before(view):
            self.weights.read_words(self.walk.first, self._left(self.walk.first))
        w.b.do("thread.receive", self.kept, item=0)
        with self._walked() as (tile, item):
            self._tile(tile, item)
        if plan.ahead:
            self._finish()
            last = w.simple(self.walk.item(self.walk.runs - 1, self.walk.count - 1))
            with w.when(w.bounds((last,), (self.walk.runs * self.walk.per_run,))):
                w.b.do("thread.release", self.ring, item=last)
        w.b.do("thread.release", self.kept, item=0)
        for i, mixed in enumerate(self.mixed):
            with w.b.at(view.sums[i].mixed.op.loc):
                write_pieces(w, view.result(i), self.pieces, mixed, first, self.batch)

    def _width(self, index: int) -> int:
        """Tiles of 8 columns of a sum: whole panels."""
        x = self.tiles.others[self.tiles.of_sum[index]]
        return x.panels * x.columns // MMA_N

    def _tile(self, tile: Expr, item: Expr) -> None:
        w, stages, view = self.w, self.stages, self.view
        slot = w.simple(item % self.slots)
        w.b.do("thread.receive", self.ring, item=item)
        rest = [i for i in range(len(self.pairs)) if i != stages.first]
        for i in (stages.first, *rest):
            self._product(i, slot)
        if not words_before(view):
            self.weights.read_words(tile, ())
        known: dict[Term, Value] = {}
        if stages.part is not None:
            first = self.pairs[stages.first]
            self._wait(first, len(rest))
            self._release_before(item)
            whole = stages.whole.part if stages.whole is not None else None
            terms = [(stages.part, whole)]
            self._weigh(terms, {view.products[stages.first].leaf: first}, [first], tile, slot)
            known[stages.part] = first
            if whole is not None:
                known[whole] = first
            for i in stages.early:
                self._weighed_early(i, first, tile, slot)
                self._sum(i, slot)
        else:
            known[view.products[stages.first].leaf] = self.pairs[stages.first]
        awaited = rest or [stages.first]
        for left, i in zip(reversed(range(len(awaited))), awaited, strict=True):
            self._wait(self.pairs[i], left or len(stages.early))
            if rest:
                known[view.products[i].leaf] = self.pairs[i]
        if stages.part is None:
            self._release_before(item)
        late = [i for i in range(len(view.sums)) if i not in stages.early]
        targets = [self.pairs[i] for i in (*rest, stages.first)]
        self._weigh([self._weight(i) for i in late], known, targets, tile, slot)
        for i, target in zip(late, targets, strict=False):
            self._pack(target, i)
            self._sum(i, slot)
        if words_before(view):
            following = w.simple(tile + 1)
            self.weights.read_next_words(following, self._left(following))
        if not self.plan.ahead:
            self._finish()
            w.b.do("thread.release", self.ring, item=item)

    def _left(self, tile: Expr) -> Mask:
        """The condition that a tile of the only run is one of the block's."""
        left = self.w.simple(self.walk.first + self.walk.count - 1 - tile)
        return self.w.bounds((left,), (self.walk.per_run,))

    def _wait(self, sums: Value, pending: int) -> None:
        self.w.b.do("thread.warpgroup_wait", sums, pending=pending, done=True)

    def _finish(self) -> None:
        """Wait until all sums are complete."""
        for mixed in self.mixed:
            self._wait(mixed, 0)

    def _release_before(self, item: Expr) -> None:
        """Give back the tile before, whose sums are complete, where they were left to run."""
        w = self.w
        if not self.plan.ahead:
            return
        before = w.simple(item - 1)
        with w.when(w.bounds((before,), (self.walk.runs * self.walk.per_run,))):
            w.b.do("thread.release", self.ring, item=before)

    def _product(self, index: int, slot: Expr) -> None:
        """Start the products of own rows and a tile of others: one group, panel by panel."""
        w, x = self.w, self.tiles.others[index]
        row = w.simple(Sym("tid") // (WARP * WARPGROUP_WARPS) * (WARPGROUP_WARPS * MMA_M))
        for panel in range(x.panels):
            w.b.do(
                "thread.warpgroup_mma", self.own[index], self.others[index], self.pairs[index],
                a_at=(0, panel, row, 0), b_at=(slot, panel, 0, 0), fresh=panel == 0,
                opens=panel == 0, closes=panel == x.panels - 1,
            )  # fmt: skip

    def _weight(self, index: int) -> tuple[Term, Term | None]:
        """The weight of a sum, and the same in tiles all of whose pairs count."""
        whole = self.stages.whole
        return self.stages.weights[index], whole.weights[index] if whole is not None else None

    def _weigh(
        self,
        terms: list[tuple[Term, Term | None]],
        known: Mapping[Term, Value],
        targets: list[Value],
        tile: Expr,
        slot: Expr,
    ) -> None:
        """Write terms to the registers of products, with what they read of the tile's numbers.

        Tiles all of whose pairs count need not ask positions.
        """
        w, numbers = self.w, {}
        every = [t for t, _ in terms]
        used = columns_read(every, [x.read for x in self.tiles.lines])
        for x, line in zip(self.tiles.lines, self.lines, strict=True):
            if x.read in used:
                numbers[x.read] = self._line(x, line, slot)
        whole = [t for _, t in terms if t is not None]
        inside = self._all_count(tile) if len(whole) == len(terms) and whole != every else None
        if inside is None:
            self.weights.write(every, known, targets, tile, numbers)
            return
        with w.when(inside):
            self.weights.write(whole, known, targets, tile, numbers)
        if inside:
            with w.when((), w.b.value("scalar.not", w.condition(inside))):
                self.weights.write(every, known, targets, tile, numbers)

    def _all_count(self, tile: Expr) -> Mask:
        """The condition that all rows of the block make pairs that count with all of a tile."""
        assert self.limits is not None
        w, view, plan = self.w, self.view, self.plan
        least, most = self.limits
        row = w.simple(self.origin % view.sizes[view.rows[-1]])
        other = w.simple(tile * plan.tile % view.sizes[view.other[-1]])
        limit = view.own + view.others + plan.rows + plan.tile
        mask: Mask = ()
        if least > 1 - view.sizes[view.rows[-1]]:
            mask += w.bounds((w.simple(other - (row + (plan.rows - 1 + least))),), (limit,))
        if most < view.sizes[view.other[-1]] - 1:
            mask += w.bounds((w.simple(row + (most - plan.tile + 1) - other),), (limit,))
        return mask

    def _line(self, x: EngineTile, line: Value, slot: Expr) -> Value:
        """The numbers of this thread's columns."""
        w = self.w
        registers = w.alloc((1, self.plan.tile // MMA_N, 1, 2), x.dtype, "reg", "numbers")
        with w.loops("i", registers.tensor.shape, unroll=1) as at:
            column = at[1] * MMA_N + Sym("tid") % 4 * 2 + at[3]
            w.store(w.load(line, (slot, w.simple(column))), registers, at)
        return registers

    def _weighed_early(self, index: int, part: Value, tile: Expr, slot: Expr) -> None:
        """The factor of a sum whose weight the first part determines, which stays where it is."""
        weight, whole = self._weight(index)
        if weight == self.stages.part:
            self._pack(part, index)
            return
        own = self.w.alloc(part.tensor.shape, "f32", "frag", "weight")
        parts = (self.stages.part, self.stages.whole.part if self.stages.whole is not None else None)
        known = {t: part for t in parts if t is not None}
        self._weigh([(weight, whole)], known, [own], tile, slot)
        self._pack(own, index)

    def _pack(self, weights: Value, index: int) -> None:
        """Round weights to the first factor of a sum."""
        w, factor = self.w, self.factors[index]
        with w.loop("k", factor.tensor.shape[0], unroll=1) as k:
            item = (0, w.simple(k * (self.depth // MMA_N)))
            w.b.do("thread.pack_fragment", weights, factor, item=item, to=(k, 0))

    def _sum(self, index: int, slot: Expr) -> None:
        """Start adding the products of weights and a tile of others to a sum."""
        number = self.tiles.of_sum[index]
        self.w.b.do(
            "thread.warpgroup_mma", self.factors[index], self.others[number], self.mixed[index],
            a_at=(0,), b_at=(slot, 0, 0, 0), b_turned=True, steps=self.plan.tile // self.depth,
        )  # fmt: skip
