"""Lowers a recurrence: weights stay in registers, blocks of a cluster exchange the state between products."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Expr, Func, InputError, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims
from tilewright.ir.thread.cluster_ops import GIVE
from tilewright.ir.thread.tensor_maps import RANK
from tilewright.passes.kernels.resident.parameters import ResidentParameters, resident_parameters
from tilewright.passes.kernels.resident.view import (
    ALONG,
    UNIT,
    Element,
    Index,
    Product,
    ResidentView,
    map_operands,
    owned,
    resident_view,
)
from tilewright.passes.kernels.writing.cluster_sums import meet
from tilewright.passes.kernels.writing.writer import Writer


def lower_resident(kernel: Func) -> Func:
    """The thread-level function of a recurrence.

    rewrite:  %g = contract(%h, %w); %s = map(%g, %x); %n = contract(%s, %w); ...
        -->   registers = weights; loop over lanes' terms: sums += registers * state; shuffles; maps;
              give_to_block(state); meet_cluster; ...

    All lanes of a unit have its sums and compute its maps; each gives the state to other blocks. What a step
    reads of parameters is on its way while the blocks meet. Two buffers hold the state in turn: a block
    writes to one only when all have read it.
    """
    view = resident_view(kernel)
    if isinstance(view, str):
        raise InputError(f"expected a recurrence: {view}", where=f"@{kernel.name}")
    return _Lowering(kernel, view, resident_parameters(kernel, view)).lowered()


class _Lowering:
    def __init__(self, kernel: Func, view: ResidentView, p: ResidentParameters) -> None:
        self.view, self.p = view, p
        self.w = Writer(kernel, p.threads(view), (p.blocks, 1, 1), cluster=p.blocks)
        rank = Sym(RANK) if p.blocks > 1 else 0
        self.lane = self.w.simple(Sym("tid") % p.lanes)
        self.unit = self.w.simple(rank * p.units(view) + Sym("tid") // p.lanes)
        self.unit_ranges = {UNIT: (0, view.units - 1)}
        self.known: dict[Element, Value] = {}
        self.kept: dict[tuple[Value, Index, int], Value] = {}
        self.shared: dict[Value, Value] = {}
        self.slots: dict[tuple[tuple[int, ...], int], Value] = {}

    def lowered(self) -> Func:
        """The whole kernel, product by product."""
        w, view = self.w, self.view
        for v, at, length in view.weights:
            self.kept[v, at, length] = self._weights(v, at, length)
        if self.p.blocks > 1:
            meet(w)  # no block writes to one that has not begun
        self._read(0)
        written = 0
        for n, product in enumerate(view.products):
            state = product.state
            given = state in view.exchanged and state not in self.shared
            if given:
                self._give(state)
            self._read(n + 1)
            if given and self.p.blocks > 1:
                meet(w)
            written = self._store(written, n)
            self._multiply(product)
        self._store(written, len(view.products))
        return w.finish()

    def _placed(self, at: Sequence[Expr]) -> Index:
        """An index for this thread's unit."""
        return tuple(self.w.simple(substitute(e, {UNIT: self.unit})) for e in at)

    # -- elements --------------------------------------------------------------------------------------------
    def _value(self, v: Value, at: Sequence[Expr]) -> Value:
        """An element, by the index that the view knows it by."""
        index = tuple(simplify(e, self.unit_ranges) for e in at)
        key = (v, index)
        if key in self.known:
            return self.known[key]
        if v in self.w.inputs:
            self.known[key] = self.w.load(self.w.inputs[v], self._placed(index))
            return self.known[key]
        op = self.w.producers[v]
        operands = [self._value(u, place) for u, place in map_operands(op, index, self.unit_ranges)]
        env = dict(zip(dims(op, "par"), self._placed(index), strict=True))
        results = self.w.inline(op, operands, env)
        self.known.update(((r, index), x) for r, x in zip(op.results, results, strict=True))
        return self.known[key]

    def _read(self, n: int) -> None:
        """Begin to load what is read first behind so many products."""
        for v, at in self.view.read[n]:
            self._value(v, at)

    def _store(self, first: int, products: int) -> int:
        """Write results from `first` on that so many products determine; gives the next one's number."""
        while first < len(self.results) and self.results[first][1] <= products:
            v, _ = self.results[first]
            op = self.w.producers[v]
            with self.w.b.at(op.loc):
                for at in owned(v, self.view.units):
                    x = self._value(v, at)
                    self.w.store(x, self.w.outputs[v], self._placed(at), self._of_lane(0))
            first += 1
        return first

    @property
    def results(self) -> list[tuple[Value, int]]:
        """Results in the order in which they can be written."""
        return sorted(self.view.ready, key=lambda r: r[1])

    def _of_lane(self, n: int) -> tuple[tuple[Expr, Expr, Expr], ...]:
        return ((self.lane, n, n + 1),) if self.p.lanes > 1 else ()

    # -- the state -------------------------------------------------------------------------------------------
    def _give(self, v: Value) -> None:
        """Write what this unit has of an array to shared memory, of all blocks."""
        w, blocks, lanes = self.w, self.p.blocks, self.p.lanes
        buffer = self._slot(v)
        self.shared[v] = buffer
        for at in owned(v, self.view.units):
            x, place = self._value(v, at), self._placed(at)
            if blocks == 1:
                w.store(x, buffer, place, self._of_lane(0))
                continue
            for first in range(0, blocks, lanes):
                rank = w.simple(first + self.lane)
                w.b.do(GIVE, x, buffer, at=place, rank=rank, mask=w.below(rank, blocks))

    def _slot(self, v: Value) -> Value:
        """The buffer of an array that is exchanged: two of a shape are used in turn."""
        shape = v.tensor.shape
        turn = sum(u.tensor.shape == shape for u in self.shared) % 2
        if (shape, turn) not in self.slots:
            self.slots[shape, turn] = self.w.alloc(shape, v.tensor.dtype, "shared", "state")
        return self.slots[shape, turn]

    # -- products --------------------------------------------------------------------------------------------
    def _along(self, i: Expr, j: Expr, length: int) -> Expr:
        near = self.p.neighbours(length)
        return self.w.simple((i * self.p.lanes + self.lane) * near + j)

    def _weights(self, v: Value, at: Index, length: int) -> Value:
        """A row of weights, of which this thread keeps every so many terms."""
        w, near = self.w, self.p.neighbours(length)
        share = length // self.p.lanes
        kept = w.alloc((share,), v.tensor.dtype, "reg", "weights")
        with w.loop("i", share // near, unroll=1) as i, w.loop("j", near, unroll=1) as j:
            place = tuple(substitute(e, {ALONG: self._along(i, j, length)}) for e in self._placed_row(at))
            w.store(w.load(w.inputs[v], place), kept, (w.simple(i * near + j),))
        return kept

    def _placed_row(self, at: Index) -> Index:
        return tuple(substitute(e, {UNIT: self.unit}) for e in at)

    def _multiply(self, product: Product) -> None:
        """The sums of a product that this unit needs, in all of its lanes."""
        w, op, length = self.w, product.op, product.length
        near = self.p.neighbours(length)
        source = self.shared.get(product.state)
        if source is None:
            source = w.inputs[product.state]
        vectors = list(dict.fromkeys(s.vector_at for s in product.sums))
        with w.b.at(op.loc):
            sums = w.alloc((len(product.sums),), op.result.tensor.dtype, "reg", "sums")
            part = w.alloc((len(vectors), near), op.result.tensor.dtype, "reg", "part")
            zero = w.b.const(0.0, op.result.tensor.dtype)
            for n in range(len(product.sums)):
                w.store(zero, sums, (n,))
            with w.loop("i", length // self.p.lanes // near, unroll=1) as i:
                for n, at in enumerate(vectors):
                    with w.loop("j", near, unroll=1) as j:
                        place = tuple(substitute(e, {ALONG: self._along(i, j, length)}) for e in at)
                        w.store(w.load(source, place), part, (n, j))
                with w.loop("j", near, unroll=1) as j:
                    for n, s in enumerate(product.sums):
                        kept = self.kept[op.operands[product.weights], s.weights_at, length]
                        factors = {
                            product.weights: w.load(kept, (w.simple(i * near + j),)),
                            product.vector: w.load(part, (vectors.index(s.vector_at), j)),
                        }
                        (new,) = w.inline(op, [factors[0], factors[1], w.load(sums, (n,))], {})
                        w.store(new, sums, (n,))
            for n, s in enumerate(product.sums):
                self.known[op.result, s.at] = self._over_lanes(w.load(sums, (n,)))

    def _over_lanes(self, mine: Value) -> Value:
        """The sum over the lanes of a unit, in each of them."""
        offset = self.p.lanes // 2
        while offset:
            other = self.w.b.value("thread.shuffle", mine, kind="xor", offset=offset, width=self.p.lanes)
            mine = self.w.b.value("scalar.add", mine, other)
            offset //= 2
        return mine
