"""Lowers a product with the gates of its units: parts of sums in fragments, then threads that own elements.

A block has some rows of the state and the weights of some units, all of both in shared memory at once. Each
set of warps adds a part of every sum and leaves it in shared memory. Behind one barrier threads own elements
of units: they add the parts of the columns that these need and compute the maps, neighbours side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import MMA_M, MMA_N, VECTOR_BYTES, WARP
from tilewright.ir.thread.launch_ops import EARLY_FACTORS
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.gated.parameters import GatedParameters, depth_of, gated_parameters
from tilewright.passes.kernels.gated.view import gated_view
from tilewright.passes.kernels.resident.view import ROW, UNIT, Index, owned
from tilewright.passes.kernels.resident_tiles.elements import UnitElements
from tilewright.passes.kernels.resident_tiles.view import TilesView, column_of, weights_of
from tilewright.passes.kernels.writing.staging import start_copying_matrix
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: rows of a tile of sums that one of a lane's two registers stands for
_HALF = MMA_M // 2
#: copies of a thread that are written out one after the other, at most
_MOST_COPIES = 32


def lower_gated(kernel: Func) -> Func:
    """The thread-level function of a product and the maps that combine its columns.

    rewrite:  %g = contract(%h, %w); %s = map(%g, %g, %x, reads = [[i, u], [i, u + 512], ...])
        -->   weights, then rows of the state to shared memory; fragments, mma; parts of sums to shared
              memory; per element of a unit: its sums, the maps, its results

    Weights are asked for first: where nothing that the kernel waits for writes them, they are on their way
    before that has ended.
    """
    view = gated_view(kernel)
    if isinstance(view, str):
        raise InputError(f"expected a product with gates of units: {view}", where=f"@{kernel.name}")
    p = gated_parameters(kernel, view)
    w = Writer(kernel, p.threads(), (p.blocks(view), 1, 1))
    func = _Lowering(w, view, p).lowered()
    return func.with_attrs(**{EARLY_FACTORS: True})


class _Lowering(UnitElements[int]):
    def __init__(self, w: Writer, view: TilesView, p: GatedParameters) -> None:
        super().__init__(w, view)
        self.p = p
        warp, self.lane = Sym("tid") // WARP, w.simple(Sym("tid") % WARP)
        self.set, self.group = w.simple(warp // p.groups()), w.simple(warp % p.groups())
        across = view.units // p.units
        self.first_row = w.simple(Sym("bid.x") // across * p.rows)
        self.first_unit = w.simple(Sym("bid.x") % across * p.units)
        (self.product,) = view.products
        self.depth = depth_of(view.dtype)
        self.rounding = "tf32" if view.dtype == "f32" else ""

    def lowered(self) -> Func:
        """The whole kernel."""
        w, p, view = self.w, self.p, self.view
        weights = self._weights()
        state = w.alloc((p.rows, view.length), view.dtype, "shared", "state", swizzled=True)
        source = w.inputs[self.product.state]
        outer = (0,) * (len(source.tensor.shape) - 2)
        self._copy(source, (*outer, self.first_row, 0), state)
        w.b.do("thread.async_commit")
        for elements in view.of_row.read:
            for v, at in elements:
                for point in range(p.points()):
                    self._value(v, at, point)
        w.b.do("thread.async_wait", pending=0)
        w.b.do("thread.barrier")
        self._sums(self._multiplied(state, weights))
        for v in dict.fromkeys(v for v, _ in view.of_row.ready):
            with w.b.at(w.producers[v].loc):
                for at in owned(v, view.units, view.rows):
                    for point in range(p.points()):
                        value = self._value(v, at, point)
                        w.store(value, w.outputs[v], self._placed(at, point), self._mask(point))
        return w.finish()

    # -- elements --------------------------------------------------------------------------------------------
    def _number(self, point: int) -> Expr:
        """The number of a thread's element among those of the block, units side by side."""
        return self.w.simple(Sym("tid") + point * self.p.threads())

    def _mask(self, point: int) -> Mask:
        return self.w.below(self._number(point), self.p.rows * self.p.units)

    def _place(self, point: int) -> tuple[Expr, Expr]:
        """The row and the unit of an element among those of the block."""
        row, unit = self.w.unravel(self._number(point), (self.p.rows, self.p.units))
        return row, unit

    def _placed(self, at: Sequence[Expr], point: int) -> Index:
        """An index for an element of this thread."""
        row, unit = self._place(point)
        env = {ROW: self.first_row + row, UNIT: self.first_unit + unit}
        return tuple(self.w.simple(substitute(e, env)) for e in at)

    # -- the product -----------------------------------------------------------------------------------------
    def _copy(self, source: Value, first: Index, to: Value) -> None:
        start_copying_matrix(self.w, source, first, to, self.p.threads(), most_unrolled=_MOST_COPIES)

    def _weights(self) -> list[tuple[Value, bool]]:
        """Per gate the weights of this block's units, and whether sums are along their rows."""
        w, p, view = self.w, self.p, self.view
        tiles: list[tuple[Value, bool]] = []
        for v, at in weights_of(view, self.product):
            column = column_of(at)
            assert column is not None
            by_rows, first = column
            shape = (p.units, view.length) if by_rows else (view.length, p.units)
            # Eight rows of eight units of 16 bits follow one another through all banks as they are.
            wide = shape[-1] * itemsize(view.dtype) > VECTOR_BYTES
            tile = w.alloc(shape, view.dtype, "shared", "weights", swizzled=wide)
            start = (first + self.first_unit, 0) if by_rows else (0, first + self.first_unit)
            self._copy(w.inputs[v], start, tile)
            tiles.append((tile, by_rows))
        return tiles

    def _multiplied(self, state: Value, weights: Sequence[tuple[Value, bool]]) -> Value:
        """This warp's part of the sums of its units, for all rows of the block."""
        w, p, view = self.w, self.p, self.view
        tiles, unit = p.tiles(), self.group * MMA_N
        with w.b.at(self.product.op.loc):
            sums = w.alloc((tiles, len(weights), MMA_M, MMA_N), "f32", "frag", "sums")
            rows = w.alloc((tiles, MMA_M, self.depth), view.dtype, "frag", "rows")
            columns = w.alloc((len(weights), self.depth, MMA_N), view.dtype, "frag", "columns")
            w.b.do("thread.fill_fragment", sums, value=0.0)
            with w.loop("k", p.steps(view), unroll=1) as k:
                along = w.simple((self.set * p.steps(view) + k) * self.depth)
                for tile in range(tiles):
                    at = (tile * MMA_M, along)
                    w.b.do(
                        "thread.load_fragment", rows, state,
                        at=at, role="a", item=(tile,), rounding=self.rounding,
                    )  # fmt: skip
                for n, (gate, by_rows) in enumerate(weights):
                    place = (unit, along) if by_rows else (along, unit)
                    w.b.do(
                        "thread.load_fragment", columns, gate,
                        at=tuple(map(w.simple, place)), role="b", transposed=by_rows, item=(n,),
                        rounding=self.rounding,
                    )  # fmt: skip
                for tile in range(tiles):
                    for n in range(len(weights)):
                        w.b.do(
                            "thread.mma", rows, columns, sums,
                            shape=(MMA_M, MMA_N, self.depth), rounded=bool(self.rounding),
                            a_item=(tile,), b_item=(n,), c_item=(tile, n),
                        )  # fmt: skip
        return sums

    def _sums(self, acc: Value) -> None:
        """The sums that this thread's elements need, added over the sets in their order."""
        w, p = self.w, self.p
        count = len(self.product.sums)
        shape = (p.sets, p.groups(), p.tiles() * 2 * count, 2, WARP)
        parts = w.alloc(shape, "f32", "shared", "parts")
        for tile in range(p.tiles()):
            for half in (0, 1):
                for n in range(count):
                    word = (tile * 2 + half) * count + n
                    for pair in (0, 1):
                        part = w.b.value("thread.get_fragment", acc, item=(tile, n), at=(half, pair))
                        w.store(part, parts, (self.set, self.group, word, pair, self.lane))
        w.b.do("thread.barrier")
        for point in range(p.points()):
            row, unit = self._place(point)
            mask = self._mask(point)
            for n, s in enumerate(self.product.sums):
                lane = row % _HALF * (MMA_N // 2) + unit % MMA_N // 2
                at = (unit // MMA_N, row // _HALF * count + n, unit % 2, lane)
                total = w.load(parts, (0, *at), mask)
                for other in range(1, p.sets):
                    total = w.b.value("scalar.add", total, w.load(parts, (other, *at), mask))
                self.known[self.product.op.result, s.at, point] = total
