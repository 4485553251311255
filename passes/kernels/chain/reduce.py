"""Stages without register tiles: maps, windows and reductions, one point per thread or per group of lanes."""

from __future__ import annotations

from contextlib import ExitStack
from math import prod
from typing import Any

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.tensor.ops import dims
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.chain.block import ChainBlock, ChainPoints
from tilewright.passes.kernels.chain.stages import Stage
from tilewright.passes.kernels.rows.combiners import combiner, neutral
from tilewright.passes.kernels.rows.partial_sums import in_runs
from tilewright.passes.kernels.writing.writer import Index

#: points of a reduction unrolled in one body at most
UNROLLED_REDUCTION_POINTS = 64
#: steps of shared reductions written out, so that the loads of all are under way at once
MAX_STEPS_UNROLLED = 4
#: elements along the last dimension that one thread of a map computes
MAP_VECTOR = 4


def lower_map_stage(block: ChainBlock, stage: Stage) -> None:
    """All points of the stage's domain, strided over the threads, neighbours of a vector in one thread."""
    w = block.w
    extents = [s.extent for s in stage.domain]
    vec = MAP_VECTOR if extents and extents[-1] % MAP_VECTOR == 0 else 1
    groups = (*extents[:-1], extents[-1] // vec) if extents else ()
    total = prod(groups)
    steps = -(-total // block.threads)
    with w.loop("t", steps, unroll=4 if steps % 4 == 0 else 0) as step:
        linear = w.simple(step * block.threads + Sym("tid"))
        with w.when(w.below(linear, total)):
            at = w.unravel(linear, groups)
            with w.loop("v", vec, unroll=1) as lane:
                inner = (*at[:-1], at[-1] * vec + lane) if extents else ()
                block.finish(stage, {}, inner)


def serial_items(stage: Stage) -> int:
    """Neighbours along the last dimension that one thread reduces together, with all loads under way."""
    extents = [s.extent for s in stage.domain]
    length = prod(dims(stage.anchor, "red").values())
    fits = [n for n in (4, 2) if extents and extents[-1] % n == 0 and n * length <= UNROLLED_REDUCTION_POINTS]
    return fits[0] if fits else 1


class StageReduce:
    """Writes a reduction: each point is folded by `lanes` threads, whose parts are combined by shuffles."""

    def __init__(self, block: ChainBlock, stage: Stage, lanes: int) -> None:
        self.block, self.stage, self.op, self.w, self.lanes = block, stage, stage.anchor, block.w, lanes
        self.red = dims(self.op, "red")
        self.extents = [s.extent for s in stage.domain]
        self.items = serial_items(stage) if lanes == 1 else 1
        self.points = prod(self.extents) // self.items
        self.vec = self.items if lanes == 1 else self._vec()

    def _vec(self) -> int:
        last = list(self.red.values())[-1] if self.red else 1
        widest = VECTOR_BYTES // max(itemsize(v.tensor.dtype) for v in self.op.operands)
        return widest if last % widest == 0 else 1

    def lower(self) -> None:
        """One point per group of lanes and step."""
        w, lanes = self.w, self.lanes
        slots = self.block.threads // lanes
        steps = -(-self.points // slots)
        slot = w.simple(Sym("tid") // lanes)
        accs = [w.alloc((self.vec,), r.tensor.dtype, "reg", "part") for r in self.op.results]
        with w.loop("p", steps, unroll=int(lanes > 1 and steps <= MAX_STEPS_UNROLLED)) as step:
            linear = w.simple(step * slots + slot)
            valid = w.below(linear, self.points)
            first = self._point(linear)
            self._start(accs)
            with w.when(valid):
                if lanes == 1:
                    self._serial(accs, first)
                else:
                    self._fold(accs, first)
            if lanes > 1:
                totals = [self._combined(a) for a in accs]
                lane = w.simple(Sym("tid") % lanes)
                with w.when((*valid, *w.below(lane, 1))):
                    self.block.finish(self.stage, dict(zip(self.op.results, totals, strict=True)), first)
            else:
                with w.when(valid), w.loop("v", self.items, unroll=1) as v:
                    values = {r: w.load(a, (v,)) for r, a in zip(self.op.results, accs, strict=True)}
                    self.block.finish(self.stage, values, _shifted(first, v))

    def _point(self, linear: Expr) -> Index:
        """Offset in the domain of the first item of a group."""
        if not self.extents:
            return ()
        at = self.w.unravel(linear, (*self.extents[:-1], self.extents[-1] // self.items))
        return (*at[:-1], self.w.simple(at[-1] * self.items))

    def _start(self, accs: list[Value]) -> None:
        w = self.w
        init: Any = self.op["init"]
        start = init if self.lanes == 1 else (neutral(self.op),)
        with w.loop("v", self.vec, unroll=1) as v:
            for acc, x in zip(accs, start, strict=True):
                w.store(w.b.const(x, acc.tensor.dtype), acc, (v,))

    def _fold(self, accs: list[Value], offset: Index) -> None:
        w = self.w
        names = list(self.red)
        groups = prod(self.red.values()) // self.vec
        steps = -(-groups // self.lanes)
        extents = [*list(self.red.values())[:-1], self.red[names[-1]] // self.vec]
        lane = w.simple(Sym("tid") % self.lanes)

        def fold(count: int, first: Expr) -> None:
            with w.loop("s", count, unroll=_unroll(count)) as step:
                group = w.simple((first + step) * self.lanes + lane)
                at = w.unravel(group, extents)
                with w.when(w.below(group, groups)), w.loop("v", self.vec, unroll=1) as v:
                    inner = dict(zip(names, at, strict=True))
                    inner[names[-1]] = inner[names[-1]] * self.vec + v
                    self._step(accs, offset, inner, v)

        in_runs(w, [self.op], steps, accs, fold)

    def _serial(self, accs: list[Value], offset: Index) -> None:
        body, unroll = self.items, {}
        for d in reversed(self.red):
            body *= self.red[d]
            unroll[d] = 1 if body <= UNROLLED_REDUCTION_POINTS else 0
        with ExitStack() as stack:
            inner = {
                d: stack.enter_context(self.w.loop(f"r_{d}", n, unroll=unroll[d]))
                for d, n in self.red.items()
            }
            v = stack.enter_context(self.w.loop("v", self.items, unroll=1))
            self._step(accs, _shifted(offset, v), inner, v)

    def _step(self, accs: list[Value], offset: Index, inner: dict[str, Expr], v: Expr) -> None:
        w = self.w
        at = self.block.place(self.stage.domain, offset)
        par = dims(self.op, "par")
        env = {**dict(zip(par, at, strict=True)), **inner}
        edge = w.bounds(at, tuple(par.values()))
        values = ChainPoints(self.block, self.stage).operands(self.op, env, edge)
        before = [w.load(a, (v,)) for a in accs]
        for a, x in zip(accs, w.inline(self.op, [*values, *before], env), strict=True):
            w.store(x, a, (v,))

    def _combined(self, part: Value) -> Value:
        """The parts of all lanes of a group, merged; every lane has the whole."""
        w = self.w
        name = str(combiner(self.op))
        total = w.load(part, (0,))
        for i in range(1, self.vec):
            total = w.b.value(name, total, w.load(part, (i,)))
        half = self.lanes // 2
        while half:
            other = w.b.value("thread.shuffle", total, kind="xor", offset=half, width=self.lanes)
            total = w.b.value(name, total, other)
            half //= 2
        init: Any = self.op["init"]
        if init[0] != neutral(self.op):
            total = w.b.value(name, total, w.b.const(init[0], part.tensor.dtype))
        return total


def _shifted(offset: Index, by: Expr) -> Index:
    return (*offset[:-1], offset[-1] + by) if offset else ()


def _unroll(steps: int) -> int:
    """Loads of several steps should be under way at once."""
    return 1 if steps <= 4 else next((f for f in (8, 4, 2) if steps % f == 0), 0)
