"""Staging: the region of an operand one block needs for one step, copied cooperatively to shared memory.

Fetches fill what lies outside the operand with its fill value, so the compute phase needs no bounds checks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import gcd, prod

from tilewright.costmodel.kernels.geometry import MAX_UNROLLED_FETCH, ROLLED_FETCH
from tilewright.ir import Expr, Op, Sym, Value
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.simplify import coefficients, multiple_of
from tilewright.ir.tensor.ops import domain, fills, reads
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Index, Mask, Writer

#: counts the vectors of a box
_ELEMENT = Sym("element")


@dataclass(frozen=True)
class Region:
    """The box of an operand read in one step: per tensor dimension, index = base + gap * (0 .. extent-1).

    `local` maps iteration dimensions to their coefficient within the box. `order` is the order in which the
    block keeps the dimensions, last one innermost.
    """

    value: Value
    fill: float | int | bool | None
    extents: tuple[int, ...]
    gaps: tuple[int, ...]
    scaled: tuple[Mapping[str, int], ...]
    constants: tuple[int, ...]
    order: tuple[int, ...]

    @property
    def turned(self) -> bool:
        """Return whether the block keeps another dimension innermost than the operand."""
        several = [i for i in self.order if self.extents[i] > 1]
        return several[-1:] != sorted(several)[-1:]

    @property
    def walked(self) -> tuple[int, ...]:
        """The order in which a copy walks the box: that of the block's tile, so that neighbouring lanes store
        to neighbouring banks, unless neighbours in the operand are others.
        """
        return tuple(range(len(self.order))) if self.turned else self.order

    def stored(self, at: Sequence[Expr]) -> Index:
        """An index within the box as the block keeps it."""
        return tuple(at[i] for i in self.order)

    def stored_shape(self, pad: int) -> tuple[int, ...]:
        """Extents of the box as the block keeps it, rows longer by `pad` elements."""
        shape = [self.extents[i] for i in self.order]
        return (*shape[:-1], shape[-1] + pad)

    def reduced_outermost(self, reduced: Collection[str], sizes: Mapping[str, int]) -> Region:
        """The same box with the dimensions that only reduced ones move kept outermost.

        What one reduction index needs then lies together: lanes that read neighbouring samples meet in no
        bank. sizes: indices per iteration dimension in one step. Dimensions of a single index go outermost
        too.
        """
        varying = [{d for d in terms if sizes[d] > 1} for terms in self.scaled]
        single = [i for i, n in enumerate(self.extents) if n == 1]
        several = [i for i, n in enumerate(self.extents) if n > 1]
        outer = [i for i in several if varying[i] <= set(reduced)]
        inner = [i for i in several if i not in outer]
        if not outer or not inner or several == [*outer, *inner]:
            return self
        return replace(self, order=(*single, *outer, *inner))

    @property
    def size(self) -> int:
        return prod(self.extents)

    def base(self, origin: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """Global index of the first element, given the first index of every iteration dimension."""
        out = []
        for terms, gap, constant in zip(self.scaled, self.gaps, self.constants, strict=True):
            e: Expr = constant
            for d, c in terms.items():
                e += origin.get(d, 0) * (c * gap)
            out.append(e)
        return tuple(out)

    def local(self, offset: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """Index within the box, given the offset of every iteration dimension from its first index."""
        out = []
        for terms in self.scaled:
            e: Expr = 0
            for d, c in terms.items():
                e += offset.get(d, 0) * c
            out.append(e)
        return tuple(out)


def region(op: Op, operand: int, sizes: Mapping[str, int]) -> Region | None:
    """The region of an operand when each dimension runs over `sizes` indices; None where not affine."""
    extents, gaps, scaled, constants = [], [], [], []
    ranges = {d: (0, n - 1) for d, n in domain(op).items() if n > 1}
    for e in reads(op)[operand]:
        form = coefficients(e, list(domain(op)), ranges)
        if form is None or not isinstance(form[1], int) or any(c < 0 for c in form[0].values()):
            return None
        terms = form[0]
        gap = gcd(*terms.values()) if terms else 1
        terms = {d: c // gap for d, c in terms.items()}
        extents.append(1 + sum(c * (sizes[d] - 1) for d, c in terms.items()))
        gaps.append(gap)
        scaled.append(terms)
        constants.append(form[1])
    return Region(
        op.operands[operand],
        fills(op)[operand],
        tuple(extents),
        tuple(gaps),
        tuple(scaled),
        tuple(constants),
        tuple(range(len(extents))),
    )


def fetch_width(w: Writer, r: Region, base: tuple[Expr, ...], pitch: int, widest: int) -> int:
    """Elements of the last dimension one thread can fetch as one vector, and store so to rows of `pitch`.

    A turned region is fetched in vectors and stored element by element.
    """
    if not r.extents or r.gaps[-1] != 1 or not r.scaled[-1]:
        return 1
    shape = r.value.tensor.shape
    for width in (widest, widest // 2):
        rows = shape[-1] % width == 0 and r.value.tensor.rows_of(width)
        aligned = width > 1 and rows and multiple_of(base[-1], w.ranges) % width == 0
        if aligned and r.extents[-1] % width == 0 and (r.turned or pitch % width == 0):
            return width
    return 1


@dataclass(frozen=True)
class _Point:
    """One element of the cooperative copy: its step, index in the box, lane, and which threads have work.

    `likely` is the index in terms of a symbol that counts the box's vectors: it tells what holds for threads
    that have work.
    """

    step: Expr
    at: Index
    lane: Expr
    inside: Mask
    likely: Index


class Fetch:
    """One cooperative copy of a region into `target`, in one go or split into loading and storing."""

    def __init__(self, w: Writer, r: Region, target: Value, origin: Mapping[str, Expr], widest: int) -> None:
        self.w, self.r, self.target = w, r, target
        self.threads = 1 if target.tensor.space == "reg" else w.threads
        self.width = fetch_width(w, r, r.base(origin), target.tensor.shape[-1], widest)

    @property
    def steps(self) -> int:
        """Vectors each thread copies."""
        return -(-(self.r.size // self.width) // self.threads)

    def copy(self, origin: Mapping[str, Expr]) -> None:
        """Global memory to the target."""
        if self.r.turned and self.width > 1:
            registers = self.registers()
            self.load(origin, registers)
            self.store(registers)
            return
        with self._points() as p:
            self.w.store(self._value(origin, p), self.target, self.r.stored(p.at), p.inside)

    def registers(self) -> Value:
        """A register buffer that holds this thread's share of the region."""
        return self.w.alloc((self.steps, self.width), self.r.value.tensor.dtype, "reg", "ahead")

    def load(self, origin: Mapping[str, Expr], registers: Value) -> None:
        """Global memory to registers."""
        with self._points() as p:
            self.w.store(self._value(origin, p), registers, (p.step, p.lane))

    def store(self, registers: Value) -> None:
        """Registers to the target."""
        with self._points() as p:
            value = self.w.load(registers, (p.step, p.lane))
            self.w.store(value, self.target, self.r.stored(p.at), p.inside)

    @contextmanager
    def _points(self) -> Iterator[_Point]:
        w, steps = self.w, self.steps
        with w.loop("f", steps, unroll=1 if steps <= MAX_UNROLLED_FETCH else ROLLED_FETCH) as step:
            linear = step * self.threads + (Sym("tid") if self.threads > 1 else 0)
            inside = w.below(linear, self.r.size // self.width)
            w.ranges[_ELEMENT.name] = (0, max(0, self.r.size // self.width - 1))
            with w.loop("v", self.width, unroll=1) as lane:
                at = self._box(linear, lane)
                yield _Point(step, at, lane, inside, self._box(_ELEMENT, lane) if inside else at)
            del w.ranges[_ELEMENT.name]

    def _box(self, vector: Expr, lane: Expr) -> Index:
        """The index in the box of one element of a vector: its dimensions of several indices are walked."""
        r = self.r
        several = [i for i in r.walked if r.extents[i] > 1] or [r.walked[-1]] if r.walked else []
        extents = [r.extents[i] for i in several]
        digits = self.w.unravel(vector, (*extents[:-1], extents[-1] // self.width)) if several else ()
        last = len(r.extents) - 1
        places: dict[int, Expr] = dict.fromkeys(range(len(r.extents)), 0) | dict(
            zip(several, digits, strict=True)
        )
        if self.width > 1:
            places[last] = places[last] * self.width + lane
        return tuple(places[i] for i in range(len(r.extents)))

    def _value(self, origin: Mapping[str, Expr], p: _Point) -> Value:
        w, r = self.w, self.r
        where, likely = self._place(origin, p.at), self._place(origin, p.likely)
        checks = zip(where, likely, r.value.tensor.shape, strict=True)
        edge = tuple(c for at, sure, n in checks if w.below(sure, n) for c in w.below(at, n))
        fill = r.fill if r.fill is not None else 0.0
        if r.value in w.inputs:
            return w.load(w.inputs[r.value], where, (*p.inside, *edge), fill)
        v = Points(w).value(r.value, where, (*p.inside, *edge))
        if not edge:
            return v
        return w.b.value("scalar.select", w.condition(edge), v, w.b.const(fill, r.value.tensor.dtype))

    def _place(self, origin: Mapping[str, Expr], at: Index) -> Index:
        """Return where an index of the box lies in the operand."""
        steps = zip(self.r.base(origin), at, self.r.gaps, strict=True)
        return tuple(self.w.simple(b + i * g) for b, i, g in steps)


def start_copying_matrix(
    w: Writer,
    source: Value,
    first: Index,
    to: Value,
    threads: int,
    *,
    rows: int | None = None,
    most_unrolled: int = 0,
) -> None:
    """Start copying a box of a matrix, from `first` on, to a matrix in shared memory.

    rows: how many rows of that are copied; all of them without a number.

    `first` may name places in outer dimensions of the source before those of the matrix.

    All `threads` of the block copy vectors of 16 bytes of it; of at most `most_unrolled` each, the loop is
    unrolled.
    """
    outer, inner = first[:-2], first[-2:]
    lanes = VECTOR_BYTES // itemsize(to.tensor.dtype)
    rows = to.tensor.shape[0] if rows is None else rows
    vectors = to.tensor.shape[1] // lanes
    total = rows * vectors
    steps = -(-total // threads)
    with w.loop("copy", steps, unroll=1 if steps <= most_unrolled else 0) as step:
        number = w.simple(step * threads + Sym("tid"))
        row, vector = w.unravel(number, (rows, vectors))
        place = (row, vector * lanes)
        with w.when(w.below(number, total)):
            w.b.do(
                "thread.copy_async", source, to,
                src=(*outer, *(w.simple(a + b) for a, b in zip(inner, place, strict=True))),
                dst=tuple(map(w.simple, place)),
                lanes=lanes,
            )  # fmt: skip
