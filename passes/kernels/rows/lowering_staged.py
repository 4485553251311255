"""Row kernels over short contiguous rows: a block copies several whole rows to shared memory and folds there.

The rows of a block are one piece of memory, copied by vectors that may reach from one row into the next; so
vectors need not divide rows, nor rows begin where vectors may. Results along the rows leave the same way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from math import gcd, prod

from tilewright.ir import Expr, Func, InputError, Sym, TensorType, UnsupportedError, Value
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES
from tilewright.ir.tensor.ops import dims
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.row_phases import Phase, rewritten_rows, whole_rows
from tilewright.passes.kernels.rows.staged_space import KEPT_ELEMENTS, UNROLLED_ELEMENTS
from tilewright.passes.kernels.rows.walks import RowsKept
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index


def lower_rows_staged(kernel: Func) -> Func:
    """The thread-level function of a row kernel whose blocks stage whole rows of its largest parameter.

    params: threads_per_row (a power of two), rows_per_block, vec consecutive elements per thread and step,
    which must divide the length of a row; the block must be whole warps, and the elements of its rows, and of
    all rows, whole words of 4 bytes (else InputError). Raises UnsupportedError where no parameter is read
    row by row.

    rewrite:  tensor.reduce, tensor.map, ... over one row
        -->   asynchronous copies of rows, folds in shared memory, shuffles, stores; a result as large as
              those rows is written over them and copied out
    """
    return _RowsStaged(kernel).lower()


class _RowsStaged(RowsKept):
    """All columns of a row count as one dimension."""

    def check_columns(self) -> None:
        phase = self.row_phases.walked
        self.length = prod(phase.extents())
        self.check_vector(self.length)
        source = whole_rows(self.kernel, self.row_phases)
        if source is None:
            raise UnsupportedError("no parameter is read row by row", where=self.where)
        self.source = source
        self.rewritten = rewritten_rows(self.kernel, self.row_phases, source)
        if self.steps(phase) * self.vec <= KEPT_ELEMENTS:
            kept = self.row_phases.kept(self.kernel)
            self.reuse(tuple(v for v in kept if v not in self.kernel.params))

    def prepare(self) -> None:
        """Copy the rows of this block."""
        w, t = self.w, self.source.tensor
        size, count = itemsize(t.dtype), self.rows * self.length
        self.copied = gcd(count, self.total * self.length, ASYNC_COPY_BYTES[0] // size)
        if self.copied * size < ASYNC_COPY_BYTES[-1]:
            raise InputError(f"expected whole words in {self.rows} rows of {self.length}", where=self.where)
        flat = Value(TensorType(t.dtype, (t.size,), "global"), self.source.hint)
        w.inputs[self.source] = flat
        self.tile = w.alloc((count,), t.dtype, "shared", "rows")
        with self._vectors() as (place, at):
            w.b.do(
                "thread.copy_async", flat, self.tile,
                src=(at,), dst=(w.simple(place),), lanes=self.copied, mask=w.below(at, t.size),
            )  # fmt: skip
        w.b.do("thread.async_commit")
        w.b.do("thread.async_wait", pending=0)

    @contextmanager
    def _vectors(self) -> Iterator[tuple[Expr, Expr]]:
        """Return where each vector that this thread copies begins, in the block's rows and in all rows."""
        w, count = self.w, self.rows * self.length
        copies, threads = count // self.copied, self.width * self.rows
        with w.loop("f", -(-copies // threads), unroll=1) as step:
            vector = w.simple(step * threads + Sym("tid"))
            place = vector * self.copied
            at = w.simple(Sym("bid.x") * count + place)
            with w.when(w.below(vector, copies)):
                yield place, at

    def walk(self, steps: int, *, reads: bool = True) -> AbstractContextManager[Expr]:
        most = max(1, UNROLLED_ELEMENTS // self.vec)
        together = max(n for n in range(1, most + 1) if steps % n == 0)
        return self.w.loop("s", steps, unroll=1 if steps <= most else together if together > 1 else 0)

    def shape(self, phase: Phase) -> tuple[int, ...]:
        return (prod(phase.extents()) // self.vec,) if phase.columns else ()

    def env(self, phase: Phase, column: Index, v: Expr) -> dict[str, Expr]:
        row: dict[str, Expr] = dict(zip(phase.rows, self.at, strict=True))
        if not column:
            return row
        place = self.w.simple(column[0] * self.vec + v)
        return {**row, **dict(zip(phase.columns, self.w.unravel(place, phase.extents()), strict=True))}

    def fetch(self, number: int, column: Index) -> None:
        return  # rows are in shared memory

    def points(self, number: int, step: Expr, v: Expr) -> Points:
        known = dict(self.totals)
        if self.phases[number].columns:
            known[self.source] = self.w.load(self.tile, (self._in_tile(step, v),))
        known |= self.held(number, step, v)
        return Points(self.w, known)

    def _in_tile(self, step: Expr, v: Expr) -> Expr:
        """Index in the tile of element v of a step of this thread."""
        vector = step * self.width + self.lane
        place = vector * self.vec + v
        return self.w.simple(self.slot * self.length + place)

    def _store(self, number: int, phase: Phase, r: Value) -> None:
        if r is not self.rewritten:
            super()._store(number, phase, r)
            return
        w = self.w
        flat = Value(TensorType(r.tensor.dtype, (r.tensor.size,), "global"), w.outputs[r].hint)
        w.outputs[r] = flat
        with self.walk(self.steps(phase), reads=False) as step:
            mask, column = self.step_at(phase, step)
            with w.when(mask), self.elements(phase, whole=False) as v:
                env = self.env(phase, column, v)
                place = tuple(env[d] for d in dims(phase.op, "par"))
                value = self.points(number, step, v).value(r, place)
                w.store(value, self.tile, (self._in_tile(step, v),))
        with self._vectors() as (start, at):
            exists = w.below(at, r.tensor.size)
            with w.when(exists), w.loop("v", self.copied, unroll=1) as lane:
                done = w.load(self.tile, (w.simple(start + lane),))
                w.store(done, flat, (w.simple(at + lane),))
