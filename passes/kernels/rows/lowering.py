"""Row kernels: reductions over rows (softmax, norms, matrix-vector products) and maps over the same rows.

A group of threads shares one row: each folds a strided part, then the parts are combined in shared memory.
Values that depend on a row are recomputed from their operands instead of being kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.costmodel import RowReduceParameters
from tilewright.ir import Expr, Func, InputError, Op, Sym, UnsupportedError, Value
from tilewright.ir.tensor.ops import REDUCING, dims
from tilewright.passes.analysis.row_groups import row_dims
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.rows.combiners import combiner, neutral
from tilewright.passes.kernels.rows.partial_sums import in_runs
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index, Writer


@dataclass(frozen=True)
class _Shape:
    """Threads per row, rows per block, consecutive elements per thread."""

    width: int
    rows: int
    vec: int


def lower_rows(kernel: Func) -> Func:
    """The thread-level function of a kernel anchored at a reduction.

    The threads of a row are a power of two.

    rewrite:  tensor.reduce, tensor.map, ... over one row
        -->   strided folds, a tree in shared memory, stores
    """
    p = parameters_of(kernel, RowReduceParameters)
    width = p.threads_per_row
    if width & (width - 1):
        raise InputError(
            f"expected threads_per_row to be a power of two, got {width}", where=f"@{kernel.name}"
        )
    return _Rows(kernel, _Shape(width, p.rows_per_block, p.vec)).lower()


class _Rows:
    def __init__(self, kernel: Func, shape: _Shape) -> None:
        self.kernel, self.shape = kernel, shape
        self.ops = [op for op in kernel.body.ops if op.name != "tensor.return"]
        self.anchor = next(op for op in self.ops if op.name in REDUCING)
        self.row_shape = tuple(dims(self.anchor, "par").values())
        self.total = prod(self.row_shape)
        threads = shape.width * shape.rows
        self.w = Writer(kernel, threads, (max(1, -(-self.total // shape.rows)), 1, 1))
        w = self.w
        self.lane = w.simple(Sym("tid") % shape.width)
        self.slot = w.simple(Sym("tid") // shape.width)
        self.row = w.simple(Sym("bid.x") * shape.rows + self.slot)
        self.index: Index = w.unravel(self.row, self.row_shape)
        self.known: dict[Value, Value] = {}

    def lower(self) -> Func:
        w = self.w
        outputs = set(w.outputs)
        for op in self.ops:
            with w.b.at(op.loc):
                if op.name in REDUCING:
                    self._reduce(op)
                for r in op.results:
                    if r in outputs:
                        self._store(op, r)
        return w.finish()

    def _valid(self) -> tuple[tuple[Expr, Expr, Expr], ...]:
        """Holds for threads whose row exists."""
        return self.w.below(self.row, self.total)

    # -- reductions ------------------------------------------------------------------------------------------
    def _reduce(self, op: Op) -> None:
        w, width = self.w, self.shape.width
        red = dims(op, "red")
        length, vec = prod(red.values()), self._vec(red)
        shared = width > 1 or vec > 1
        if shared and combiner(op) is None:
            raise UnsupportedError(
                "this reduction has no combiner; it needs one thread per row and vec = 1", where=op.loc
            )
        start = (neutral(op),) if shared else op["init"]
        accs = [w.alloc((vec,), r.tensor.dtype, "reg", "part") for r in op.results]
        with w.loop("v", vec, unroll=1) as lane:
            for acc, init in zip(accs, start, strict=True):  # type: ignore[arg-type]
                w.store(w.b.const(init, acc.tensor.dtype), acc, (lane,))  # type: ignore[arg-type]
        self._fold(op, red, length, vec, accs)
        if not shared:
            self.known.update({r: w.load(a, (0,)) for r, a in zip(op.results, accs, strict=True)})
            return
        self._combine(op, accs[0], vec)

    def _vec(self, red: dict[str, int]) -> int:
        last = list(red.values())[-1] if red else 1
        return self.shape.vec if last % self.shape.vec == 0 else 1

    def _fold(self, op: Op, red: dict[str, int], length: int, vec: int, accs: list[Value]) -> None:
        """Fold this thread's part of the row: vectors lane, lane + width, lane + 2 width, ..."""
        w, width = self.w, self.shape.width
        groups = length // vec
        steps = -(-groups // width)
        names = list(red)
        extents = (*list(red.values())[:-1], red[names[-1]] // vec) if red else ()

        def fold(count: int, first: Expr) -> None:
            with w.loop("s", count, unroll=4 if count % 4 == 0 and count >= 8 else 0) as step:
                group = w.simple((first + step) * width + self.lane)
                at = w.unravel(group, extents)
                with w.when((*self._valid(), *w.below(group, groups))), w.loop("v", vec, unroll=1) as v:
                    local = dict(zip(names, at, strict=True))
                    if names:
                        local[names[-1]] = local[names[-1]] * vec + v
                    env: dict[str, Expr] = {**dict(zip(dims(op, "par"), self.index, strict=True)), **local}
                    values = Points(w, self.known).operands(op, env)
                    before = [w.load(a, (v,)) for a in accs]
                    for a, x in zip(accs, w.inline(op, [*values, *before], env), strict=True):
                        w.store(x, a, (v,))

        in_runs(w, [op], steps, accs, fold)

    def _combine(self, op: Op, part: Value, vec: int) -> None:
        """Merge each thread's lanes, then each row's threads (a tree in shared memory), then the init."""
        w, width = self.w, self.shape.width
        name = str(combiner(op))
        total = w.load(part, (0,))
        for i in range(1, vec):
            total = w.b.value(name, total, w.load(part, (i,)))
        if width > 1:
            total = self._tree(name, total, part.tensor.dtype)
        init = op["init"][0]  # type: ignore[index]
        if init != neutral(op):
            total = w.b.value(name, total, w.b.const(init, part.tensor.dtype))  # type: ignore[arg-type]
        self.known[op.result] = total

    def _tree(self, name: str, mine: Value, dtype: str) -> Value:
        w, width = self.w, self.shape.width
        shared = w.alloc((self.shape.rows, width), dtype, "shared", "partial")
        w.store(mine, shared, (self.slot, self.lane))
        half = width // 2
        while half:
            with w.when(((self.lane, 0, half),)):
                other = w.load(shared, (self.slot, self.lane + half))
                merged = w.b.value(name, w.load(shared, (self.slot, self.lane)), other)
                w.store(merged, shared, (self.slot, self.lane))
            half //= 2
        return w.load(shared, (self.slot, 0))

    # -- results ---------------------------------------------------------------------------------------------
    def _store(self, op: Op, r: Value) -> None:
        w = self.w
        if op.name in REDUCING:
            with w.when((*self._valid(), *w.below(self.lane, 1))):
                w.store(self.known[r], w.outputs[r], self.index)
            return
        rows = row_dims(op, self.ops, self.anchor)
        if rows is None:
            raise UnsupportedError("this map crosses rows of the reduction", where=op.loc)
        par = dims(op, "par")
        columns = [d for d in par if d not in rows]
        length = prod(par[d] for d in columns)
        vec = self.shape.vec if columns and par[columns[-1]] % self.shape.vec == 0 else 1
        steps = -(-(length // vec) // self.shape.width)
        with w.loop("s", steps, unroll=0) as step:
            group = w.simple(step * self.shape.width + self.lane)
            extents = [par[d] for d in columns]
            at = w.unravel(group, (*extents[:-1], extents[-1] // vec)) if columns else ()
            with w.when((*self._valid(), *w.below(group, length // vec))), w.loop("v", vec, unroll=1) as v:
                local: dict[str, Expr] = dict(zip(columns, at, strict=True))
                if columns:
                    local[columns[-1]] = local[columns[-1]] * vec + v
                env = {**dict(zip(rows, self.index, strict=True)), **local}
                place = tuple(env[d] for d in par)
                w.store(Points(w, self.known).value(r, place), w.outputs[r], place)
