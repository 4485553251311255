"""Window kernels on GPUs whose windows slide along the innermost dimension, several outputs of it per thread.

A thread reads each row of its patch as few aligned vectors: those its outputs lie over, and at both ends the
narrowest that hold what the windows of the outermost outputs add. Its results leave as vectors too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tilewright.ir import Expr, Func, InputError, Op, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.simplify import multiple_of
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.kernel_problem import windows_of
from tilewright.passes.kernels.window.space import MOST_AHEAD, RUN_UNROLL_BUDGET, Piece, pieces
from tilewright.passes.kernels.window.tiles import WindowTiles
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index


def slides_inside(op: Op) -> bool:
    """Return whether windows slide along the innermost dimension of the outputs."""
    return list(dims(op, "par"))[-1] in dict(windows_of(op))


def lower_window_runs(kernel: Func, op: Op, threads: int, outputs: Mapping[str, int]) -> Func:
    """The thread-level function of a window kernel whose threads compute neighbours along their windows.

    rewrite:  tensor.window + epilogue maps
        -->   vector reads of one patch, straight-line sums of all outputs of the thread, vector stores

    The outputs of the last dimension must divide its extent, and windows along it stand in the code of a
    thread (else InputError).
    """
    return _WindowRuns(kernel, op, threads, outputs).lower()


class _WindowRuns(WindowTiles):
    """The outputs of a thread along the innermost dimension are part of its box, not lanes of loops."""

    budget = RUN_UNROLL_BUDGET

    def __init__(self, kernel: Func, op: Op, threads: int, outputs: Mapping[str, int]) -> None:
        super().__init__(kernel, op, threads, outputs)
        if dict(windows_of(op))[self.inner] in self.looped:
            raise InputError(
                f"expected fewer outputs of {self.inner}, got {self.vec}", where=f"@{kernel.name}"
            )
        #: columns that a thread reads, relative to the first output's, as vectors
        self.pieces = self._pieces({s.place[-1] for s in self.steps})

    def box(self) -> list[dict[str, int]]:
        """Offsets of all outputs of this thread, row by row."""
        self.lanes = 1
        self.rows = super().box()
        return [{**row, self.inner: lane} for row in self.rows for lane in range(self.vec)]

    # -- reads -----------------------------------------------------------------------------------------------
    def _pieces(self, columns: Iterable[int]) -> dict[int, Piece]:
        """Per column the piece that brings it; none where the first operand is not read from memory."""
        value = self.op.operands[0]
        if value not in self.w.inputs:
            return {}
        start = substitute(reads(self.op)[0][-1], dict.fromkeys(self.red, 0) | self.base)
        offset = substitute(reads(self.op)[0][-1], dict.fromkeys((*self.par, *self.red), 0))
        aligned = multiple_of(start - offset, self.w.ranges)
        widest = VECTOR_BYTES // itemsize(value.tensor.dtype)
        return {c: p for p in pieces(columns, aligned, value.tensor.shape[-1], widest) for c in p.columns}

    def ahead(
        self, points: Points, seen: dict[tuple[int, Index], Value], local: Mapping[str, Expr], v: Expr
    ) -> None:
        few = len({s.point for s in self.steps}) <= MOST_AHEAD
        for s in self.steps:
            env = self.env(s, local, v)
            self._read_piece(seen, env, s.place[-1])
            for i in range(1, len(self.op.operands) if few else 1):
                self.read(points, seen, i, env)

    def _read_piece(self, seen: dict[tuple[int, Index], Value], env: Mapping[str, Expr], column: int) -> None:
        """The piece of the first operand that brings a column, and all its columns into `seen`."""
        w, value = self.w, self.op.operands[0]
        *outer, last = (w.simple(substitute(e, env)) for e in reads(self.op)[0])
        piece = self.pieces.get(column)
        if piece is None or (0, (*outer, last)) in seen:
            return
        places = {c: (*outer, w.simple(last + (c - column))) for c in (piece.start, *piece.columns)}
        start, fill = places[piece.start], fills(self.op)[0]
        if multiple_of(start[-1], w.ranges) % piece.lanes:
            return  # an index that is no sum: such a vector might begin inside a row and end outside
        edge = w.bounds(start, value.tensor.shape)
        other = 0.0 if fill is None else fill
        read = w.b.value("thread.load", w.inputs[value], at=start, mask=edge, other=other, lanes=piece.lanes)
        for c in piece.columns:
            lane = c - piece.start
            one = read if piece.lanes == 1 else w.b.value("scalar.extract", read, lane=lane)
            seen[0, places[c]] = one

    # -- results ---------------------------------------------------------------------------------------------
    def store(self, sums: list[list[Value]], v: Expr) -> None:
        """Compute every result of the kernel into registers, then write all of them as vectors."""
        w = self.w
        ready = {r: w.alloc((len(self.rows), self.vec), r.tensor.dtype, "reg", "ready") for r in w.outputs}
        if self._counts_columns():
            for i, row in enumerate(sums):
                self._finish(ready, row, i // self.vec, i % self.vec)
        else:
            acc = self.registers(len(self.rows), self.vec)
            self.keep(acc, sums, lambda i: (i // self.vec, i % self.vec))
            with w.loop("v", self.vec, unroll=1) as lane:
                for number in range(len(self.rows)):
                    self._finish(ready, self.kept(acc, (number, lane)), number, lane)
        with w.loop("v", self.vec, unroll=1) as lane:
            for number, row_offset in enumerate(self.rows):
                at = tuple(self.place(row_offset, lane).values())
                for result, buffer in w.outputs.items():
                    w.store(w.load(ready[result], (number, lane)), buffer, at, w.bounds(at, self.shape))

    def _counts_columns(self) -> bool:
        """Return whether a map asks for the number of its column, as means over the inside of an image do.

        Such maps are no vectors: each lane stands in the code, where most of the numbers are constants.
        """
        maps = (op for op in self.w.producers.values() if op is not self.op and op.body is not None)
        indices = (o["at"] for op in maps for o in op.body.ops if o.name == "scalar.index")  # type: ignore[union-attr]
        return any(symbols(e) for e in indices)  # type: ignore[arg-type]

    def _finish(self, ready: Mapping[Value, Value], row: list[Value], number: int, lane: Expr) -> None:
        """All results of the kernel at one of this thread's outputs."""
        w = self.w
        at = tuple(self.place(self.rows[number], lane).values())
        points = Points(w, dict(zip(self.op.results, row, strict=True)))
        for result, buffer in ready.items():
            with w.b.at(w.producers[result].loc):
                value = points.value(result, at, w.bounds(at, self.shape))
                w.store(value, buffer, (number, lane))
