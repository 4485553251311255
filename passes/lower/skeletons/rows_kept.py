"""Row kernels that read memory once: each thread keeps its part of the row in registers (CUDA only).

Softmax and norms walk along their rows several times; all but the first walk are over registers. Parts are
combined by shuffles within a warp and through shared memory between warps.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from math import prod

from tilewright.ir import Expr, Func, InputError, Sym, UnsupportedError, Value
from tilewright.ir.expr import binary, substitute
from tilewright.ir.tensor_ops import REDUCING, dims
from tilewright.passes.lower.skeletons.kernel_params import integer_params
from tilewright.passes.lower.skeletons.rows import combiner, first_of, neutral
from tilewright.passes.lower.skeletons.writer import Index, Mask, Points, Writer
from tilewright.passes.tensor.row_phases import Phase, row_phases

WARP = 32
#: steps of a walk whose reads are asked for together
MOST_TOGETHER = 8


def lower_rows_kept(kernel: Func) -> Func:
    """The thread-level function of a row kernel whose rows stay in registers between its phases.

    params: threads_per_row (a power of two), rows_per_block, vec consecutive elements per thread and step.
    `vec` must divide the last extent of the rows (else InputError), the block be whole warps.

    rewrite:  tensor.reduce, tensor.map, ... over one row
        -->   vector reads of the row, folds and shuffles over registers, stores
    """
    width, rows, vec = integer_params(kernel, "threads_per_row", "rows_per_block", "vec")
    if width & (width - 1) or width * rows % WARP:
        raise InputError(
            f"expected a power of two of threads_per_row and blocks of whole warps, got {width} and {rows}",
            where=f"@{kernel.name}",
        )
    return _RowsKept(kernel, width, rows, vec).lower()


class _RowsKept:
    def __init__(self, kernel: Func, width: int, rows: int, vec: int) -> None:
        found = row_phases(kernel)
        if found is None:
            raise UnsupportedError("a map crosses rows of the reduction", where=f"@{kernel.name}")
        self.phases, self.uses, self.kernel = found.phases, found.uses, kernel
        self.width, self.rows, self.vec = width, rows, vec
        for phase in self.phases:
            if phase.columns and phase.extents()[-1] % vec:
                raise InputError(
                    f"expected vec to divide {phase.extents()[-1]}, got {vec}", where=f"@{kernel.name}"
                )
        extents = tuple(dims(self.phases[0].op, "par").values())
        self.total = prod(extents)
        self.w = Writer(kernel, width * rows, (max(1, -(-self.total // rows)), 1, 1))
        w = self.w
        self.lane = w.simple(binary("%", Sym("tid"), width))
        self.slot = w.simple(binary("//", Sym("tid"), width))
        self.row = w.simple(binary("+", binary("*", Sym("bid.x"), rows), self.slot))
        self.index: Index = w.unravel(self.row, extents)
        self.totals: dict[Value, Value] = {}
        #: registers of kept values, [steps, vec] each
        self.kept: dict[Value, Value] = {}
        self.wanted = found.kept(kernel)

    def lower(self) -> Func:
        w = self.w
        self._preload()
        for number, phase in enumerate(self.phases):
            with w.b.at(phase.op.loc):
                self._reserve(number)
                if phase.op.name in REDUCING:
                    self._reduce(number, phase)
                for r in phase.op.results:
                    if r in w.outputs:
                        self._store(number, phase, r)
        return w.finish()

    # -- walks -----------------------------------------------------------------------------------------------
    def _steps(self, phase: Phase) -> int:
        groups = prod(phase.extents()) // self.vec if phase.columns else 1
        return -(-groups // self.width)

    def _group(self, phase: Phase, step: Expr) -> tuple[Expr, Mask, Index]:
        """Number of the vector a thread is at, when it exists, and the column index of its first element."""
        w, extents = self.w, phase.extents()
        group = w.simple(binary("+", binary("*", step, self.width), self.lane))
        shape = (*extents[:-1], extents[-1] // self.vec) if extents else ()
        mask = (*w.below(self.row, self.total), *w.below(group, prod(shape)))
        return group, mask, w.unravel(group, shape)

    def _env(self, phase: Phase, at: Index, v: Expr) -> dict[str, Expr]:
        local: dict[str, Expr] = dict(zip(phase.columns, at, strict=True))
        if phase.columns:
            local[phase.columns[-1]] = binary("+", binary("*", at[-1], self.vec), v)
        return {**dict(zip(phase.rows, self.index, strict=True)), **local}

    def _walk(self, phase: Phase) -> AbstractContextManager[Expr]:
        """A loop over the steps of a walk: all unrolled where registers are kept, else several at a time."""
        steps = self._steps(phase)
        together = max(n for n in range(1, MOST_TOGETHER + 1) if steps % n == 0)
        unroll = 1 if self.wanted or steps <= MOST_TOGETHER else together if together > 1 else 0
        return self.w.loop("s", steps, unroll=unroll)

    def _lanes(self, phase: Phase) -> AbstractContextManager[Expr]:
        return self.w.loop("v", self.vec if phase.columns else 1, unroll=1)

    # -- kept values -----------------------------------------------------------------------------------------
    def _alloc(self, v: Value) -> None:
        phase = next(p for p in self.phases if p.columns)
        self.kept[v] = self.w.alloc((self._steps(phase), self.vec), v.tensor.dtype, "reg", "kept")

    def _preload(self) -> None:
        """Read all kept parameters at once, before anything waits for one of them."""
        w = self.w
        params = [v for v in self.wanted if v in w.inputs]
        for v in params:
            self._alloc(v)
            phase = self.phases[self.uses[v].phases[0]]
            with self._walk(phase) as step:
                _, mask, at = self._group(phase, step)
                with w.when(mask), self._lanes(phase) as lane:
                    place = self._place(v, phase, self._env(phase, at, lane))
                    w.store(w.load(w.inputs[v], place), self.kept[v], (step, lane))

    def _place(self, v: Value, phase: Phase, env: dict[str, Expr]) -> Index:
        """The only index at which the phases read a kept value, at one point of a phase."""
        here = {f"row.{k}": env[d] for k, d in enumerate(phase.rows)}
        here |= {f"col.{k}": env[d] for k, d in enumerate(phase.columns)}
        (index,) = self.uses[v].indices
        return tuple(self.w.simple(substitute(e, here)) for e in index)

    def _reserve(self, number: int) -> None:
        """Registers for the computed values that this phase is the first to need."""
        for v in self.wanted:
            if v not in self.w.inputs and self.uses[v].phases[0] == number:
                self._alloc(v)

    def _points(self, number: int, step: Expr, v: Expr) -> Points:
        known = dict(self.totals)
        for value, buffer in self.kept.items():
            if value in self.w.inputs or self.uses[value].phases[0] < number:
                known[value] = self.w.load(buffer, (step, v))
        return Points(self.w, known)

    def _keep(self, number: int, points: Points, env: dict[str, Expr], phase: Phase, at: Index) -> None:
        w = self.w
        step, v = at
        for value in self.wanted:
            if value not in w.inputs and self.uses[value].phases[0] == number:
                found = points.value(value, self._place(value, phase, env))
                w.store(found, self.kept[value], (step, v))

    # -- reductions ------------------------------------------------------------------------------------------
    def _reduce(self, number: int, phase: Phase) -> None:
        w, op = self.w, phase.op
        name = combiner(op)
        if name is None:
            raise UnsupportedError("this reduction has no combiner; it needs whole rows", where=op.loc)
        start = neutral(op)
        dtype = op.result.tensor.dtype
        part = w.alloc((self.vec,), dtype, "reg", "part")
        with self._lanes(phase) as v:
            w.store(w.b.const(start, dtype), part, (v,))
        with self._walk(phase) as step:
            _, mask, at = self._group(phase, step)
            with w.when(mask), self._lanes(phase) as v:
                env = self._env(phase, at, v)
                points = self._points(number, step, v)
                values = points.operands(op, env)
                (x,) = w.inline(op, [*values, w.load(part, (v,))], env)
                w.store(x, part, (v,))
                self._keep(number, points, env, phase, (step, v))
        total = w.load(part, (0,))
        for i in range(1, self.vec):
            total = w.b.value(name, total, w.load(part, (i,)))
        total = self._combined(name, total)
        init = first_of(op)
        if init != start:
            total = w.b.value(name, total, w.b.const(init, dtype))
        self.totals[op.result] = total

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
        first = w.simple(binary("%", self.lane, WARP))
        with w.when(((first, 0, 1),)):
            w.store(mine, shared, (self.slot, w.simple(binary("//", self.lane, WARP))))
        total = w.load(shared, (self.slot, 0))
        for i in range(1, warps):
            total = w.b.value(name, total, w.load(shared, (self.slot, i)))
        return total

    # -- results ---------------------------------------------------------------------------------------------
    def _store(self, number: int, phase: Phase, r: Value) -> None:
        w, op = self.w, phase.op
        if op.name in REDUCING or not phase.columns:
            with w.when((*w.below(self.row, self.total), *w.below(self.lane, 1))):
                env = dict(zip(phase.rows, self.index, strict=True))
                place = tuple(env[d] for d in dims(op, "par"))
                w.store(Points(w, self.totals).value(r, place), w.outputs[r], place)
            return
        with self._walk(phase) as step:
            _, mask, at = self._group(phase, step)
            with w.when(mask), self._lanes(phase) as v:
                env = self._env(phase, at, v)
                points = self._points(number, step, v)
                place = tuple(env[d] for d in dims(op, "par"))
                value = points.value(r, place)
                self._keep(number, points, env, phase, (step, v))
                w.store(value, w.outputs[r], place)
