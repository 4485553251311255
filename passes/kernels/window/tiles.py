"""Window kernels (pooling, depthwise convolution) on GPUs: each thread computes a small box of outputs.

Neighbouring threads take neighbouring vectors along the innermost dimension. All that the outputs of one
thread read is read once: the reads of neighbouring windows overlap. Vectors along which windows slide are
left to `window_runs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import product
from math import prod

from tilewright.ir import Expr, Func, InputError, Op, Value
from tilewright.ir.expr import Sym, substitute
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.kernel_problem import stride_of
from tilewright.passes.kernels.window.space import TILE_UNROLL_BUDGET
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index, Writer

#: bytes of weights that a thread gathers into registers at most
MOST_APART_BYTES = 256
_NARROW = frozenset({"f16", "bf16"})


@dataclass(frozen=True)
class Step:
    """One output of a thread at one point of the window, and the order of its read of the first operand."""

    output: int
    point: tuple[int, ...]
    place: tuple[int, ...]


def lower_window_tiles(kernel: Func, op: Op, threads: int, outputs: Mapping[str, int]) -> Func:
    """The thread-level function of a window kernel whose threads compute `outputs` neighbours per dimension.

    rewrite:  tensor.window + epilogue maps
        -->   reads of one patch, straight-line sums of all outputs of the thread, stores

    Those of the last dimension make one vector; their number must divide its extent (else InputError).
    """
    return WindowTiles(kernel, op, threads, outputs).lower()


class WindowTiles:
    """One window kernel being lowered.

    vec: outputs along the innermost dimension; tile: outputs per dimension that stand in the code one after
    the other, at `offsets` from the first; lanes: those of the innermost one in loops that become vectors.
    """

    #: multiply-adds that stand in the code of a thread at most
    budget = TILE_UNROLL_BUDGET

    def __init__(self, kernel: Func, op: Op, threads: int, outputs: Mapping[str, int]) -> None:
        """Raises InputError unless the outputs of the innermost dimension divide its extent."""
        self.op = op
        self.par, self.red = dims(op, "par"), dims(op, "red")
        self.shape = tuple(self.par.values())
        *outer, inner = self.par
        self.vec = outputs.get(inner, 1)
        if self.par[inner] % self.vec:
            raise InputError(
                f"expected outputs of {inner} that divide {self.par[inner]}, got {self.vec}",
                where=f"@{kernel.name}",
            )
        self.lanes = self.vec
        self.tile = {d: outputs.get(d, 1) for d in outer}
        groups = [-(-self.par[d] // n) for d, n in self.tile.items()] + [self.par[inner] // self.vec]
        self.total = prod(groups)
        self.w = Writer(kernel, threads, (max(1, -(-self.total // threads)), 1, 1))
        self.linear = self.w.simple(Sym("bid.x") * threads + Sym("tid"))
        at = self.w.unravel(self.linear, groups)
        sizes = (*self.tile.values(), self.vec)
        self.base = {d: g * n for d, g, n in zip(self.par, at, sizes, strict=True)}
        self.inner = inner
        self.offsets = self.box()
        self.looped = self._looped()
        self.steps = self._steps()
        #: operands whose neighbours along the lanes lie apart, and registers with what steps read of them
        self.apart = [i for i in range(1, len(op.operands)) if self._lies_apart(kernel, i)]
        self.gathered: dict[int, Value] = {}

    def box(self) -> list[dict[str, int]]:
        """Offsets of this thread's outputs from its first one, without the lanes of loops."""
        return [dict(zip(self.tile, o, strict=True)) for o in product(*map(range, self.tile.values()))]

    def _looped(self) -> tuple[str, ...]:
        """Window dimensions, the outermost first, that are loops because all of them would be too long."""
        work = len(self.offsets) * self.lanes * prod(self.red.values())
        names: list[str] = []
        for d, n in self.red.items():
            if work <= self.budget:
                break
            names.append(d)
            work //= max(1, n)
        return tuple(names)

    def _steps(self) -> list[Step]:
        """All steps of the straight-line part, those that read the same neighbourhood close together.

        Each output still meets the points of its window in their order.
        """
        unrolled = [d for d in self.red if d not in self.looped]
        zero: dict[str, Expr] = dict.fromkeys((*self.par, *self.red), 0)
        steps = []
        for point in product(*(range(self.red[d]) for d in unrolled)):
            for number, offset in enumerate(self.offsets):
                env = {**zero, **offset, **dict(zip(unrolled, point, strict=True))}
                at = (substitute(e, env) for e in reads(self.op)[0])
                steps.append(Step(number, point, tuple(e if isinstance(e, int) else 0 for e in at)))
        ordered = sorted(steps, key=lambda s: s.place)
        met: dict[int, list[tuple[int, ...]]] = {}
        for s in ordered:
            met.setdefault(s.output, []).append(s.point)
        return ordered if all(p == sorted(p) for p in met.values()) else steps

    def lower(self) -> Func:
        w = self.w
        with w.b.at(self.op.loc), w.when(w.below(self.linear, self.total)):
            if self.looped:
                self._in_loops()
            else:
                self._gather_apart()
                with self._lanes() as v:
                    self.store(self.sums(self._initial(), {}, v), v)
        return w.finish()

    def _lies_apart(self, kernel: Func, i: int) -> bool:
        """Return whether no vector holds an operand's elements for the lanes of an output."""
        at, value = reads(self.op)[i], self.op.operands[i]
        return self.lanes > 1 and stride_of(kernel, self.op, value, at, self.inner) > 0

    def _gather_apart(self) -> None:
        """Read what lies apart by single elements, so that the loop over lanes has vectors alone.

        These are weights, which all outputs of a thread share.
        """
        w = self.w
        for i in self.apart:
            dtype, places = self.op.operands[i].tensor.dtype, len(self._places(i, 0))
            if places * self.lanes * itemsize(dtype) > MOST_APART_BYTES:
                continue
            kept = w.alloc((places, self.lanes), dtype, "reg", "apart")
            with self._lanes() as v:
                seen: dict[tuple[int, Index], Value] = {}
                points = Points(w)
                for number, env in enumerate(self._places(i, v).values()):
                    w.store(self.read(points, seen, i, env), kept, (number, v))
            self.gathered[i] = kept

    def _places(self, i: int, v: Expr) -> dict[Index, dict[str, Expr]]:
        """The places at which the steps read an operand at lane `v`, with the dimensions of one such step."""
        found: dict[Index, dict[str, Expr]] = {}
        for s in self.steps:
            env = self.env(s, {}, v)
            found.setdefault(tuple(self.w.simple(substitute(e, env)) for e in reads(self.op)[i]), env)
        return found

    def _lanes(self) -> AbstractContextManager[Expr]:
        """A loop over the lanes of the vectors."""
        return self.w.loop("v", self.lanes, unroll=1)

    def _initial(self) -> list[list[Value]]:
        init: tuple[float, ...] = self.op["init"]  # type: ignore[assignment]
        start = [self.w.b.const(x, r.tensor.dtype) for x, r in zip(init, self.op.results, strict=True)]
        return [start for _ in self.offsets]

    def _in_loops(self) -> None:
        """The window dimensions that are too long as loops, with the sums in registers between them."""
        w, count = self.w, len(self.offsets)
        kept = self.registers(count, self.lanes)
        with self._lanes() as v:
            self.keep(kept, self._initial(), lambda i: (i, v))
        with ExitStack() as stack:
            local = {d: stack.enter_context(w.loop(f"r_{d}", self.red[d])) for d in self.looped}
            with self._lanes() as v:
                before = [self.kept(kept, (i, v)) for i in range(count)]
                self.keep(kept, self.sums(before, local, v), lambda i: (i, v))
        with self._lanes() as v:
            self.store([self.kept(kept, (i, v)) for i in range(count)], v)

    def registers(self, count: int, lanes: int) -> list[Value]:
        """A buffer in registers for each result of the window op; those of 16-bit floats hold float32."""
        types = ("f32" if r.tensor.dtype in _NARROW else r.tensor.dtype for r in self.op.results)
        return [self.w.alloc((count, lanes), t, "reg", "acc") for t in types]

    def keep(self, buffers: list[Value], values: list[list[Value]], at: Callable[[int], Index]) -> None:
        """Write the results of output `i` at `at(i)`."""
        for i, row in enumerate(values):
            for buffer, x in zip(buffers, row, strict=True):
                self.w.store(self._cast(x, buffer.tensor.dtype), buffer, at(i))

    def kept(self, buffers: list[Value], at: Index) -> list[Value]:
        """The results of one output, in their own dtypes."""
        pairs = zip(self.op.results, buffers, strict=True)
        return [self._cast(self.w.load(buffer, at), r.tensor.dtype) for r, buffer in pairs]

    def _cast(self, x: Value, dtype: str) -> Value:
        return x if x.type.dtype == dtype else self.w.b.value("scalar.cast", x, dtype=dtype)

    def sums(self, start: list[list[Value]], local: Mapping[str, Expr], v: Expr) -> list[list[Value]]:
        """Per output, the sums after all steps of the straight-line part."""
        w, sums = self.w, list(start)
        points = Points(w)
        seen: dict[tuple[int, Index], Value] = {}
        self.ahead(points, seen, local, v)
        for s in self.steps:
            env = self.env(s, local, v)
            values = [self.read(points, seen, i, env) for i in range(len(self.op.operands))]
            sums[s.output] = list(w.inline(self.op, [*values, *sums[s.output]], env))
        return sums

    def env(self, s: Step, local: Mapping[str, Expr], v: Expr) -> dict[str, Expr]:
        """The dimensions of the window op at one step."""
        unrolled = (d for d in self.red if d not in self.looped)
        at = self.place(self.offsets[s.output], v)
        return {**at, **local, **dict(zip(unrolled, s.point, strict=True))}

    def ahead(
        self, points: Points, seen: dict[tuple[int, Index], Value], local: Mapping[str, Expr], v: Expr
    ) -> None:
        """Read what should be read before the first sum, into `seen`."""
        for i, kept in self.gathered.items():
            for number, at in enumerate(self._places(i, v)):
                seen[i, at] = self.w.load(kept, (number, v))

    def read(
        self, points: Points, seen: dict[tuple[int, Index], Value], i: int, env: Mapping[str, Expr]
    ) -> Value:
        """Operand `i` at one point; outputs beyond the last one must not read outside it either."""
        w, value, fill = self.w, self.op.operands[i], fills(self.op)[i]
        at = tuple(w.simple(substitute(e, env)) for e in reads(self.op)[i])
        if (i, at) not in seen:
            edge = w.bounds(at, value.tensor.shape) if fill is None else ()
            found = points.filled(value, at, fill) if fill is not None else points.value(value, at, edge)
            seen[i, at] = found
        return seen[i, at]

    def place(self, offset: Mapping[str, int], v: Expr) -> dict[str, Expr]:
        """Index of the output at an offset from the first one, and at lane `v`."""
        at = {d: self.w.simple(self.base[d] + offset[d]) for d in self.tile if d != self.inner}
        within = v + offset.get(self.inner, 0)
        at[self.inner] = self.w.simple(self.base[self.inner] + within)
        return at

    def store(self, sums: list[list[Value]], v: Expr) -> None:
        """Write every result of the kernel: all values first, so that no read waits for a store."""
        w = self.w
        ready = []
        for i, row in enumerate(sums):
            at = tuple(self.place(self.offsets[i], v).values())
            mask = w.bounds(at, self.shape)
            points = Points(w, dict(zip(self.op.results, row, strict=True)))
            for result, buffer in w.outputs.items():
                with w.b.at(w.producers[result].loc):
                    ready.append((points.value(result, at, mask), buffer, at, mask))
        for value, buffer, at, mask in ready:
            w.store(value, buffer, at, mask)
