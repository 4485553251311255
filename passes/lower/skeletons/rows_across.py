"""Row kernels over rows whose neighbours lie side by side in memory: threads and vectors across rows.

A thread folds a part of a few neighbouring rows, the parts are combined in shared memory. Global pooling over
pixels with the channels innermost is one; a softmax over channels with the pixels innermost is another.
"""

from __future__ import annotations

from math import prod

from tilewright.ir import Expr, Func, InputError, Op, Sym, UnsupportedError, Value
from tilewright.ir.expr import binary
from tilewright.ir.tensor_ops import REDUCING, dims
from tilewright.passes.lower.skeletons.kernel_params import integer_params
from tilewright.passes.lower.skeletons.rows import combiner, first_of, neutral
from tilewright.passes.lower.skeletons.writer import Index, Mask, Points, Writer
from tilewright.passes.tensor.row_phases import Phase, row_phases

#: steps of a fold whose reads are asked for together
UNROLLED_STEPS = 4


def lower_rows_across(kernel: Func) -> Func:
    """The thread-level function of a row kernel whose threads share neighbouring rows.

    params: threads_per_row (a power of two) that share `vec` neighbouring rows, rows_per_block such groups,
    the threads of different groups side by side. `vec` must divide the extent of the last row dimension of
    more than one index (else InputError).

    rewrite:  tensor.reduce, tensor.map, ...
        -->   strided folds of vectors of rows, a tree in shared memory, stores of vectors of rows
    """
    width, rows, vec = integer_params(kernel, "threads_per_row", "rows_per_block", "vec")
    if width & (width - 1):
        raise InputError(
            f"expected threads_per_row to be a power of two, got {width}", where=f"@{kernel.name}"
        )
    return _RowsAcross(kernel, width, rows, vec).lower()


