"""Sums over images for every tap of a window: a thread keeps the sums of all taps for a few channels.

It walks over strips of neighbouring pixels. The plain image's part of a strip is read once for all taps; of
the other image the pixels that the strip's windows cover, once for each row of taps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from tilewright.ir import Expr, Func, InputError, Sym, UnsupportedError, Value
from tilewright.ir.expr import substitute
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.rows.combiners import combiner, first_of, neutral
from tilewright.passes.kernels.tap_sums.parameters import TapSumParameters
from tilewright.passes.kernels.tap_sums.view import tap_sums
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index, Mask, Writer


def lower_tap_sums(kernel: Func) -> Func:
    """The thread-level function of a kernel whose results are sums for the taps of a window.

    params: threads_per_group (a power of two), groups_per_block, vec, outputs. `vec` must divide the extent
    of the dimension along which memory runs, `outputs` that of the pixels of a row (else InputError).

    rewrite:  tensor.reduce, tensor.map, ...
        -->   per thread: strips of pixels, folds into the sums of all taps; a tree in shared memory; stores
    """
    return _TapSums(kernel).lower()


class _TapSums:
    def __init__(self, kernel: Func) -> None:
        found = tap_sums(kernel)
        where = f"@{kernel.name}"
        if found is None:
            raise UnsupportedError("expected sums for the taps of a window", where=where)
        p = parameters_of(kernel, TapSumParameters)
        self.kernel, self.view, self.op, self.p = kernel, found, found.op, p
        self.par, red = dims(self.op, "par"), dims(self.op, "red")
        if p.threads_per_group & (p.threads_per_group - 1):
            raise InputError(
                f"expected threads_per_group to be a power of two, got {p.threads_per_group}", where=where
            )
        for name, size, extent in (
            ("vec", p.vec, self.par[found.inner]),
            ("outputs", p.outputs, red[found.slid]),
        ):
            if extent % size:
                raise InputError(f"expected {name} to divide {extent}, got {size}", where=where)
        kept = {**found.kept, found.inner: found.kept[found.inner] // p.vec}
        self.strips = {**red, found.slid: red[found.slid] // p.outputs}
        self.total = prod(kept.values())
        threads = p.threads_per_group * p.groups_per_block
        w = self.w = Writer(kernel, threads, (max(1, -(-self.total // p.groups_per_block)), 1, 1))
        self.slot = w.simple(Sym("tid") % p.groups_per_block)
        self.lane = w.simple(Sym("tid") // p.groups_per_block)
        self.group = w.simple(Sym("bid.x") * p.groups_per_block + self.slot)
        self.at = dict(zip(kept, w.unravel(self.group, tuple(kept.values())), strict=True))
        #: registers with the sums of this thread: [taps, vec]
        self.sums = w.alloc((found.taps, p.vec), self.op.result.tensor.dtype, "reg", "sums")
        with self._each() as (t, v):
            w.store(w.b.const(neutral(self.op), self.op.result.tensor.dtype), self.sums, (t, v))

    def lower(self) -> Func:
        w = self.w
        with w.b.at(self.op.loc):
            with w.when(self._valid()):
                self._walk()
            self._merge()
            self._store()
        return w.finish()

    def _valid(self) -> Mask:
        """Return whether this thread's group exists."""
        return self.w.below(self.group, self.total)

    def _channels(self, v: Expr) -> dict[str, Expr]:
        """The dimensions of results besides taps, at this thread's channel v."""
        inner = self.view.inner
        return {**self.at, inner: self.w.simple(self.at[inner] * self.p.vec + v)}

    # -- folds -----------------------------------------------------------------------------------------------
    def _walk(self) -> None:
        """Fold this thread's strips: every one that its lane comes to."""
        w, lanes, extents = self.w, self.p.threads_per_group, tuple(self.strips.values())
        count = prod(extents)
        with w.loop("s", -(-count // lanes)) as step:
            strip = w.simple(step * lanes + self.lane)
            with w.when(w.below(strip, count)):
                self._strip(dict(zip(self.strips, w.unravel(strip, extents), strict=True)))

    def _strip(self, column: dict[str, Expr]) -> None:
        w, view, p = self.w, self.view, self.p
        start = w.simple(column[view.slid] * p.outputs)
        none: dict[str, Expr] = dict.fromkeys((view.tap, *view.others), 0)
        sizes = dict.fromkeys(view.plain, p.outputs) | dict.fromkeys(view.windowed, view.span(p.outputs))
        dtypes = {k: self.op.operands[k].tensor.dtype for k in sizes}
        read = {k: w.alloc((n, p.vec), dtypes[k], "reg", "pixels") for k, n in sizes.items()}
        strip = w.alloc((p.vec,), self.op.result.tensor.dtype, "reg", "strip")
        for k in view.plain:
            with w.loop("l", p.outputs, unroll=1) as pixel, w.loop("v", p.vec, unroll=1) as v:
                env = {**self._channels(v), **column, view.slid: w.simple(start + pixel), **none}
                w.store(self._operand(k, env), read[k], (pixel, v))
        with w.loops("o", [self.par[d] for d in view.others], unroll=1) as other:
            taps: dict[str, Expr] = dict(zip(view.others, other, strict=True))
            for k in view.windowed:
                for place, (neighbour, moved) in view.places(p.outputs).items():
                    at = {**column, **taps, view.slid: w.simple(start + neighbour), view.tap: moved}
                    with w.loop("v", p.vec, unroll=1) as v:
                        w.store(self._operand(k, {**self._channels(v), **at}), read[k], (place, v))
            with w.loop("t", self.par[view.tap], unroll=1) as tap:
                self._fold(read, {**column, **taps, view.tap: tap}, start, strip)
                with w.loop("v", p.vec, unroll=1) as v:
                    self._add(w.load(strip, (v,)), (self._tap(other, tap), v))

    def _tap(self, other: Index, tap: Expr) -> Expr:
        """The number of a tap among all."""
        number: Expr = 0
        for d, at in zip((*self.view.others, self.view.tap), (*other, tap), strict=True):
            number = number * self.par[d] + at
        return self.w.simple(number)

    def _fold(self, read: dict[int, Value], at: dict[str, Expr], start: Expr, strip: Value) -> None:
        """The sum of a strip for one tap, which is added to the tap's: no chain is as long as the walk."""
        w, view, p = self.w, self.view, self.p
        with w.loop("v", p.vec, unroll=1) as v:
            w.store(w.b.const(neutral(self.op), strip.tensor.dtype), strip, (v,))
        with w.loop("l", p.outputs, unroll=1) as pixel, w.loop("v", p.vec, unroll=1) as v:
            place = w.simple(pixel * view.stride + at[view.tap] * view.dilation)
            values = [
                w.load(read[k], (pixel if k in view.plain else place, v))
                for k in range(len(self.op.operands))
            ]
            env = {**self._channels(v), **at, view.slid: w.simple(start + pixel)}
            (x,) = w.inline(self.op, [*values, w.load(strip, (v,))], env)
            w.store(x, strip, (v,))

    def _add(self, x: Value, at: Index) -> None:
        w = self.w
        w.store(w.b.value(str(combiner(self.op)), w.load(self.sums, at), x), self.sums, at)

    def _operand(self, k: int, env: dict[str, Expr]) -> Value:
        """The value that one operand has at a point of the sum."""
        w, op = self.w, self.op
        place = tuple(w.simple(substitute(e, env)) for e in reads(op)[k])
        return Points(w).filled(op.operands[k], place, fills(op)[k])

    # -- results ---------------------------------------------------------------------------------------------
    def _merge(self) -> None:
        """The sums of all threads of a group, in the first one's registers."""
        w, p, half = self.w, self.p, self.p.threads_per_group // 2
        if not half:
            return
        shape = (self.view.taps, half, p.groups_per_block, p.vec)
        shared = w.alloc(shape, self.op.result.tensor.dtype, "shared", "partial")
        while half:
            with w.when(((self.lane, half, 2 * half),)), self._each() as (t, v):
                w.store(w.load(self.sums, (t, v)), shared, (t, self.lane - half, self.slot, v))
            with w.when(((self.lane, 0, half),)), self._each() as (t, v):
                self._add(w.load(shared, (t, self.lane, self.slot, v)), (t, v))
            half //= 2

    @contextmanager
    def _each(self) -> Iterator[Index]:
        """A loop over this thread's sums; gives the numbers of tap and channel."""
        w = self.w
        with w.loop("t", self.view.taps, unroll=1) as t, w.loop("v", self.p.vec, unroll=1) as v:
            yield t, v

    def _store(self) -> None:
        w, view, first = self.w, self.view, first_of(self.op)
        if first != neutral(self.op):
            with self._each() as (t, v):
                self._add(w.b.const(first, self.op.result.tensor.dtype), (t, v))
        with (
            w.when((*self._valid(), *w.below(self.lane, 1))),
            w.loops("o", [self.par[d] for d in view.others], unroll=1) as other,
            w.loop("t", self.par[view.tap], unroll=1) as tap,
            w.loop("v", self.p.vec, unroll=1) as v,
        ):
            taps = dict(zip((*view.others, view.tap), (*other, tap), strict=True))
            row = {**self._channels(v), **taps}
            points = Points(w, {self.op.result: w.load(self.sums, (self._tap(other, tap), v))})
            for phase in view.phases.phases:
                named = dict(zip(phase.rows, (row[d] for d in self.par), strict=True))
                for r in phase.op.results:
                    if r in w.outputs:
                        place = tuple(named[d] for d in dims(phase.op, "par"))
                        w.store(points.value(r, place), w.outputs[r], place)
