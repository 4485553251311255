"""Kernels of rows and columns: a block walks along the rows of a part and adds up columns in registers.

Each thread has the same columns of every row, so sums of columns need no exchange until the part ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from math import prod

from tilewright.ir import Expr, Func, InputError, Sym, UnsupportedError, Value
from tilewright.passes.analysis.row_phases import Phase, RowPhases
from tilewright.passes.kernels.row_columns.space import keeps_rows, kept_registers, read_by_row
from tilewright.passes.kernels.row_columns.view import RowsAndColumns, rows_and_columns
from tilewright.passes.kernels.rows.combiners import combiner, neutral
from tilewright.passes.kernels.rows.walks import RowsKept
from tilewright.passes.kernels.writing.writer import Index, Mask, Writer


def lower_row_columns(kernel: Func) -> Func:
    """The thread-level function of a kernel of rows and columns (see `rows_and_columns`).

    params: threads_per_row (a power of two), rows_per_block that are walked along at once, which divide the
    rows of a part, vec consecutive elements per thread and step, which divides the last extent of the columns
    (else InputError); the block must be whole warps. Raises UnsupportedError for other kernels.

    rewrite:  tensor.reduce over columns, tensor.map, tensor.reduce over the rows of parts
        -->   a loop over the rows of a part: vector reads of the row behind, folds and shuffles, stores,
              folds of columns; a sum over the rows at once in shared memory, stores of the part's sums

    The rows that follow are read before the ones at hand are summed: sums of a row wait for all its threads
    several times, and nothing else would ask for memory then.
    """
    return _RowsAndColumns(kernel).lower()


class _RowsAndColumns(RowsKept):
    """A block has one part, `rows` rows of it at once."""

    view: RowsAndColumns

    def nest(self, kernel: Func) -> tuple[tuple[int, ...], RowPhases]:
        view = rows_and_columns(kernel)
        if view is None:
            raise UnsupportedError("expected a kernel of rows and sums of columns", where=self.where)
        self.view = view
        return view.rows, view.phases

    def place(self, groups: Sequence[int], *, lanes_inner: bool) -> None:
        self.total = prod(groups)
        if self.view.length % self.rows:
            raise InputError(
                f"expected rows_per_block to divide {self.view.length} rows of a part, got {self.rows}",
                where=self.where,
            )
        parts = self.total // self.view.length
        w = self.w = Writer(self.kernel, self.width * self.rows, (max(1, parts), 1, 1))
        self.lane, self.slot = w.simple(Sym("tid") % self.width), w.simple(Sym("tid") // self.width)
        self.group, self.at = 0, ()  # of the rows at hand; see `lower`

    def prepare(self) -> None:
        steps = max(self.steps(phase) for phase in self.phases if phase.columns)
        if keeps_rows(self.view, steps, self.vec, kept_registers(self.kernel, self.view)):
            self.reuse(self.row_phases.kept(self.kernel))

    def valid(self) -> Mask:
        return ()  # parts are whole

    def walk(self, steps: int, *, reads: bool = True) -> AbstractContextManager[Expr]:
        return self.w.loop("s", steps, unroll=1)

    # -- the part --------------------------------------------------------------------------------------------
    def lower(self) -> Func:
        w, length = self.w, self.view.length
        #: what each thread has added up of its columns, [steps, vec] each, by number of phase
        self.columns: dict[int, Value] = {}
        for number in self.view.sums:
            phase = self.phases[number]
            dtype = phase.op.result.tensor.dtype
            kept = w.alloc((self.steps(phase), self.vec), dtype, "reg", "columns")
            with self.walk(self.steps(phase)) as step, self.elements(phase, whole=False) as v:
                w.store(w.b.const(neutral(phase.op), dtype), kept, (step, v))
            self.columns[number] = kept
        moving = [x for x in self.reused if x in w.inputs and read_by_row(self.uses[x])]
        trips = length // self.rows
        self._at_rows(0)
        self.preload()
        behind = {x: self.kept[x] for x in moving} if trips > 1 else {}
        with w.loop("t", trips) as t:
            for x, registers in behind.items():
                self._alloc(x)
                with w.loops("i", registers.tensor.shape, unroll=1) as at:
                    w.store(w.load(registers, at), self.kept[x], at)
            following = w.simple(t + 1)
            if behind:
                with w.when(w.below(following, trips)):
                    self._at_rows(following)
                    for x, registers in behind.items():
                        self.read_kept(x, registers)
            self._at_rows(t)
            self.write_phases()
        self._store_columns()
        return w.finish()

    def _at_rows(self, trip: Expr) -> None:
        """Go to the rows that a block has at a trip along its part."""
        w = self.w
        self.group = w.simple(Sym("bid.x") * self.view.length + trip * self.rows + self.slot)
        self.at = w.unravel(self.group, self.extents)

    def _reduce(self, walk: Sequence[int]) -> None:
        w, parts = self.w, []
        for number in walk:
            phase = self.phases[number]
            if combiner(phase.op) is None:
                raise UnsupportedError("this reduction has no combiner", where=phase.op.loc)
            if number in self.columns:
                parts.append(self.columns[number])
                continue
            dtype = phase.op.result.tensor.dtype
            part = w.alloc((self.vec,), dtype, "reg", "part")
            with self.elements(phase, whole=False) as v:
                w.store(w.b.const(neutral(phase.op), dtype), part, (v,))
            parts.append(part)
        self.fold_steps(walk, parts)
        for number, part in zip(walk, parts, strict=True):
            if number not in self.columns:
                self.take_total(self.phases[number], part)

    def fold_steps(self, walk: Sequence[int], parts: Sequence[Value | None]) -> None:
        first = self.phases[walk[0]]
        with self.walk(self.steps(first)) as step:
            mask, column = self.step_at(first, step)
            with self.w.when(mask):
                for number, part in zip(walk, parts, strict=True):
                    self.fetch(number, column)
                    with self.elements(self.phases[number], whole=False) as v:
                        self.take_element(number, column, (step, v), part)

    def fold_element(self, number: int, column: Index, at: Index, part: Value) -> None:
        place = at if number in self.columns else at[1:]
        phase, w = self.phases[number], self.w
        step, v = at
        env = self.env(phase, column, v)
        points = self.points(number, step, v)
        values = points.operands(phase.op, env)
        (x,) = w.inline(phase.op, [*values, w.load(part, place)], env)
        w.store(x, part, place)
        self.keep(number, points, env, at)

    def _store(self, number: int, phase: Phase, r: Value) -> None:
        if number not in self.columns:
            super()._store(number, phase, r)

    # -- sums of columns -------------------------------------------------------------------------------------
    def _store_columns(self) -> None:
        """Add up what the rows at once have of each column, and store the part's sums."""
        w = self.w
        (*outer, last), length = self.extents, self.view.length
        part = w.unravel(Sym("bid.x"), (*outer, last // length))
        shape = (self.rows, prod(self.view.columns))
        buffers: dict[str, Value] = {}  # sums follow each other in one buffer
        for number, kept in self.columns.items():
            phase, op = self.phases[number], self.view.sums[number]
            name, dtype = str(combiner(op)), kept.tensor.dtype
            with w.b.at(op.loc):
                if self.rows > 1 and dtype not in buffers:
                    buffers[dtype] = w.alloc(shape, dtype, "shared", "columns")
                shared = buffers.get(dtype)
                if shared is not None:
                    with self.walk(self.steps(phase)) as step:
                        mask, _ = self.step_at(phase, step)
                        with w.when(mask), self.elements(phase, whole=False) as v:
                            w.store(w.load(kept, (step, v)), shared, (self.slot, self._flat(step, v)))
                with w.when(w.below(self.slot, 1)), self.walk(self.steps(phase)) as step:
                    mask, column = self.step_at(phase, step)
                    with w.when(mask), self.elements(phase, whole=False) as v:
                        total = w.load(kept, (step, v))
                        for slot in range(1, self.rows):
                            assert shared is not None
                            other = w.load(shared, (slot, self._flat(step, v)))
                            total = w.b.value(name, total, other)
                        place = (*part, *column[:-1], column[-1] * self.vec + v)
                        w.store(total, w.outputs[op.result], place)

    def _flat(self, step: Expr, v: Expr) -> Expr:
        """The number of element v of a step of this thread among all columns."""
        vector = step * self.width + self.lane
        return self.w.simple(vector * self.vec + v)
