"""Row kernels as walks of threads over their parts of rows: folds, their merging, and stores of results.

How threads lie on rows is left to `rows_across` and `rows_kept`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod

from tilewright.costmodel import RowReduceParameters
from tilewright.ir import Expr, Func, InputError, Sym, UnsupportedError, Value
from tilewright.ir.tensor.ops import REDUCING, dims
from tilewright.passes.analysis.row_phases import Phase, row_phases
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.rows.lowering import combiner, first_of, neutral
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index, Mask, Writer


class RowWalks(ABC):
    """One row kernel being lowered.

    width: threads that share a row or a group of rows, `lane` is a thread's number among them. rows: rows or
    groups per block, `slot` is its number there, `group` in the grid, `at` its index. vec: elements per
    thread and step.
    """

    def __init__(self, kernel: Func) -> None:
        """Raises InputError unless threads_per_row is a power of two, UnsupportedError for other kernels."""
        p = parameters_of(kernel, RowReduceParameters)
        self.width, self.rows, self.vec = p.threads_per_row, p.rows_per_block, p.vec
        self.where = f"@{kernel.name}"
        if self.width & (self.width - 1):
            raise InputError(
                f"expected threads_per_row to be a power of two, got {self.width}", where=self.where
            )
        found = row_phases(kernel)
        if found is None:
            raise UnsupportedError("a map crosses rows of the reduction", where=self.where)
        self.kernel, self.found, self.phases = kernel, found, found.phases
        self.extents = tuple(dims(self.phases[0].op, "par").values())
        #: results of the reductions so far
        self.totals: dict[Value, Value] = {}

    def place(self, groups: Sequence[int], *, lanes_inner: bool) -> None:
        """Lay the threads of a block on groups of these extents; `lanes_inner`: those of one group are next
        to each other, else those of different groups are."""
        self.total = prod(groups)
        w = self.w = Writer(self.kernel, self.width * self.rows, (max(1, -(-self.total // self.rows)), 1, 1))
        side = self.width if lanes_inner else self.rows
        inner = w.simple(Sym("tid") % side)
        outer = w.simple(Sym("tid") // side)
        self.lane, self.slot = (inner, outer) if lanes_inner else (outer, inner)
        self.group = w.simple(Sym("bid.x") * self.rows + self.slot)
        self.at: Index = w.unravel(self.group, groups)

    def check_vector(self, extent: int) -> None:
        """Raises InputError unless `vec` divides an extent."""
        if extent % self.vec:
            raise InputError(f"expected vec to divide {extent}, got {self.vec}", where=self.where)

    def lower(self) -> Func:
        """The thread-level function."""
        w = self.w
        for number, phase in enumerate(self.phases):
            with w.b.at(phase.op.loc):
                self.begin(number)
                if phase.op.name in REDUCING:
                    self._reduce(number, phase)
                for r in phase.op.results:
                    if r in w.outputs:
                        self._store(number, phase, r)
        return w.finish()

    # -- how threads lie on rows -----------------------------------------------------------------------------
    @abstractmethod
    def walk(self, phase: Phase, *, reads: bool) -> AbstractContextManager[Expr]:
        """A loop over the steps of a thread along its rows; `reads`: of a fold, not of stores alone."""

    @abstractmethod
    def shape(self, phase: Phase) -> tuple[int, ...]:
        """Extents of the columns in steps of one thread."""

    @abstractmethod
    def elements(self, phase: Phase, *, whole: bool) -> AbstractContextManager[Expr]:
        """A loop over the elements of one step; `whole`: one per row, of results of reductions."""

    @abstractmethod
    def env(self, phase: Phase, column: Index, v: Expr) -> dict[str, Expr]:
        """The phase's dimensions at element v of the step at `column`; of rows alone without columns."""

    @abstractmethod
    def merged(self, name: str, part: Value, last: float | None) -> Value:
        """A reduction's result from the threads' parts of `vec` elements each, for `totals`.

        name: what combines two. last: a number to combine with the whole at the end, if any.
        """

    def totals_at(self, v: Expr) -> Mapping[Value, Value]:
        """Results of the reductions so far, at element v of a step."""
        return self.totals

    @abstractmethod
    def begin(self, number: int) -> None:
        """Before a phase."""

    @abstractmethod
    def fetch(self, number: int, column: Index) -> None:
        """Before the elements of one step of a reduction."""

    def points(self, number: int, step: Expr, v: Expr) -> Points:
        """What is known at element v of a step of a phase."""
        return Points(self.w, self.totals_at(v))

    @abstractmethod
    def keep(self, number: int, points: Points, env: dict[str, Expr], at: Index) -> None:
        """After the element at (step, v) of a phase was computed."""

    # -- folds and stores ------------------------------------------------------------------------------------
    def valid(self) -> Mask:
        """Whether this thread's group exists."""
        return self.w.below(self.group, self.total)

    def steps(self, phase: Phase) -> int:
        """How many steps a thread makes, the last ones perhaps beyond the row."""
        return -(-prod(self.shape(phase)) // self.width)

    def step_at(self, phase: Phase, step: Expr) -> tuple[Mask, Index]:
        """Where a step of this thread exists, and its index in `shape`."""
        w, shape = self.w, self.shape(phase)
        point = w.simple(step * self.width + self.lane)
        return (*self.valid(), *w.below(point, prod(shape))), w.unravel(point, shape)

    def _reduce(self, number: int, phase: Phase) -> None:
        w, op = self.w, phase.op
        name = combiner(op)
        if name is None:
            raise UnsupportedError("this reduction has no combiner; it needs whole rows", where=op.loc)
        start, first = neutral(op), first_of(op)
        dtype = op.result.tensor.dtype
        part = w.alloc((self.vec,), dtype, "reg", "part")
        with self.elements(phase, whole=False) as v:
            w.store(w.b.const(start, dtype), part, (v,))
        with self.walk(phase, reads=True) as step:
            mask, column = self.step_at(phase, step)
            with w.when(mask):
                self.fetch(number, column)
                with self.elements(phase, whole=False) as v:
                    self._fold(number, column, (step, v), part)
        self.totals[op.result] = self.merged(name, part, None if first == start else first)

    def _fold(self, number: int, column: Index, at: Index, part: Value) -> None:
        """Fold the element at (step, v) of a reduction into this thread's part."""
        step, v = at
        phase = self.phases[number]
        env = self.env(phase, column, v)
        points = self.points(number, step, v)
        values = points.operands(phase.op, env)
        (x,) = self.w.inline(phase.op, [*values, self.w.load(part, (v,))], env)
        self.w.store(x, part, (v,))
        self.keep(number, points, env, at)

    def _store(self, number: int, phase: Phase, r: Value) -> None:
        w, op = self.w, phase.op
        if op.name in REDUCING or not phase.columns:
            once = (*self.valid(), *w.below(self.lane, 1))
            with w.when(once), self.elements(phase, whole=True) as v:
                env = self.env(phase, (), v)
                place = tuple(env[d] for d in dims(op, "par"))
                w.store(Points(w, self.totals_at(v)).value(r, place), w.outputs[r], place)
            return
        with self.walk(phase, reads=False) as step:
            mask, column = self.step_at(phase, step)
            with w.when(mask), self.elements(phase, whole=False) as v:
                env = self.env(phase, column, v)
                points = self.points(number, step, v)
                place = tuple(env[d] for d in dims(op, "par"))
                value = points.value(r, place)
                self.keep(number, points, env, (step, v))
                w.store(value, w.outputs[r], place)
