"""Lowers a product with the gates of its units: parts of sums in fragments, then threads that own elements.

A block has some rows of the state and the weights of some units, all of both in shared memory at once. Each
set of warps adds a part of every sum and leaves it in shared memory. Behind one barrier threads own elements
of units: they add the parts of the columns that these need and compute the maps, neighbours side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Func, InputError, Sym, Value
from tilewright.ir.hardware_facts import MMA_M, MMA_N, VECTOR_BYTES, WARP
from tilewright.ir.thread.launch_ops import EARLY_FACTORS
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.gated.elements import GatesLowering
from tilewright.passes.kernels.gated.parameters import GatedParameters, depth_of, gated_parameters
from tilewright.passes.kernels.gated.view import gated_view
from tilewright.passes.kernels.resident_tiles.view import TilesView
from tilewright.passes.kernels.writing.writer import Writer

#: rows of a tile of sums that one of a lane's two registers stands for
_HALF = MMA_M // 2


def lower_gated(kernel: Func) -> Func:
    """The thread-level function of a product and the maps that combine its columns.

    rewrite:  %g = contract(%h, %w); %s = map(%g, %g, %x, reads = [[i, u], [i, u + 512], ...])
        -->   weights, then rows of the state to shared memory; fragments, mma; parts of sums to shared
              memory; per element of a unit: its sums, the maps, its results

    """
    view = gated_view(kernel)
    if isinstance(view, str):
        raise InputError(f"expected a product with gates of units: {view}", where=f"@{kernel.name}")
    p = gated_parameters(kernel, view)
    w = Writer(kernel, p.threads(), (p.blocks(view), 1, 1))
    func = _Lowering(w, view, p).lowered()
    return func.with_attrs(**{EARLY_FACTORS: True})


class _Lowering(GatesLowering):
    def __init__(self, w: Writer, view: TilesView, p: GatedParameters) -> None:
        super().__init__(w, view, p)
        self.p = p
        warp, self.lane = Sym("tid") // WARP, w.simple(Sym("tid") % WARP)
        self.set, self.group = w.simple(warp // p.groups()), w.simple(warp % p.groups())
        self.depth = depth_of(view.dtype)
        self.rounding = "tf32" if view.dtype == "f32" else ""

    def _allocated_state(self) -> Value:
        # What the last tile has of rows beyond the batch is multiplied, too, but stays in rows of its own.
        shape = (self.p.tiles() * MMA_M, self.view.length)
        return self.w.alloc(shape, self.view.dtype, "shared", "state", swizzled=True)

    def _allocated_weights(self, shape: tuple[int, int], *, by_rows: bool) -> Value:
        # Eight rows of eight units of 16 bits follow one another through all banks as they are.
        wide = shape[-1] * itemsize(self.view.dtype) > VECTOR_BYTES
        return self.w.alloc(shape, self.view.dtype, "shared", "weights", swizzled=wide)

    def _multiply(self, state: Value, weights: Sequence[tuple[Value, bool]]) -> None:
        self._sums(self._multiplied(state, weights))

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
            for half in (0, 1) if p.rows > tile * MMA_M + _HALF else (0,):
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
