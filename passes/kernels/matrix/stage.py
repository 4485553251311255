"""Staging of one factor of a matrix product: chunks of it copied to a ring of buffers in shared memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir import Expr, Op, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.float_pieces import PIECES
from tilewright.ir.hardware_facts import LINE_BYTES, WARP
from tilewright.ir.simplify import interval
from tilewright.ir.tensor.ops import ranges_of
from tilewright.ir.thread.split_ops import GROUP
from tilewright.ir.thread.tensor_maps import RANK, ROUNDED
from tilewright.ir.thread.warpgroup_ops import TURNED_STEP, TURNED_WORDS
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.matrix.boxes import Windows, boxes_of, map_of_boxes, start_of_box, windows_of
from tilewright.passes.kernels.matrix.parameters import (
    ENGINE,
    SPLIT_SLOTS,
    TURNED_SLOTS,
    WARPGROUPS,
    MatrixParameters,
    panel_columns,
)
from tilewright.passes.kernels.matrix.view import MatrixView
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.prefetch import prefetched
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: elements added to rows of 32-bit elements that are read one by one
PAD_BYTES = 32
#: bytes at whose multiples the order of pieces of warpgroups' tiles starts anew
WARPGROUP_ALIGNMENT = 1024
#: bytes a thread copies at once where it computes what it copies
COMPUTED_BYTES = 16
#: vectors that a thread splits together: their loads then start before the first pieces are stored
SPLIT_TOGETHER = 2


class Staged:
    """One factor (0: rows, 1: columns): its ring of tiles, and how the block fills one of them.

    by_channel: a tile holds rows of the channel ([m, k], [n, k]), else columns of it ([k, m], [k, n]); for
    warpgroups, turned, in panels of columns ([panel, k, column]) whose rows are as long as they can be.
    """

    def __init__(
        self,
        w: Writer,
        view: MatrixView,
        plan: MatrixParameters,
        operand: int,
        origin: Expr,
        batch: Mapping[str, Expr],
        slots: int,
    ) -> None:
        self.w, self.view, self.plan, self.operand, self.slots = w, view, plan, operand, slots
        self.origin, self.batch = origin, dict(batch)
        #: the chunk that counts as the first, and where chunks end if later ones may be asked for
        self.first_chunk: Expr = 0
        self.last_chunk: int | None = None
        #: the block's part of the lines to prefetch, and of how many parts it is one
        self.own_lines: tuple[Expr, int] = (0, 1)
        self.source = view.sources[operand]
        self.size = itemsize(view.dtype)
        self.rows = plan.block.n if operand else plan.block.m
        along = view.along(operand)
        self.by_channel = view.in_rows(operand)
        self.asynchronous = view.copy_elements(operand) > 0
        self.lanes = view.copy_elements(operand) if self.asynchronous else self._computed_lanes(along)
        minor = plan.block.k if self.by_channel else self.rows
        self.major = self.rows if self.by_channel else plan.block.k
        self.vectors = minor // self.lanes
        self.turned = plan.engine == WARPGROUPS and not self.by_channel
        swizzled = self.by_channel or self.size == 2 or self.turned
        by_engine = plan.transport == ENGINE and swizzled
        self.boxes = boxes_of(view, operand) if by_engine else None
        self.windows = windows_of(view, operand) if by_engine and self.boxes is None else None
        self.panel = minor
        if self.turned:
            self.panel = panel_columns(plan, operand, self.size, filled=self.boxes is not None)
        shape: tuple[int, ...] = (slots, self.major, minor if swizzled else minor + PAD_BYTES // self.size)
        if self.turned:
            shape = (slots, -(-minor // self.panel), self.major, self.panel)
        name = f"{'ab'[operand]}_tiles"
        align = WARPGROUP_ALIGNMENT if plan.engine == WARPGROUPS else 0
        self.dtype = view.sources[operand].value.tensor.dtype
        self.tiles = w.alloc(shape, self.dtype, "shared", name, swizzled=swizzled, align=align)
        self.map = self._map() if self.boxes is not None or self.windows is not None else None

    @property
    def by_engine(self) -> bool:
        """Whether the copy engine brings the tiles."""
        return self.map is not None

    @property
    def held(self) -> bool:
        """Whether warpgroups multiply the first factor from registers: one of 32 bits that lies turned."""
        return self.turned and self.size == 4 and not self.operand

    @property
    def sharers(self) -> int:
        """Blocks of the cluster that each bring a part of a tile to all of them."""
        return self.plan.cluster if self.operand else 1

    def _map(self) -> int | None:
        """The number of the kernel's tensor map for the factor; None where there cannot be one."""
        value = self.source.value
        box, row = (self.major // self.sharers, self.panel), self.panel * self.size
        position = list(self.w.inputs).index(value)
        if self.boxes is not None:
            parameter = map_of_boxes(self.boxes, self.view, position, value.tensor, box, row)
        else:
            assert self.windows is not None
            parameter = self.windows.map(position, value.tensor, *box, row)
        if parameter is not None and self.view.rounds:
            parameter = replace(parameter, recipe=replace(parameter.recipe, dtype=ROUNDED))
        return None if parameter is None else self.w.add_map(parameter)

    def _computed_lanes(self, along: str) -> int:
        if not along:
            return 1
        lanes = COMPUTED_BYTES // self.size
        while self.view.sizes[along] % lanes:
            lanes //= 2
        return lanes

    def place(self, slot: Expr, outer: Expr, k: Expr) -> tuple[Expr, ...]:
        """Index of an element in the ring."""
        return self._at(slot, outer, k) if self.by_channel else self._at(slot, k, outer)

    def _at(self, slot: Expr, major: Expr, minor: Expr) -> tuple[Expr, ...]:
        """Index of an element in the ring by its row and column in a tile."""
        if self.turned:
            return (slot, minor // self.panel, major, minor % self.panel)
        return (slot, major, minor)

    def move_to(self, origin: Expr, batch: Mapping[str, Expr]) -> None:
        """Take what follows from another tile: its first row or column, its place in the batch."""
        self.origin, self.batch = origin, dict(batch)

    def begin_at(self, chunk: Expr, chunks: int | None) -> None:
        """Count chunks from another one on. chunks: of the whole sum, where later ones are none."""
        self.first_chunk, self.last_chunk = chunk, chunks

    @property
    def steps(self) -> int:
        """Vectors each thread copies of a chunk."""
        return -(-self.major * self.vectors // self.plan.copying_threads)

    def share_lines(self, part: Expr, parts: int) -> None:
        """Prefetch a part of the lines only; other blocks, which read the same ones, prefetch the others."""
        self.own_lines = (part, parts)

    def prefetch_early(self, first: int, chunks: int) -> None:
        """Bring the lines of some chunks to the L2, where the kernel starts while other launches still run.

        Nothing where the factor is not one that the kernel should prefetch.
        """
        w, value = self.w, self.source.value
        part, parts = self.own_lines
        if chunks < 1 or not any(w.kernel.params[i] is value for i in prefetched(w.kernel)):
            return
        elements = max(1, LINE_BYTES // self.size)
        shape = (chunks, self.major, -(-self.vectors * self.lanes // elements))
        with w.loop("p", -(-prod(shape) // (w.threads * parts))) as step:
            line = w.simple((step * parts + part) * w.threads + Sym("tid"))
            chunk, major, along = w.unravel(line, shape)
            where, mask = self._place(w.simple(chunk + first), major, w.simple(along * elements))
            mask = (*w.below(line, prod(shape)), *mask)
            w.b.do("thread.prefetch", w.inputs[value], at=where, mask=mask, early=True)

    def fetch(self, chunk: Expr, slot: Expr) -> None:
        """Copy a chunk to a slot: all threads together, zeros outside of the factor."""
        if self.by_engine:
            self._bring(chunk, slot)
            return
        if not self.asynchronous:
            self.store(self.load(chunk), slot)
            return
        w = self.w
        with self._vectors() as (_, major, minor, inside), w.when(inside):
            where, mask = self._place(chunk, major, minor)
            at = tuple(map(w.simple, self._at(slot, major, minor)))
            w.b.do(
                "thread.copy_async", w.inputs[self.source.value], self.tiles,
                src=where, dst=at, lanes=self.lanes, mask=mask,
            )  # fmt: skip

    def _bring(self, chunk: Expr, slot: Expr) -> None:
        """Let the copy engine bring a chunk, or this block's part of it: one box for each panel."""
        w = self.w
        taps, channel = self._chunk(chunk)
        if self.windows is not None:
            self._bring_windows(self.windows, taps, channel, slot)
            return
        assert self.boxes is not None
        index = self.batch | taps
        rank = len(self.boxes.outer) + 2
        panels = self.tiles.tensor.shape[1] if self.turned else 1
        part = self.major // self.sharers
        first: Expr = Sym(RANK) * part if self.sharers > 1 else 0
        along_channel, along_rows = (first, 0) if self.turned else (0, first)
        with w.loop("panel", panels, unroll=1) as panel:
            row = self.origin + along_rows + panel * self.panel
            at = start_of_box(self.boxes, index, self.view.sizes, row, channel + along_channel)
            w.b.do(
                "thread.copy_tile", w.inputs[self.source.value], self.tiles,
                map=self.map,
                at=tuple(map(w.simple, at)),
                dst=tuple(map(w.simple, self._at(slot, first, panel * self.panel))),
                tile=(1,) * (rank - 2) + (part, self.panel),
                to=tuple(range(self.sharers)) if self.sharers > 1 else (),
            )  # fmt: skip

    def _bring_windows(self, windows: Windows, taps: Mapping[str, Expr], channel: Expr, slot: Expr) -> None:
        """Let the copy engine bring the windows of the tile's rows, of one tap: one copy."""
        w, outer = self.w, self.view.outer(self.operand)
        first = w.unravel(self.origin, [self.view.sizes[d] for d in outer])
        index: dict[str, Expr] = {**self.batch, **dict(zip(outer, first, strict=True)), **taps}
        w.b.do(
            "thread.copy_window", w.inputs[self.source.value], self.tiles,
            map=self.map,
            at=tuple(map(w.simple, windows.start(index, channel))),
            offsets=tuple(map(w.simple, windows.offsets(index))),
            dst=tuple(map(w.simple, self._at(slot, 0, 0))),
            tile=(self.major, self.panel),
        )  # fmt: skip

    def round(self, slot: Expr) -> None:
        """Round to TF32, where they lie, the elements of a slot that this thread has copied."""
        w = self.w
        with self._vectors() as (_, major, minor, inside), w.when(inside):
            at = tuple(map(w.simple, self._at(slot, major, minor)))
            w.b.do("thread.round_shared", self.tiles, at=at, lanes=self.lanes)

    def split(self, slot: Expr, pieces: Value) -> None:
        """Split the rows of a slot into pieces: all threads together, after the barrier behind its copies."""
        w, vectors = self.w, self.plan.block.k // GROUP
        steps = -(-self.major * vectors // self.plan.threads)
        with w.loop("f", steps, unroll=1) as step:
            linear = w.simple(step * self.plan.threads + Sym("tid"))
            major, vector = w.unravel(linear, (self.major, vectors))
            at = w.simple(vector * GROUP)
            with w.when(w.below(linear, self.major * vectors)):
                w.b.do("thread.split_shared", self.tiles, pieces, at=(slot, major, at), dst=(major, at))

    def load(self, chunk: Expr) -> Value:
        """This thread's share of a chunk, in registers."""
        w = self.w
        registers = w.alloc((self.steps, self.lanes), self.dtype, "reg", f"{'ab'[self.operand]}_ahead")
        with (
            self._vectors() as (step, major, minor, inside),
            w.loop("v", self.lanes, unroll=1) as lane,
        ):
            where, mask = self._place(chunk, major, minor + lane)
            w.store(self._computed(where, (*inside, *mask)), registers, (step, lane))
        return registers

    def store(self, registers: Value, slot: Expr) -> None:
        """Write the loaded registers to a slot of shared memory."""
        w = self.w
        with (
            self._vectors() as (step, major, minor, inside),
            w.when(inside),
            w.loop("v", self.lanes, unroll=1) as lane,
        ):
            w.store(w.load(registers, (step, lane)), self.tiles, self._at(slot, major, minor + lane))

    @contextmanager
    def _vectors(self) -> Iterator[tuple[Expr, Expr, Expr, Mask]]:
        """For each vector of this thread: its number, row and first column in the tile, if it is one."""
        w = self.w
        with w.loop("f", self.steps, unroll=1) as step:
            linear = w.simple(step * self.plan.copying_threads + Sym("tid"))
            major, vector = w.unravel(linear, (self.major, self.vectors))
            inside = w.below(linear, self.major * self.vectors)
            yield step, major, w.simple(vector * self.lanes), inside

    def _computed(self, where: tuple[Expr, ...], mask: Mask) -> Value:
        w, value = self.w, self.source.value
        if value in w.inputs:
            return w.load(w.inputs[value], where, mask)
        computed = Points(w).value(value, where, mask)
        if not mask:
            return computed
        return w.b.value("scalar.select", w.condition(mask), computed, w.b.const(0.0, self.dtype))

    def _place(self, chunk: Expr, major: Expr, minor: Expr) -> tuple[tuple[Expr, ...], Mask]:
        """Index of an element of the factor, and where it is inside."""
        w, view, op = self.w, self.view, self.view.op
        row, k = (major, minor) if self.by_channel else (minor, major)
        outer, sizes = view.outer(self.operand), view.sizes
        at = w.simple(self.origin + row)
        env: dict[str, Expr] = dict(self.batch)
        env.update(zip(outer, w.unravel(at, [sizes[d] for d in outer]), strict=True))
        mask: Mask = w.below(at, view.size(outer))
        taps, first = self._chunk(chunk)
        if self.last_chunk is not None:
            mask += w.below(w.simple(chunk + self.first_chunk), self.last_chunk)
        env.update(taps)
        channel = w.simple(first + k)
        env[view.channel] = channel
        mask += w.below(channel, sizes[view.channel])
        index = tuple(w.simple(substitute(e, env)) for e in self.source.at)
        return index, mask + self._edges(op, index)

    def _chunk(self, chunk: Expr) -> tuple[dict[str, Expr], Expr]:
        """The taps of a chunk, and its first element along the channel."""
        w, view, sizes = self.w, self.view, self.view.sizes
        chunks = -(-sizes[view.channel] // self.plan.block.k)
        number = w.simple(chunk + self.first_chunk)
        tap, part = w.unravel(number, (max(1, view.size(view.taps)), chunks))
        taps = dict(zip(view.taps, w.unravel(tap, [sizes[d] for d in view.taps]), strict=True))
        return taps, w.simple(part * self.plan.block.k)

    def _edges(self, op: Op, index: tuple[Expr, ...]) -> Mask:
        """Conditions on dimensions of the factor that some point of the contraction leaves."""
        ranges, found = ranges_of(op), []
        for e, at, extent in zip(self.source.at, index, self.source.value.tensor.shape, strict=True):
            low, high = interval(e, ranges)
            if low < 0 or high >= extent:
                found.append((at, 0, extent))
        return tuple(found)


class TurnedRows:
    """Tiles of rows of the channel, [slot, row, k], to which a role of its own turns panels of columns.

    Warpgroups multiply factors of 32 bits in such rows alone, where the first one is not in registers.

    Along k every eight elements are in the order 0 2 4 6 1 3 5 7, as fragments of the other factor are
    loaded: so those loads, and what is read and written here, meet each bank once.
    """

    turned = False

    def __init__(self, w: Writer, plan: MatrixParameters, columns: Staged) -> None:
        self.w, self.plan, self.columns = w, plan, columns
        shape, dtype = (TURNED_SLOTS, columns.rows, plan.block.k), columns.tiles.tensor.dtype
        self.tiles = w.alloc(shape, dtype, "shared", "b_rows", swizzled=True, align=WARPGROUP_ALIGNMENT)

    def place(self, slot: Expr, outer: Expr, k: Expr) -> tuple[Expr, ...]:
        """Index of an element."""
        return (slot, outer, k)

    def turn(self, source: Expr, slot: Expr) -> None:
        """Turn a chunk in one slot of the columns to rows in another: all threads of the role together.

        Eight threads read eight neighbouring pieces of rows and write pieces of as many places along k: the
        banks of both are all different.
        """
        w, pieces = self.w, self.plan.block.k // TURNED_WORDS
        # as many pieces of a row, and along k, as eight threads have
        together = LINE_BYTES // (self.columns.size * TURNED_WORDS)
        groups = -(-self.columns.rows // (together * TURNED_WORDS)) * pieces
        count, threads = groups * together, WARP * self.plan.turners
        with w.loop("f", -(-count // threads), unroll=1) as step:
            linear = w.simple(step * threads + Sym("tid"))
            lane, group = w.simple(linear % together), w.simple(linear // together)
            piece = w.simple((lane * 2 + lane // 4 + group) % pieces)
            column = w.simple((group // pieces * together + lane) * TURNED_WORDS)
            # every second row of eight, from the first or the second on
            first = piece // TURNED_STEP * (TURNED_STEP * TURNED_WORDS) + piece % TURNED_STEP
            with w.when((*w.below(linear, count), *w.below(column, self.columns.rows))):
                w.b.do(
                    "thread.turn_shared", self.columns.tiles, self.tiles,
                    src=tuple(map(w.simple, self.columns.place(source, column, first))),
                    dst=tuple(map(w.simple, self.place(slot, column, piece * TURNED_WORDS))),
                )  # fmt: skip


class SplitRows:
    """Tiles of pieces of one factor, [slot, piece, row, k], to which a role of its own splits float32 rows.

    Along k every eight elements are in the order 0 4 1 5 2 6 3 7, in both factors alike.
    """

    def __init__(self, w: Writer, plan: MatrixParameters, whole: Staged) -> None:
        self.w, self.plan, self.whole = w, plan, whole
        shape = (SPLIT_SLOTS, PIECES, whole.rows, plan.block.k)
        name = f"{'ab'[whole.operand]}_pieces"
        self.tiles = w.alloc(shape, "bf16", "shared", name, swizzled=True, align=WARPGROUP_ALIGNMENT)

    def split(self, source: Expr, slot: Expr) -> None:
        """Split a chunk in a slot of the ring to a slot of pieces: all threads of the role together."""
        w, threads, vectors = self.w, WARP * self.plan.turners, self.plan.block.k // GROUP
        count = self.whole.rows * vectors
        with w.loop("f", -(-count // threads), unroll=SPLIT_TOGETHER) as step:
            linear = w.simple(step * threads + Sym("tid"))
            row, vector = w.unravel(linear, (self.whole.rows, vectors))
            column = w.simple(vector * GROUP)
            with w.when(w.below(linear, count)):
                w.b.do(
                    "thread.split_shared", self.whole.tiles, self.tiles,
                    at=tuple(map(w.simple, self.whole.place(source, row, column))),
                    dst=tuple(map(w.simple, (slot, row, column))),
                )  # fmt: skip

    def pieces(self) -> list[PieceTiles]:
        """The tiles of each piece, the largest first."""
        return [PieceTiles(self.tiles, piece) for piece in range(PIECES)]


@dataclass(frozen=True)
class PieceTiles:
    """A ring of tiles of one piece of a factor that a role splits."""

    tiles: Value
    piece: int
    turned = False
    held = False

    def place(self, slot: Expr, outer: Expr, k: Expr) -> tuple[Expr, ...]:
        """Index of an element."""
        return (slot, self.piece, outer, k)


def chunk_count(view: MatrixView, plan: MatrixParameters) -> int:
    """Chunks of the whole reduced domain."""
    return prod((view.size(view.taps), -(-view.sizes[view.channel] // plan.block.k)))
