"""Lowers a product of float32 with the gates of its units: parts of sums in registers of threads.

A block has some rows of the state and the weights of some units, all of both in shared memory at once. A
thread multiplies some rows with the gates of one unit, of every sum the vectors of its set. The parts meet in
shared memory; threads add them up, and then own elements of units, whatever threads had their parts.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.thread.launch_ops import EARLY_FACTORS
from tilewright.passes.kernels.gated.elements import GatesLowering
from tilewright.passes.kernels.gated_lanes.parameters import (
    VECTOR,
    GatedLanesParameters,
    gated_lanes_parameters,
)
from tilewright.passes.kernels.gated_lanes.view import gated_lanes_view
from tilewright.passes.kernels.resident_tiles.view import TilesView
from tilewright.passes.kernels.writing.writer import Writer


def lower_gated_lanes(kernel: Func) -> Func:
    """The thread-level function of a product of float32 and the maps that combine its columns.

    rewrite:  %g = contract(%h, %w); %s = map(%g, %g, %x, reads = [[i, u], [i, u + 512], ...])
        -->   weights, then rows of the state to shared memory; multiplications and additions; parts of sums
              to shared memory; their sums; per element of a unit the maps, its results
    """
    view = gated_lanes_view(kernel)
    if isinstance(view, str):
        raise InputError(f"expected a product with gates of units: {view}", where=f"@{kernel.name}")
    p = gated_lanes_parameters(kernel, view)
    w = Writer(kernel, p.threads(), (p.blocks(view), 1, 1))
    func = _Lowering(w, view, p).lowered()
    return func.with_attrs(**{EARLY_FACTORS: True})


class _Lowering(GatesLowering):
    def __init__(self, w: Writer, view: TilesView, p: GatedLanesParameters) -> None:
        super().__init__(w, view, p)
        self.p = p
        self.unit = w.simple(Sym("tid") % p.units)
        self.row = w.simple(Sym("tid") // p.units % p.row_groups())
        self.set = w.simple(Sym("tid") // (p.units * p.row_groups()))

    def _allocated_state(self) -> Value:
        shape = (self.p.rows, self.view.length)
        return self.w.alloc(shape, "f32", "shared", "state", swizzled=True)

    def _allocated_weights(self, shape: tuple[int, int], *, by_rows: bool) -> Value:
        return self.w.alloc(shape, "f32", "shared", "weights", swizzled=by_rows)

    def _multiply(self, state: Value, weights: Sequence[tuple[Value, bool]]) -> None:
        self._sums(self._multiplied(state, weights))

    def _multiplied(self, state: Value, weights: Sequence[tuple[Value, bool]]) -> Value:
        """This thread's parts of the sums of its unit, for its rows."""
        w, p, op = self.w, self.p, self.product.op
        with w.b.at(op.loc):
            sums = w.alloc((len(weights), p.tile), "f32", "reg", "sums")
            columns = w.alloc((len(weights), VECTOR), "f32", "reg", "columns")
            row = w.alloc((VECTOR,), "f32", "reg", "row")
            zero = w.b.const(0.0, "f32")
            with w.loop("n", len(weights), unroll=1) as n, w.loop("i", p.tile, unroll=1) as i:
                w.store(zero, sums, (n, i))
            with w.loop("step", p.steps(self.view)) as step:
                vector = w.simple(step * p.sets + self.set)
                with w.when(w.below(vector, self.view.length // VECTOR)):
                    self._add(state, weights, w.simple(vector * VECTOR), sums, columns, row)
        return sums

    def _add(
        self,
        state: Value,
        weights: Sequence[tuple[Value, bool]],
        along: Expr,
        sums: Value,
        columns: Value,
        row: Value,
    ) -> None:
        """Add the products of one vector of each sum, from the term `along` on."""
        w, p, op = self.w, self.p, self.product.op
        for n, (tile, by_rows) in enumerate(weights):
            with w.loop("j", VECTOR, unroll=1) as j:
                term = w.simple(along + j)
                place = (self.unit, term) if by_rows else (term, self.unit)
                w.store(w.load(tile, place), columns, (n, j))
        # A warp's threads read rows that follow one another, which lie in different banks.
        with w.loop("i", p.tile, unroll=1) as i:
            with w.loop("j", VECTOR, unroll=1) as j:
                place = (w.simple(i * p.row_groups() + self.row), w.simple(along + j))
                w.store(w.load(state, place), row, (j,))
            for n in range(len(weights)):
                with w.loop("j", VECTOR, unroll=1) as j:
                    factors = {
                        self.product.weights: w.load(columns, (n, j)),
                        self.product.vector: w.load(row, (j,)),
                    }
                    (new,) = w.inline(op, [factors[0], factors[1], w.load(sums, (n, i))], {})
                    w.store(new, sums, (n, i))

    def _sums(self, mine: Value) -> None:
        """The sums that this thread's elements need, added over the sets in their order."""
        w, p = self.w, self.p
        count, elements = len(self.product.sums), p.rows * p.units
        parts = w.alloc((count, elements, p.pitch()), "f32", "shared", "parts")
        with w.loop("n", count, unroll=1) as n, w.loop("i", p.tile, unroll=1) as i:
            element = w.simple((i * p.row_groups() + self.row) * p.units + self.unit)
            w.store(w.load(mine, (n, i)), parts, (n, element, self.set))
        w.b.do("thread.barrier")
        totals = self._totals(parts) if p.sets > 1 else parts
        for point in range(p.points()):
            number, mask = self._number(point), self._mask(point)
            for n, s in enumerate(self.product.sums):
                total = w.load(totals, (n, number, 0), mask)
                self.known[self.product.op.result, s.at, point] = total

    def _totals(self, parts: Value) -> Value:
        """The sums of all sets in shared memory: a thread adds up whole sums."""
        w, p = self.w, self.p
        count, elements, _ = parts.tensor.shape
        totals = w.alloc((count, elements, 1), "f32", "shared", "totals")
        with w.loop("t", -(-count * elements // p.threads()), unroll=1) as t:
            number = w.simple(t * p.threads() + Sym("tid"))
            with w.when(w.below(number, count * elements)):
                n, element = w.unravel(number, (count, elements))
                total = w.load(parts, (n, element, 0))
                for other in range(1, p.sets):
                    total = w.b.value("scalar.add", total, w.load(parts, (n, element, other)))
                w.store(total, totals, (n, element, 0))
        w.b.do("thread.barrier")
        return totals
