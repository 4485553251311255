"""Lowers a recurrence of a batch: weights stay in fragments, blocks of a cluster share the state.

A warp multiplies all rows of the state with the weights of eight neighbouring units, a part of the sum in
each of several sets of warps. These exchange their parts, so that each finishes some rows. As a tile of
eight columns is one gate of eight units, a lane then has all gates of its elements, and computes the maps
without another exchange.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import MMA_M, MMA_N, VECTOR_BYTES, WARP
from tilewright.ir.thread.cluster_ops import SHARE
from tilewright.ir.thread.tensor_maps import RANK
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.resident.view import ROW, UNIT, Index, Product, owned
from tilewright.passes.kernels.resident_tiles.elements import UnitElements
from tilewright.passes.kernels.resident_tiles.parameters import (
    MMA_K,
    TURNS,
    TilesParameters,
    tiles_parameters,
)
from tilewright.passes.kernels.resident_tiles.view import TilesView, column_of, tiles_view, weights_of
from tilewright.passes.kernels.writing.cluster_sums import meet
from tilewright.passes.kernels.writing.staging import start_copying_matrix
from tilewright.passes.kernels.writing.writer import Writer

#: halves and neighbours of a tile of sums that a lane has
_CORNERS = tuple((half, pair) for half in (0, 1) for pair in (0, 1))
#: an element of a lane: the tile of rows among its own, and the corner
Point = tuple[int, int, int]


def lower_resident_tiles(kernel: Func) -> Func:
    """The thread-level function of a recurrence of a batch.

    rewrite:  %g = contract(%h, %w); %s = map(%g, %x); %n = contract(%s, %w); ...
        -->   weights to fragments; fragments of state, mma; parts of sums through shared memory; maps;
              own units to shared memory, share_with_block; meet_cluster; ...

    What a step reads of parameters is on its way while the blocks meet. Two buffers hold the state in turn:
    a block writes to one only when all have read it.
    """
    view = tiles_view(kernel)
    if isinstance(view, str):
        raise InputError(f"expected a recurrence of a batch: {view}", where=f"@{kernel.name}")
    p = tiles_parameters(kernel, view)
    w = Writer(kernel, p.threads(view), (p.clusters * p.blocks, 1, 1), cluster=p.blocks)
    return _Lowering(w, view, p).lowered()


class _Lowering(UnitElements[Point]):
    def __init__(self, w: Writer, view: TilesView, p: TilesParameters) -> None:
        super().__init__(w, view)
        self.p = p
        self.lanes = VECTOR_BYTES // itemsize(view.dtype)
        warp, self.lane = Sym("tid") // WARP, w.simple(Sym("tid") % WARP)
        self.set, self.group = w.simple(warp // p.groups(view)), w.simple(warp % p.groups(view))
        rank: Expr = Sym(RANK) if p.blocks > 1 else 0
        self.first_unit = w.simple(rank * p.units(view))
        #: the first row of the cluster's rows of the batch
        self.first_row = w.simple(Sym("bid.x") // p.blocks * p.rows(view)) if p.clusters > 1 else 0
        self.halves = p.halves(view)
        corners = _CORNERS[:2] if self.halves else _CORNERS
        self.points: list[Point] = [(t, *c) for t in range(p.own_tiles(view)) for c in corners]
        self.turns: dict[Value, Value] = {}
        self.fragments: dict[tuple[Value, Index], Value] = {}

    def lowered(self) -> Func:
        """The whole kernel, product by product."""
        w = self.w
        self.first_set = w.condition(((self.set, 0, 1),)) if self.halves else None
        self._weights()
        shape: tuple[int, ...] = (self.p.rows(self.view), self.view.length)
        dtype = self.view.dtype
        self.states = [w.alloc(shape, dtype, "shared", "state", swizzled=True) for _ in range(TURNS)]
        if self.p.sets > 1:
            words = self.p.exchanged_words(self.view)
            shape = (self.p.sets, self.p.groups(self.view), words, WARP)
            self.parts = w.alloc(shape, "f32", "shared", "parts")
        self._meet()  # no block writes to one that has not begun
        self._read(0)
        written = 0
        for n, product in enumerate(self.view.products):
            new = product.state not in self.turns
            if new:
                self._hold(product.state)
            self._read(n + 1)
            if new:
                self._meet()
            written = self._store(written, n)
            self._multiply(product)
        self._store(written, len(self.view.products))
        return w.finish()

    def _meet(self) -> None:
        if self.p.blocks > 1:
            meet(self.w)

    # -- elements --------------------------------------------------------------------------------------------
    def _row(self, tile: Expr) -> Expr:
        """The first row of a tile among the cluster's: a warp counts its own first, then the next sets'."""
        own = self.p.own_tiles(self.view)
        if self.halves:
            return 0
        of_set = (tile // own + self.set) % self.p.sets
        return self.w.simple((of_set * own + tile % own) * MMA_M)

    def _placed(self, at: Sequence[Expr], point: Point, first_row: Expr | None = None) -> Index:
        """An index for an element of this lane; first_row: the number of the cluster's first one."""
        tile, half, pair = point
        row = self._row(tile) + (self.set if self.halves else half) * (MMA_M // 2) + self.lane // 4
        row = row + (self.first_row if first_row is None else first_row)
        unit = self.first_unit + self.group * MMA_N + self.lane % 4 * 2 + pair
        return tuple(self.w.simple(substitute(e, {ROW: row, UNIT: unit})) for e in at)

    def _read(self, n: int) -> None:
        """Begin to load what is read first behind so many products."""
        for v, at in self.view.of_row.read[n]:
            for point in self.points:
                self._value(v, at, point)

    def _store(self, first: int, products: int) -> int:
        """Write results from `first` on that so many products determine; gives the next one's number."""
        ready = sorted(self.view.of_row.ready, key=lambda r: r[1])
        while first < len(ready) and ready[first][1] <= products:
            v, _ = ready[first]
            with self.w.b.at(self.w.producers[v].loc):
                for at in owned(v, self.view.units, self.view.rows):
                    for point in self.points:
                        value = self._value(v, at, point)
                        self.w.store(value, self.w.outputs[v], self._placed(at, point))
            first += 1
        return first

    # -- the state -------------------------------------------------------------------------------------------
    def _hold(self, v: Value) -> None:
        """Have an array in the shared memory of all blocks: a parameter, or what each has of it."""
        w = self.w
        buffer = self.states[len(self.turns) % TURNS]
        self.turns[v] = buffer
        if v in w.inputs:
            self._copy(w.inputs[v], (self.first_row, 0), buffer)
            w.b.do("thread.async_commit")
            w.b.do("thread.async_wait", pending=0)
            return
        at = (Sym(ROW), Sym(UNIT))
        for point in self.points:
            w.store(self._value(v, at, point), buffer, self._placed(at, point, 0))
        if self.p.blocks > 1:
            w.b.do("thread.barrier")
            self._share(buffer)

    def _share(self, buffer: Value) -> None:
        """Write this block's units to all others, whole vectors of a row at a time."""
        w, p = self.w, self.p
        vectors, threads, rows = p.units(self.view) // self.lanes, p.threads(self.view), p.rows(self.view)
        total = vectors * rows * (p.blocks - 1)
        with w.loop("share", -(-total // threads), unroll=1) as step:
            number = w.simple(step * threads + Sym("tid"))
            other, row, vector = w.unravel(number, (p.blocks - 1, rows, vectors))
            at = (row, w.simple(self.first_unit + vector * self.lanes))
            rank = w.simple((Sym(RANK) + 1 + other) % p.blocks)
            w.b.do(SHARE, buffer, at=at, lanes=self.lanes, rank=rank, mask=w.below(number, total))

    def _copy(self, source: Value, first: Index, to: Value) -> None:
        start_copying_matrix(self.w, source, first, to, self.p.threads(self.view))

    # -- products --------------------------------------------------------------------------------------------
    def _weights(self) -> None:
        """Bring the weights of this block's units to fragments: each warp those of its units and its part."""
        w, p, view = self.w, self.p, self.view
        units, steps = p.units(view), p.steps(view)
        staged: list[tuple[Value, Index, Value, bool]] = []
        for v, at in view.gates:
            column = column_of(at)
            assert column is not None
            by_rows, first = column
            shape = (units, view.length) if by_rows else (view.length, units)
            tile = w.alloc(shape, view.dtype, "shared", "weights", swizzled=True)
            start = (first + self.first_unit, 0) if by_rows else (0, first + self.first_unit)
            self._copy(w.inputs[v], start, tile)
            staged.append((v, at, tile, by_rows))
        w.b.do("thread.async_commit")
        w.b.do("thread.async_wait", pending=0)
        w.b.do("thread.barrier")
        for v, at, tile, by_rows in staged:
            kept = w.alloc((steps, MMA_K, MMA_N), view.dtype, "frag", "kept")
            with w.loop("k", steps, unroll=1) as k:
                along, unit = self._along(k), self.group * MMA_N
                place = (unit, along) if by_rows else (along, unit)
                w.b.do(
                    "thread.load_fragment", kept, tile,
                    at=tuple(map(w.simple, place)), role="b", transposed=by_rows, item=(k,),
                )  # fmt: skip
            self.fragments[v, at] = kept

    def _along(self, k: Expr) -> Expr:
        """The first term of a step of this warp's part of a sum."""
        return self.w.simple((self.set * self.p.steps(self.view) + k) * MMA_K)

    def _multiply(self, product: Product) -> None:
        """The sums of a product that this lane's elements need."""
        w, p, view = self.w, self.p, self.view
        buffer, gates = self.turns[product.state], weights_of(view, product)
        tiles = p.tiles(view)
        with w.b.at(product.op.loc):
            acc = w.alloc((tiles, len(gates), MMA_M, MMA_N), "f32", "frag", "sums")
            state = w.alloc((tiles, MMA_M, MMA_K), view.dtype, "frag", "rows")
            w.b.do("thread.fill_fragment", acc, value=0.0)
            with w.loop("k", p.steps(view), unroll=1) as k:
                for tile in range(tiles):
                    at = (self._row(tile), self._along(k))
                    w.b.do("thread.load_fragment", state, buffer, at=at, role="a", item=(tile,))
                for tile in range(tiles):
                    for n, gate in enumerate(gates):
                        w.b.do(
                            "thread.mma", state, self.fragments[gate], acc,
                            shape=(MMA_M, MMA_N, MMA_K), a_item=(tile,), b_item=(k,), c_item=(tile, n),
                        )  # fmt: skip
            self._finish(product, acc)

    def _finish(self, product: Product, acc: Value) -> None:
        """The sums of this lane's elements, with the parts that other sets have of them."""
        w, p = self.w, self.p
        own, count = p.own_tiles(self.view), len(product.sums)
        words = [(point, n) for point in self.points for n in range(count)]
        for j in range(1, p.sets):
            other = w.simple((self.set + j) % p.sets)
            for i, (point, n) in enumerate(words):
                part = self._sum(acc, point, n, 0 if self.halves else j * own, mine=False)
                w.store(part, self.parts, (other, self.group, (j - 1) * len(words) + i, self.lane))
        if p.sets > 1:
            w.b.do("thread.barrier")
        for i, (point, n) in enumerate(words):
            total = self._sum(acc, point, n, 0, mine=True)
            for j in range(1, p.sets):
                at = (self.set, self.group, (j - 1) * len(words) + i, self.lane)
                total = w.b.value("scalar.add", total, w.load(self.parts, at))
            self.known[product.op.result, product.sums[n].at, point] = total

    def _sum(self, acc: Value, point: Point, n: int, first: int, *, mine: bool) -> Value:
        """A lane's sum of a gate; where sets have half a tile each, in this set's half or the other one's."""
        tile, half, pair = point
        item = (first + tile, n)
        if self.first_set is None:
            return self.w.b.value("thread.get_fragment", acc, item=item, at=(half, pair))
        both = [self.w.b.value("thread.get_fragment", acc, item=item, at=(h, pair)) for h in (0, 1)]
        first_half, second_half = both if mine else both[::-1]
        return self.w.b.value("scalar.select", self.first_set, first_half, second_half)