class _RowsAcross:
    def __init__(self, kernel: Func, width: int, rows: int, vec: int) -> None:
        found = row_phases(kernel)
        if found is None:
            raise UnsupportedError("a map crosses rows of the reduction", where=f"@{kernel.name}")
        self.phases, self.width, self.rows, self.vec = found.phases, width, rows, vec
        extents = list(dims(self.phases[0].op, "par").values())
        self.inner = max((i for i, n in enumerate(extents) if n > 1), default=0)
        if extents and extents[self.inner] % vec:
            raise InputError(
                f"expected vec to divide {extents[self.inner]}, got {vec}", where=f"@{kernel.name}"
            )
        if extents:
            extents[self.inner] //= vec
        self.total = prod(extents)
        self.w = Writer(kernel, width * rows, (max(1, -(-self.total // rows)), 1, 1))
        w = self.w
        self.slot = w.simple(binary("%", Sym("tid"), rows))
        self.lane = w.simple(binary("//", Sym("tid"), rows))
        self.group = w.simple(binary("+", binary("*", Sym("bid.x"), rows), self.slot))
        self.at = w.unravel(self.group, extents)
        self.known: dict[Value, Value] = {}

    def lower(self) -> Func:
        w = self.w
        for phase in self.phases:
            with w.b.at(phase.op.loc):
                if phase.op.name in REDUCING:
                    self._reduce(phase)
                for r in phase.op.results:
                    if r in w.outputs:
                        self._store(phase, r)
        return w.finish()

    def _valid(self) -> Mask:
        return self.w.below(self.group, self.total)

    def _row(self, v: Expr) -> Index:
        """The index of one of this thread's rows."""
        if not self.at:
            return ()
        inner = self.w.simple(binary("+", binary("*", self.at[self.inner], self.vec), v))
        return (*self.at[: self.inner], inner, *self.at[self.inner + 1 :])

    def _totals(self, v: Expr) -> dict[Value, Value]:
        """Results of the reductions so far, of one of this thread's rows."""
        return {r: self.w.load(kept, (v,)) for r, kept in self.known.items()}

    def _reduce(self, phase: Phase) -> None:
        w, op = self.w, phase.op
        name = combiner(op)
        if name is None:
            raise UnsupportedError("this reduction has no combiner; it needs whole rows", where=op.loc)
        start = neutral(op)
        dtype = op.result.tensor.dtype
        part = w.alloc((self.vec,), dtype, "reg", "part")
        with w.loop("v", self.vec, unroll=1) as v:
            w.store(w.b.const(start, dtype), part, (v,))
        self._fold(phase, part)
        shared = self._tree(name, part) if self.width > 1 else None
        total = w.alloc((self.vec,), dtype, "reg", "total")
        with w.loop("v", self.vec, unroll=1) as v:
            x = w.load(part, (v,)) if shared is None else w.load(shared, (0, self.slot, v))
            init = first_of(op)
            if init != start:
                x = w.b.value(name, x, w.b.const(init, dtype))
            w.store(x, total, (v,))
        self.known[op.result] = total

    def _fold(self, phase: Phase, part: Value) -> None:
        """Fold this thread's points of its rows: those at lane, lane + width, lane + 2 width, ..."""
        w, op, extents = self.w, phase.op, phase.extents()
        length = prod(extents)
        steps = -(-length // self.width)
        unroll = 1 if steps <= UNROLLED_STEPS else UNROLLED_STEPS if steps % UNROLLED_STEPS == 0 else 0
        with w.loop("s", steps, unroll=unroll) as step:
            point = w.simple(binary("+", binary("*", step, self.width), self.lane))
            local = dict(zip(phase.columns, w.unravel(point, extents), strict=True))
            with w.when((*self._valid(), *w.below(point, length))), w.loop("v", self.vec, unroll=1) as v:
                env = {**dict(zip(phase.rows, self._row(v), strict=True)), **local}
                values = Points(w, self._totals(v)).operands(op, env)
                (x,) = w.inline(op, [*values, w.load(part, (v,))], env)
                w.store(x, part, (v,))

    def _tree(self, name: str, part: Value) -> Value:
        """The parts of all threads of a group, merged into the first row of the shared buffer given back."""
        w = self.w
        shared = w.alloc((self.width, self.rows, self.vec), part.tensor.dtype, "shared", "partial")
        with w.loop("v", self.vec, unroll=1) as v:
            w.store(w.load(part, (v,)), shared, (self.lane, self.slot, v))
        half = self.width // 2
        while half:
            with w.when(((self.lane, 0, half),)), w.loop("v", self.vec, unroll=1) as v:
                other = w.load(shared, (binary("+", self.lane, half), self.slot, v))
                merged = w.b.value(name, w.load(part, (v,)), other)
                w.store(merged, part, (v,))
                w.store(merged, shared, (self.lane, self.slot, v))
            half //= 2
        return shared

    def _store(self, phase: Phase, r: Value) -> None:
        w, op = self.w, phase.op
        if op.name in REDUCING or not phase.columns:
            with w.when((*self._valid(), *w.below(self.lane, 1))), w.loop("v", self.vec, unroll=1) as v:
                self._write(op, r, dict(zip(phase.rows, self._row(v), strict=True)), v)
            return
        extents = phase.extents()
        length = prod(extents)
        with w.loop("s", -(-length // self.width), unroll=0) as step:
            point = w.simple(binary("+", binary("*", step, self.width), self.lane))
            local = dict(zip(phase.columns, w.unravel(point, extents), strict=True))
            with w.when((*self._valid(), *w.below(point, length))), w.loop("v", self.vec, unroll=1) as v:
                self._write(op, r, {**dict(zip(phase.rows, self._row(v), strict=True)), **local}, v)

    def _write(self, op: Op, r: Value, env: dict[str, Expr], v: Expr) -> None:
        place = tuple(env[d] for d in dims(op, "par"))
        self.w.store(Points(self.w, self._totals(v)).value(r, place), self.w.outputs[r], place)
