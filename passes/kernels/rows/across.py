"""Row kernels whose threads share neighbouring rows: each thread folds vectors of rows, some steps at once.

What one thread reads in a few steps of a walk is asked for before any of it is used, so that the walk waits
for memory once in as many steps. Steps that reach beyond the rows are taken last, by themselves, and checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod

from tilewright.ir import Expr, Func, Value
from tilewright.ir.expr import symbols
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.row_phases import Phase
from tilewright.passes.kernels.rows.space import steps_together
from tilewright.passes.kernels.rows.walks import RowWalks
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index


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
        #: registers of what the steps under way read, [steps, vec] each, and the number of the current one
        self.asked: dict[Value, Value] = {}
        self.step: Expr = 0
        #: registers of what all steps read alike, [vec] each
        self.shared: dict[Value, Value] = {}

    def walk(self, steps: int, *, reads: bool) -> AbstractContextManager[Expr]:
        return self.w.loop("s", steps)

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

    def points(self, number: int, step: Expr, v: Expr) -> Points:
        w = self.w
        known = {value: w.load(kept, (v,)) for value, kept in self.shared.items()}
        known |= {value: w.load(kept, (self.step, v)) for value, kept in self.asked.items()}
        return Points(w, {**self.totals_at(v), **known})

    def begin(self, number: int) -> None:
        return

    def fetch(self, number: int, column: Index) -> None:
        return

    def keep(self, number: int, points: Points, env: dict[str, Expr], at: Index) -> None:
        return

    # -- folds -----------------------------------------------------------------------------------------------
    def fold_steps(self, walk: Sequence[int], parts: Sequence[Value | None]) -> None:
        w, phases = self.w, [self.phases[number] for number in walk]
        length = prod(self.shape(phases[0]))
        whole = length // self.width
        with w.when(self.valid()):
            self._ask_shared(walk)
            read = self._walked(walk)
            widest = max((itemsize(v.tensor.dtype) for v in read), default=1)
            most = steps_together(self.vec, widest)

            def fold(count: int, first: Expr) -> None:
                groups, rest = divmod(count, most)
                if groups:
                    with w.loop("s", groups) as group:
                        self._fold_together(walk, parts, read, most, w.simple(first + group * most))
                if rest:
                    self._fold_together(walk, parts, read, rest, w.simple(first + (count - rest)))

            if whole:
                self.in_runs(walk, whole, parts, fold)
            if length % self.width:
                with w.when(w.below(w.simple(whole * self.width + self.lane), length)):
                    self._fold_together(walk, parts, read, 1, whole)
        self.shared = {}

    def _fold_together(
        self,
        walk: Sequence[int],
        parts: Sequence[Value | None],
        read: Mapping[Value, int],
        count: int,
        first: Expr,
    ) -> None:
        """Read what `count` steps need, then fold them one after the other.

        read: parameters to read before, with a phase that does.
        """
        w = self.w
        for value, number in read.items():
            phase = self.phases[number]
            asked = w.alloc((count, self.vec), value.tensor.dtype, "reg", "asked")
            with w.loop("u", count, unroll=1) as u:
                _, column = self.step_at(phase, w.simple(first + u))
                with self.elements(phase, whole=False) as v:
                    place = self.place_of(value, phase, self.env(phase, column, v))
                    w.store(w.load(w.inputs[value], place), asked, (u, v))
            self.asked[value] = asked
        with w.loop("u", count, unroll=1) as u:
            self.step = u
            for number, part in zip(walk, parts, strict=True):
                phase = self.phases[number]
                step = w.simple(first + u)
                _, column = self.step_at(phase, step)
                with self.elements(phase, whole=False) as v:
                    self.take_element(number, column, (step, v), part)
        self.asked = {}

    def _walked(self, walk: Sequence[int]) -> dict[Value, int]:
        """The parameters that sums read anew at each step, at one place, with the number of such a sum."""
        return {v: number for v, number in self._plain(walk) if self._by_column(v)}

    def _ask_shared(self, walk: Sequence[int]) -> None:
        """Read what each of this thread's rows has for all steps alike."""
        w, row = self.w, f"row.{self.inner}"
        for value, number in self._plain(walk):
            if self._by_column(value) or row not in self._dims(value):
                continue
            phase = self.phases[number]
            column = tuple(0 for _ in phase.columns)
            kept = w.alloc((self.vec,), value.tensor.dtype, "reg", "shared")
            with self.elements(phase, whole=False) as v:
                place = self.place_of(value, phase, self.env(phase, column, v))
                w.store(w.load(w.inputs[value], place), kept, (v,))
            self.shared[value] = kept

    def _plain(self, walk: Sequence[int]) -> list[tuple[Value, int]]:
        """Parameters that sums read at one place each and never outside of them, with one of these sums."""
        return [
            (v, next(n for n in walk if n in found.phases))
            for v, found in self.uses.items()
            if v in self.w.inputs and len(found.indices) == 1 and not found.filled
            if any(n in found.phases for n in walk)
        ]

    def _by_column(self, value: Value) -> bool:
        """Return whether steps read different elements of a parameter."""
        return any(d.startswith("col.") for d in self._dims(value))

    def _dims(self, value: Value) -> set[str]:
        """The dimensions of the walk that a parameter is read along."""
        return {d for at in self.uses[value].indices for e in at for d in symbols(e)}

    # -- totals ----------------------------------------------------------------------------------------------
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
