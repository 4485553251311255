"""Row kernels that read memory once: each thread keeps its part of the row in registers (CUDA only).

Softmax and norms walk along their rows several times; all but the first walk are over registers. Parts are
combined by shuffles within a warp and through shared memory between warps.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from tilewright.ir import Expr, Func, InputError, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.hardware_facts import VECTOR_BYTES, WARP
from tilewright.passes.analysis.row_phases import Phase
from tilewright.passes.kernels.rows.walks import RowWalks
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index

#: steps of a walk whose reads are asked for together
MOST_TOGETHER = 8
_SUM_BYTES = 4


def lower_rows_kept(kernel: Func) -> Func:
    """The thread-level function of a row kernel whose rows stay in registers between its phases.

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
        self.uses = self.found.uses
        #: registers of kept values, [steps, vec] each
        self.kept: dict[Value, Value] = {}
        self.wanted: tuple[Value, ...] = ()
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
        """What happens before the first phase."""
        self.wanted = self.found.kept(self.kernel)
        self._preload()

    # -- walks -----------------------------------------------------------------------------------------------
    def walk(self, phase: Phase, *, reads: bool = True) -> AbstractContextManager[Expr]:
        """All steps unrolled where registers are kept, else several at a time."""
        steps = self.steps(phase)
        together = max(n for n in range(1, MOST_TOGETHER + 1) if steps % n == 0)
        unroll = 1 if self.wanted or steps <= MOST_TOGETHER else together if together > 1 else 0
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
        phase = next(p for p in self.phases if p.columns)
        self.kept[v] = self.w.alloc((self.steps(phase), self.vec), v.tensor.dtype, "reg", "kept")

    def _preload(self) -> None:
        """Read all kept parameters at once, before anything waits for one of them."""
        w = self.w
        params = [v for v in self.wanted if v in w.inputs]
        for v in params:
            self._alloc(v)
            phase = self.phases[self.uses[v].phases[0]]
            with self.walk(phase) as step:
                mask, column = self.step_at(phase, step)
                with w.when(mask), self.elements(phase) as lane:
                    place = self._place(v, phase, self.env(phase, column, lane))
                    w.store(w.load(w.inputs[v], place), self.kept[v], (step, lane))

    def _place(self, v: Value, phase: Phase, env: dict[str, Expr]) -> Index:
        """The only index at which the phases read a kept value, at one point of a phase."""
        here = {f"row.{k}": env[d] for k, d in enumerate(phase.rows)}
        here |= {f"col.{k}": env[d] for k, d in enumerate(phase.columns)}
        (index,) = self.uses[v].indices
        return tuple(self.w.simple(substitute(e, here)) for e in index)

    def begin(self, number: int) -> None:
        """Registers for the computed values that this phase is the first to need."""
        self.fetched = {}
        for v in self.wanted:
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
                held = w.alloc((self.vec,), value.tensor.dtype, "reg", "read")
                with self.elements(phase) as lane:
                    place = self._place(value, phase, self.env(phase, column, lane))
                    w.store(w.load(w.inputs[value], place), held, (lane,))
                self.fetched[value] = held

    def points(self, number: int, step: Expr, v: Expr) -> Points:
        known = {**self.totals, **{value: self.w.load(b, (v,)) for value, b in self.fetched.items()}}
        for value, buffer in self.kept.items():
            if value in self.w.inputs or self.uses[value].phases[0] < number:
                known[value] = self.w.load(buffer, (step, v))
        return Points(self.w, known)

    def keep(self, number: int, points: Points, env: dict[str, Expr], at: Index) -> None:
        for value in self.wanted:
            if value not in self.w.inputs and self.uses[value].phases[0] == number:
                found = points.value(value, self._place(value, self.phases[number], env))
                self.w.store(found, self.kept[value], at)

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
