"""Stages between products, on lanes: windows over what a block keeps, a few neighbours to a thread."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

from tilewright.ir import Expr, Op, Sym, Value
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.chain.stages import Stage
from tilewright.passes.kernels.chain_tiles.block import TilesBlock
from tilewright.passes.kernels.writing.writer import Index, Writer

#: points of a window times results of a thread that are written out in one body, at most
UNROLLED_POINTS = 256
#: neighbouring channels of a thread, and neighbouring pixels of one channel
_CHANNELS = (4, 2, 1)
_MOST_RUN = 8
#: results that a thread keeps in registers at most
MOST_RESULTS = 32


@dataclass(frozen=True)
class Runs:
    """The division of a stage among threads: channels and pixels in a row of a thread, and how many threads
    have work, each of which does `steps` such boxes at most.
    """

    channels: int
    run: int
    units: int
    steps: int


@lru_cache(maxsize=4096)
def runs_of(extents: tuple[int, ...], taps: int, threads: int) -> Runs:
    """The division with the least work of the busiest thread: operands that several of its results read
    are read once.
    """
    channels = next(c for c in _CHANNELS if extents[-1] % c == 0)
    row = extents[-2] if len(extents) > 1 else 1
    found = []
    for run in (r for r in range(1, min(row, _MOST_RUN) + 1) if row % r == 0):
        if run > 1 and (run * channels * taps > UNROLLED_POINTS or run * channels > MOST_RESULTS):
            continue
        units = prod(extents) // (channels * run)
        steps = -(-units // threads)
        side = taps**0.5
        found.append(
            (steps * (run * taps + (run + side - 1) * side + taps), Runs(channels, run, units, steps))
        )
    return min(found, key=lambda f: f[0])[1]


class StageWindow:
    """Writes a reduction whose points a thread folds alone, for neighbours that share what they read."""

    def __init__(self, block: TilesBlock, stage: Stage) -> None:
        self.block, self.stage, self.op, self.w = block, stage, stage.anchor, block.w
        self.extents = tuple(s.extent for s in stage.domain)
        self.runs = runs_of(self.extents, window_points(self.op), block.w.threads)

    def lower(self) -> None:
        """All points of the stage's domain, boxes of neighbours strided over the threads."""
        w, runs, op = self.w, self.runs, self.op
        shape = (runs.run, runs.channels)
        sums = [w.alloc(shape, r.tensor.dtype, "reg", "part") for r in op.results]
        init: Any = op["init"]
        row = self.extents[-2] // runs.run
        with w.loop("t", runs.steps) as step:
            number = w.simple(step * w.threads + Sym("tid"))
            with w.when(w.below(number, runs.units)):
                *outer, x, c = digits(w, number, (*self.extents[:-2], row, self.extents[-1] // runs.channels))
                first = (*outer, w.simple(x * runs.run), w.simple(c * runs.channels))
                with w.loops("i", shape, unroll=1) as at:
                    for total, start in zip(sums, init, strict=True):
                        w.store(w.b.const(start, total.tensor.dtype), total, at)
                self._fold(sums, first)
                with w.loops("i", shape, unroll=1) as at:
                    known = {r: w.load(s, at) for r, s in zip(op.results, sums, strict=True)}
                    self.block.finish(self.stage, known, self._moved(first, at))

    def _fold(self, sums: list[Value], first: Index) -> None:
        """Add each point of the window to all results of the thread."""
        w, red = self.w, dims(self.op, "red")
        body, unroll = self.runs.run * self.runs.channels, {}
        for d in reversed(red):
            body *= red[d]
            unroll[d] = 1 if body <= UNROLLED_POINTS else 0
        with ExitStack() as stack:
            inner = {d: stack.enter_context(w.loop(f"r_{d}", n, unroll=unroll[d])) for d, n in red.items()}
            at = stack.enter_context(w.loops("i", (self.runs.run, self.runs.channels), unroll=1))
            place = self.block.place(self.stage.domain, self._moved(first, at))
            par = dims(self.op, "par")
            env: dict[str, Expr] = {**dict(zip(par, place, strict=True)), **inner}
            edge = w.bounds(place, tuple(par.values()))
            values = self.block.points(self.stage).operands(self.op, env, edge)
            before = [w.load(s, at) for s in sums]
            for s, x in zip(sums, w.inline(self.op, [*values, *before], env), strict=True):
                w.store(x, s, at)

    def _moved(self, first: Index, by: Index) -> Index:
        *outer, row, channel = first
        return (*outer, self.w.simple(row + by[0]), self.w.simple(channel + by[1]))


def digits(w: Writer, number: Expr, extents: Sequence[int]) -> Index:
    """The place of a number, which is one of the box's, in a box; 0 along dimensions of one index."""
    several = [i for i, n in enumerate(extents) if n > 1]
    found = dict(zip(several, w.unravel(number, [extents[i] for i in several]), strict=True))
    return tuple(found.get(i, 0) for i in range(len(extents)))


def window_points(op: Op) -> int:
    """Points of the reduced domain."""
    return prod(dims(op, "red").values())
