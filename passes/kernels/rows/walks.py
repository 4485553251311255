"""Row kernels as walks of threads over their parts of rows: folds, their merging, and stores of results.

How threads lie on rows is left to `rows_across` and `rows_kept`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod

from tilewright.costmodel import RowReduceParameters
from tilewright.ir import Expr, Func, InputError, Sym, UnsupportedError, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.hardware_facts import VECTOR_BYTES, WARP
from tilewright.ir.tensor.ops import REDUCING, dims
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.row_phases import Phase, RowPhases, row_phases
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.rows.combiners import combiner, first_of, neutral
from tilewright.passes.kernels.rows.partial_sums import in_runs
from tilewright.passes.kernels.rows.space import keeps
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
        self.extents, found = self.nest(kernel)
        self.kernel, self.row_phases, self.phases = kernel, found, found.phases
        self.uses = found.uses
        #: values that stay in registers from one phase to the next
        self.reused: tuple[Value, ...] = ()
        #: results of the reductions so far
        self.totals: dict[Value, Value] = {}

    def nest(self, kernel: Func) -> tuple[tuple[int, ...], RowPhases]:
        """Return extents of the rows, and the phases that walk along them."""
        found = row_phases(kernel)
        if found is None:
            raise UnsupportedError("a map crosses rows of the reduction", where=self.where)
        return found.phases[0].row_extents(), found

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
        self.write_phases()
        return self.w.finish()

    def write_phases(self) -> None:
        """Write the phases of the rows at `at`."""
        w = self.w
        for walk in self.row_phases.walks:
            with w.b.at(self.phases[walk[0]].op.loc):
                for number in walk:
                    self.begin(number)
                folds = any(self.phases[number].op.name in REDUCING for number in walk)
                if folds:
                    self._reduce(walk)
                for number in walk:
                    phase = self.phases[number]
                    stored = folds and phase.op.name not in REDUCING  # while the sums were folded
                    for r in () if stored else phase.op.results:
                        if r in w.outputs:
                            self._store(number, phase, r)

    # -- how threads lie on rows -----------------------------------------------------------------------------
    @abstractmethod
    def walk(self, steps: int, *, reads: bool) -> AbstractContextManager[Expr]:
        """A loop over steps of a thread along its rows; `reads`: of a fold, not of stores alone."""

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
        """Return what is known at element v of a step of a phase."""
        return Points(self.w, self.totals_at(v))

    @abstractmethod
    def keep(self, number: int, points: Points, env: dict[str, Expr], at: Index) -> None:
        """After the element at (step, v) of a phase was computed."""

    def place_of(self, v: Value, phase: Phase, env: dict[str, Expr]) -> Index:
        """The only index at which the phases read a kept value, at one point of a phase."""
        here = {f"row.{k}": env[d] for k, d in enumerate(phase.rows)}
        here |= {f"col.{k}": env[d] for k, d in enumerate(phase.columns)}
        (index,) = self.uses[v].indices
        return tuple(self.w.simple(substitute(e, here)) for e in index)

    # -- folds and stores ------------------------------------------------------------------------------------
    def valid(self) -> Mask:
        """Return whether this thread's group exists."""
        return self.w.below(self.group, self.total)

    def steps(self, phase: Phase) -> int:
        """Return how many steps a thread makes, the last ones perhaps beyond the row."""
        return -(-prod(self.shape(phase)) // self.width)

    def step_at(self, phase: Phase, step: Expr) -> tuple[Mask, Index]:
        """Return where a step of this thread exists, and its index in `shape`."""
        w, shape = self.w, self.shape(phase)
        point = w.simple(step * self.width + self.lane)
        return (*self.valid(), *w.below(point, prod(shape))), w.unravel(point, shape)

    def _reduce(self, walk: Sequence[int]) -> None:
        """Reduce the rows in the phases of these numbers, which walk along the same columns, and store what
        those of maps give."""
        w = self.w
        phases = [self.phases[number] for number in walk]
        parts: list[Value | None] = []
        for phase in phases:
            if phase.op.name not in REDUCING:
                parts.append(None)
                continue
            if combiner(phase.op) is None:
                raise UnsupportedError(
                    "this reduction has no combiner; it needs whole rows", where=phase.op.loc
                )
            dtype = phase.op.result.tensor.dtype
            part = w.alloc((self.vec,), dtype, "reg", "part")
            with self.elements(phase, whole=False) as v:
                w.store(w.b.const(neutral(phase.op), dtype), part, (v,))
            parts.append(part)

        self.fold_steps(walk, parts)
        for phase, folded in zip(phases, parts, strict=True):
            if folded is not None:
                self.take_total(phase, folded)

    def take_total(self, phase: Phase, part: Value) -> None:
        """Note a reduction's result, from what each thread folded."""
        first = first_of(phase.op)
        last = None if first == neutral(phase.op) else first
        self.totals[phase.op.result] = self.merged(str(combiner(phase.op)), part, last)

    def fold_steps(self, walk: Sequence[int], parts: Sequence[Value | None]) -> None:
        """Fold all steps of the phases of these numbers into their parts, registers of [vec] each; phases
        without parts store their elements."""
        w, phases = self.w, [self.phases[number] for number in walk]

        def fold(count: int, from_step: Expr) -> None:
            with self.walk(count, reads=True) as within:
                step = within if from_step == 0 else w.simple(from_step + within)
                mask, column = self.step_at(phases[0], step)
                with w.when(mask):
                    for number, phase, part in zip(walk, phases, parts, strict=True):
                        self.fetch(number, column)
                        with self.elements(phase, whole=False) as v:
                            self.take_element(number, column, (step, v), part)

        steps = self.steps(phases[0])
        if self.reused:  # registers of kept values are named by steps
            fold(steps, 0)
        else:
            self.in_runs(walk, steps, parts, fold)

    def in_runs(
        self,
        walk: Sequence[int],
        steps: int,
        parts: Sequence[Value | None],
        fold: Callable[[int, Expr], None],
    ) -> None:
        """Fold the steps of a walk in runs; stores have no parts and no say in how long these are."""
        sums = [(self.phases[n].op, p) for n, p in zip(walk, parts, strict=True) if p is not None]
        in_runs(self.w, [op for op, _ in sums], steps, [part for _, part in sums], fold)

    def take_element(self, number: int, column: Index, at: Index, part: Value | None) -> None:
        """Fold the element at (step, v) of a phase into this thread's part; without one store it."""
        if part is not None:
            self.fold_element(number, column, at, part)
            return
        step, v = at
        phase = self.phases[number]
        env = self.env(phase, column, v)
        points = self.points(number, step, v)
        place = tuple(env[d] for d in dims(phase.op, "par"))
        values = [points.value(r, place) for r in phase.op.results]
        self.keep(number, points, env, at)
        for r, x in zip(phase.op.results, values, strict=True):
            self.w.store(x, self.w.outputs[r], place)

    def fold_element(self, number: int, column: Index, at: Index, part: Value) -> None:
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
        with self.walk(self.steps(phase), reads=False) as step:
            mask, column = self.step_at(phase, step)
            with w.when(mask), self.elements(phase, whole=False) as v:
                env = self.env(phase, column, v)
                points = self.points(number, step, v)
                place = tuple(env[d] for d in dims(op, "par"))
                value = points.value(r, place)
                self.keep(number, points, env, (step, v))
                w.store(value, w.outputs[r], place)


#: steps of a walk whose reads are asked for together
MOST_TOGETHER = 8
#: blocks that all run at once, one on a multiprocessor of a large GPU: such a launch waits for latencies and
#: has registers to spare, of which each thread may take so many for what all rows read
LATENCY_BLOCKS, _EARLY_REGISTERS = 128, 32
_SUM_BYTES = _REGISTER_BYTES = 4
#: floats that are float32 in registers (see the pass excess-precision)
ROUNDED = frozenset({"f16", "bf16"})


def lower_rows_kept(kernel: Func) -> Func:
    """The thread-level function of a row kernel whose rows stay in registers between its phases, if they fit.

    params: threads_per_row (a power of two), rows_per_block, vec consecutive elements per thread and step.
    `vec` must divide the last extent of the rows (else InputError), the block be whole warps.

    rewrite:  tensor.reduce, tensor.map, ... over one row
        -->   vector reads of the row, folds and shuffles over registers, stores
    """
    return RowsKept(kernel).lower()


class RowsKept(RowWalks):
    """The elements of a step are consecutive ones of one row; the threads of a row are side by side."""

    def __init__(self, kernel: Func) -> None:
        """Raises InputError unless blocks are whole warps and `vec` suits the rows."""
        super().__init__(kernel)
        if self.width * self.rows % WARP:
            raise InputError(
                f"expected blocks of whole warps, got {self.rows} rows of {self.width} threads",
                where=self.where,
            )
        #: registers of kept values, [steps, vec] each
        self.kept: dict[Value, Value] = {}
        self.check_columns()
        self.place(self.extents, lanes_inner=True)
        #: registers of what the current step of a reduction reads, [vec] each
        self.fetched: dict[Value, Value] = {}
        self.prepare()

    def check_columns(self) -> None:
        """Raises InputError unless `vec` divides the columns."""
        for phase in self.phases:
            if phase.columns:
                self.check_vector(phase.extents()[-1])

    def prepare(self) -> None:
        """Write what precedes the first phase."""
        steps = max((self.steps(phase) for phase in self.phases if phase.columns), default=0)
        if keeps(steps, self.vec, self.row_phases.kept_words(self.kernel)):
            self.reuse(self.row_phases.kept(self.kernel))
            if self.reused and -(-self.total // self.rows) <= LATENCY_BLOCKS:
                self.reused = (*self._of_all_rows(steps), *self.reused)
        self.preload()

    def reuse(self, values: tuple[Value, ...]) -> None:
        """Keep these values from one phase to the next; where there are any, phases read what that leaves."""
        self.reused = values
        if values:
            self.uses = self.row_phases.kept_uses

    def _of_all_rows(self, steps: int) -> tuple[Value, ...]:
        """Parameters that every row reads at its columns, such as factors and shifts of a norm.

        A launch that reads them before its rows need not wait for them behind its sums; what no launch before
        it writes is asked for before it waits for these.
        """
        last = f"col.{max(len(p.columns) for p in self.phases) - 1}"
        found: list[Value] = []
        free = _EARLY_REGISTERS
        for v, uses in self.uses.items():
            named = {s for at in uses.indices for e in at for s in symbols(e)}
            alone = v in self.w.inputs and len(uses.indices) == 1 and not uses.filled
            if not alone or last not in named or any(s.startswith("row.") for s in named):
                continue
            words = -(-steps * self.vec * itemsize(v.tensor.dtype) // _REGISTER_BYTES)
            if words <= free:
                free -= words
                found.append(v)
        return tuple(v for v in found if v not in self.reused)

    # -- walks -----------------------------------------------------------------------------------------------
    def walk(self, steps: int, *, reads: bool = True) -> AbstractContextManager[Expr]:
        """All steps unrolled where registers are kept, else several at a time."""
        together = max(n for n in range(1, MOST_TOGETHER + 1) if steps % n == 0)
        unroll = 1 if self.reused or steps <= MOST_TOGETHER else together if together > 1 else 0
        return self.w.loop("s", steps, unroll=unroll)

    def shape(self, phase: Phase) -> tuple[int, ...]:
        extents = phase.extents()
        return (*extents[:-1], extents[-1] // self.vec) if extents else ()

    def elements(self, phase: Phase, *, whole: bool = False) -> AbstractContextManager[Expr]:
        return self.w.loop("v", 1 if whole or not phase.columns else self.vec, unroll=1)

    def env(self, phase: Phase, column: Index, v: Expr) -> dict[str, Expr]:
        row: dict[str, Expr] = dict(zip(phase.rows, self.at, strict=True))
        if not column:
            return row
        local = dict(zip(phase.columns, column, strict=True))
        local[phase.columns[-1]] = column[-1] * self.vec + v
        return {**row, **local}

    # -- kept values -----------------------------------------------------------------------------------------
    def _alloc(self, v: Value) -> None:
        phase = self.row_phases.walked
        dtype = v.tensor.dtype
        if v not in self.w.inputs and dtype in ROUNDED:
            dtype = "f32"  # what a kernel computes is rounded where it is stored to memory
        self.kept[v] = self.w.alloc((self.steps(phase), self.vec), dtype, "reg", "kept")

    def preload(self) -> None:
        """Read all kept parameters at once, before anything waits for one of them."""
        for v in self.reused:
            if v in self.w.inputs:
                self._alloc(v)
                self.read_kept(v, self.kept[v])

    def read_kept(self, v: Value, registers: Value) -> None:
        """Read what a thread keeps of a parameter at the rows at hand to registers [steps, vec]."""
        w = self.w
        phase = self.phases[self.uses[v].phases[0]]
        with self.walk(self.steps(phase)) as step:
            mask, column = self.step_at(phase, step)
            with w.when(mask), self.elements(phase) as lane:
                place = self.place_of(v, phase, self.env(phase, column, lane))
                w.store(w.load(w.inputs[v], place), registers, (step, lane))

    def begin(self, number: int) -> None:
        """Registers for the computed values that this phase is the first to need."""
        self.fetched = {}
        for v in self.reused:
            if v not in self.w.inputs and self.uses[v].phases[0] == number:
                self._alloc(v)

    def fetch(self, number: int, column: Index) -> None:
        """Read vectors that are longer than those of float32 sums on their own, as wide as memory allows."""
        w, phase = self.w, self.phases[number]
        self.fetched = {}
        if not column or self.vec * _SUM_BYTES <= VECTOR_BYTES:
            return
        last = f"col.{len(phase.columns) - 1}"
        for value, found in self.uses.items():
            once = len(found.indices) == 1 and not found.filled and number in found.phases
            if value not in w.inputs or value in self.kept or not once:
                continue
            if any(last in symbols(e) for at in found.indices for e in at):
                buffer = w.alloc((self.vec,), value.tensor.dtype, "reg", "read")
                with self.elements(phase) as lane:
                    place = self.place_of(value, phase, self.env(phase, column, lane))
                    w.store(w.load(w.inputs[value], place), buffer, (lane,))
                self.fetched[value] = buffer

    def points(self, number: int, step: Expr, v: Expr) -> Points:
        known = {**self.totals, **{value: self.w.load(b, (v,)) for value, b in self.fetched.items()}}
        return Points(self.w, {**known, **self.held(number, step, v)})

    def held(self, number: int, step: Expr, v: Expr) -> dict[Value, Value]:
        """The kept values that are in registers before a phase, at one of its points, in their own types."""
        return {
            value: self.w.b.cast(self.w.load(buffer, (step, v)), value.tensor.dtype)
            for value, buffer in self.kept.items()
            if value in self.w.inputs or self.uses[value].phases[0] < number
        }

    def keep(self, number: int, points: Points, env: dict[str, Expr], at: Index) -> None:
        for value in self.reused:
            if value not in self.w.inputs and self.uses[value].phases[0] == number:
                found = points.value(value, self.place_of(value, self.phases[number], env))
                buffer = self.kept[value]
                self.w.store(self.w.b.cast(found, buffer.tensor.dtype), buffer, at)

    # -- reductions ------------------------------------------------------------------------------------------
    def merged(self, name: str, part: Value, last: float | None) -> Value:
        w = self.w
        total = w.load(part, (0,))
        for i in range(1, self.vec):
            total = w.b.value(name, total, w.load(part, (i,)))
        total = self._combined(name, total)
        return total if last is None else w.b.value(name, total, w.b.const(last, part.tensor.dtype))

    def _combined(self, name: str, mine: Value) -> Value:
        """The parts of all threads of a row, merged; every thread has the whole."""
        w, lanes = self.w, min(self.width, WARP)
        half = lanes // 2
        while half:
            other = w.b.value("thread.shuffle", mine, kind="xor", offset=half, width=lanes)
            mine = w.b.value(name, mine, other)
            half //= 2
        warps = self.width // lanes
        if warps == 1:
            return mine
        dtype = mine.type.dtype
        shared = w.alloc((self.rows, warps), dtype, "shared", "partial")
        first = w.simple(self.lane % WARP)
        with w.when(((first, 0, 1),)):
            w.store(mine, shared, (self.slot, w.simple(self.lane // WARP)))
        total = w.load(shared, (self.slot, 0))
        for i in range(1, warps):
            total = w.b.value(name, total, w.load(shared, (self.slot, i)))
        return total
