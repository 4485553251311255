"""Row kernels over rows whose neighbours lie side by side in memory: threads and vectors across rows.

A thread folds a part of a few neighbouring rows, the parts are combined in shared memory. Global pooling over
pixels with the channels innermost is one; a softmax over channels with the pixels innermost is another.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from tilewright.ir import Expr, Func, Value
from tilewright.passes.analysis.row_phases import Phase
from tilewright.passes.kernels.rows.walks import RowWalks
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index

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
    return _RowsAcross(kernel).lower()


class _RowsAcross(RowWalks):
    """`vec` counts rows: the elements of a step are the same column of neighbouring rows."""

    def __init__(self, kernel: Func) -> None:
        super().__init__(kernel)
        groups = list(self.extents)
        self.inner = max((i for i, n in enumerate(groups) if n > 1), default=0)
        if groups:
            self.check_vector(groups[self.inner])
            groups[self.inner] //= self.vec
        self.place(groups, lanes_inner=False)

    def walk(self, phase: Phase, *, reads: bool) -> AbstractContextManager[Expr]:
        steps = self.steps(phase)
        unroll = 1 if steps <= UNROLLED_STEPS else UNROLLED_STEPS if steps % UNROLLED_STEPS == 0 else 0
        return self.w.loop("s", steps, unroll=unroll if reads else 0)

    def shape(self, phase: Phase) -> tuple[int, ...]:
        return phase.extents()

    def elements(self, phase: Phase, *, whole: bool) -> AbstractContextManager[Expr]:
        return self.w.loop("v", self.vec, unroll=1)

    def env(self, phase: Phase, column: Index, v: Expr) -> dict[str, Expr]:
        row = dict(zip(phase.rows, self._row(v), strict=True))
        return {**row, **dict(zip(phase.columns, column, strict=True))} if column else row

    def _row(self, v: Expr) -> Index:
        """The index of one of this thread's rows."""
        if not self.at:
            return ()
        inner = self.w.simple(self.at[self.inner] * self.vec + v)
        return (*self.at[: self.inner], inner, *self.at[self.inner + 1 :])

    def totals_at(self, v: Expr) -> Mapping[Value, Value]:
        return {r: self.w.load(kept, (v,)) for r, kept in self.totals.items()}

    def begin(self, number: int) -> None:
        return

    def fetch(self, number: int, column: Index) -> None:
        return

    def keep(self, number: int, points: Points, env: dict[str, Expr], at: Index) -> None:
        return

    def merged(self, name: str, part: Value, last: float | None) -> Value:
        w, dtype = self.w, part.tensor.dtype
        shared = self._tree(name, part) if self.width > 1 else None
        total = w.alloc((self.vec,), dtype, "reg", "total")
        with w.loop("v", self.vec, unroll=1) as v:
            x = w.load(part, (v,)) if shared is None else w.load(shared, (0, self.slot, v))
            w.store(x if last is None else w.b.value(name, x, w.b.const(last, dtype)), total, (v,))
        return total

    def _tree(self, name: str, part: Value) -> Value:
        """The parts of all threads of a group, merged into the first row of the shared buffer given back."""
        w = self.w
        shared = w.alloc((self.width, self.rows, self.vec), part.tensor.dtype, "shared", "partial")
        with w.loop("v", self.vec, unroll=1) as v:
            w.store(w.load(part, (v,)), shared, (self.lane, self.slot, v))
        half = self.width // 2
        while half:
            with w.when(((self.lane, 0, half),)), w.loop("v", self.vec, unroll=1) as v:
                other = w.load(shared, (self.lane + half, self.slot, v))
                merged = w.b.value(name, w.load(part, (v,)), other)
                w.store(merged, part, (v,))
                w.store(merged, shared, (self.lane, self.slot, v))
            half //= 2
        return shared
