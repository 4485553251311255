"""Tiles of queries, keys and values in shared memory: copied asynchronously, or computed by the threads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from tilewright.ir import Expr, Op, Pairs, Sym
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.terms import Read, Term, leaves
from tilewright.passes.kernels.attention.parameters import depth_of, padded, pitch
from tilewright.passes.kernels.attention.term_writer import TermWriter
from tilewright.passes.kernels.matrix.view import Source, neighbours, run_of
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: vectors of a thread whose copies, or loads, are written out one after the other
UNROLL = 16


class FactorFrame(Protocol):
    """What a tile asks of the view of a kernel: extents of dimensions, and the type of the factors."""

    @property
    def sizes(self) -> Mapping[str, int]: ...
    @property
    def dtype(self) -> str: ...
    def size(self, names: tuple[str, ...]) -> int: ...


class TileLayout:
    """The layout of one factor, a matrix of `outer` by `inner` dimensions, in a tile of shared memory.

    by_inner: rows of the tile run along the inner dimensions, else along the outer ones. lanes: elements that
    one asynchronous copy moves; 0 where threads compute or load them. width: elements that lie side by side
    for a thread.
    """

    def __init__(
        self, view: FactorFrame, term: Term, outer: tuple[str, ...], inner: tuple[str, ...], rows: int
    ) -> None:
        self.view, self.term, self.outer, self.inner, self.rows = view, term, outer, inner, rows
        self.columns = padded(view.size(inner), depth_of(view.dtype))
        frame = Op("tensor.map", (), (("par", Pairs.of(dict(view.sizes))),))
        sources = [Source(x.value, x.at, True) for x in leaves(term) if isinstance(x, Read)]
        along = _along(frame, sources, view, inner) or _along(frame, sources, view, outer)
        size = itemsize(view.dtype)
        runs = [run_of(frame, s, along, ASYNC_COPY_BYTES[0] // size) for s in sources if _moves(s, along)]
        self.width = min(runs, default=1)
        self.lanes = self.width if isinstance(term, Read) and self.width * size in ASYNC_COPY_BYTES else 0
        self.by_inner = along not in outer
        self.major = self.rows if self.by_inner else self.columns
        self.minor = self.columns if self.by_inner else self.rows
        self.shape = (self.major, pitch(self.minor, size))


class StagedTile:
    """A ring of tiles of one factor, and how the threads of a block fill one of them."""

    def __init__(
        self, w: Writer, layout: TileLayout, slots: int, batch: Mapping[str, Expr], name: str
    ) -> None:
        self.w, self.layout, self.batch = w, layout, dict(batch)
        shape = (slots, *layout.shape)
        self.tiles = w.alloc(shape, layout.view.dtype, "shared", name, swizzled=True)

    def fetch(self, slot: Expr, origin: Expr) -> None:
        """Fill a slot with the rows from `origin` of the outer dimensions on; zeros outside of the factor."""
        w, layout, term = self.w, self.layout, self.layout.term
        with self._vectors() as (major, minor, inside), w.when(inside):
            if layout.lanes and isinstance(term, Read):
                env, mask = self._place(origin, major, minor)
                writer, where = TermWriter(w, env), tuple(map(w.simple, (slot, major, minor)))
                w.b.do(
                    "thread.copy_async", w.inputs[term.value], self.tiles,
                    src=writer.at(term.at), dst=where, lanes=layout.lanes, mask=mask,
                )  # fmt: skip
                return
            with w.loop("v", layout.width, unroll=1) as lane:
                column = w.simple(minor + lane)
                env, mask = self._place(origin, major, column)
                value = TermWriter(w, env, mask=mask).value(term)
                if mask and not isinstance(term, Read):
                    zero = w.b.const(0.0, layout.view.dtype)
                    value = w.b.value("scalar.select", w.condition(mask), value, zero)
                w.store(value, self.tiles, (slot, major, column))

    def place(self, slot: Expr, outer: Expr, inner: Expr) -> tuple[Expr, ...]:
        """Index of an element in the ring."""
        at = (slot, outer, inner) if self.layout.by_inner else (slot, inner, outer)
        return tuple(map(self.w.simple, at))

    @contextmanager
    def _vectors(self) -> Iterator[tuple[Expr, Expr, Mask]]:
        """For each vector of this thread: its row and first column in the tile, if it is one."""
        w, layout = self.w, self.layout
        lanes = layout.width
        vectors = layout.minor // lanes
        total = layout.major * vectors
        steps = -(-total // w.threads)
        with w.loop("f", steps, unroll=1 if steps <= UNROLL else UNROLL) as step:
            linear = w.simple(step * w.threads + Sym("tid"))
            major, vector = w.unravel(linear, (layout.major, vectors))
            yield major, w.simple(vector * lanes), w.below(linear, total)

    def _place(self, origin: Expr, major: Expr, minor: Expr) -> tuple[dict[str, Expr], Mask]:
        """The symbols of the factor's term at an element, and where it exists."""
        w, layout = self.w, self.layout
        row, column = (major, minor) if layout.by_inner else (minor, major)
        env: dict[str, Expr] = dict(self.batch)
        mask: Mask = ()
        for names, at in ((layout.outer, origin + row), (layout.inner, column)):
            where = w.simple(at)
            sizes = [layout.view.sizes[d] for d in names]
            env.update(zip(names, w.unravel(where, sizes), strict=True))
            mask += w.below(where, layout.view.size(names))
        return env, mask


def _along(frame: Op, sources: list[Source], view: FactorFrame, names: tuple[str, ...]) -> str:
    """The last of these dimensions, where its neighbours are neighbours in all that is read along it."""
    wide = [d for d in names if view.sizes[d] > 1][-1:]
    moving = [s for d in wide for s in sources if _moves(s, d)]
    return wide[0] if moving and all(neighbours(frame, s, wide[0]) for s in moving) else ""


def _moves(source: Source, d: str) -> bool:
    return any(d in symbols(e) for e in source.at)
