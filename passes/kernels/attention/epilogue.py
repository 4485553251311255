"""The epilogue of attention: a tile in shared memory, read and stored by vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import e as euler
from math import gcd, inf, log2, prod

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP
from tilewright.passes.analysis.terms import Reduction
from tilewright.passes.kernels.attention.parameters import AttentionParameters, BlockShape
from tilewright.passes.kernels.attention.term_writer import TermWriter
from tilewright.passes.kernels.attention.view import AttentionView, Output
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: elements that a thread reads of the tile at once, and stores
VECTOR = 4
#: words added to the rows of the tile: fragments are stored without bank conflicts
PAD = 8
#: vectors of a thread that are unrolled together
UNROLL = 8
#: columns of sums that a warp brings into rows at a time, and words added to each row: no bank conflicts
PIECE_COLUMNS, PIECE_PAD = 32, 8


class RowState:
    """The rows of a warp at the end: their largest scores, their sums, and what is written of both.

    Four lanes, and all sets of warps, hold parts of a sum. The parts of sets are brought to the largest score
    of all sets first, through shared memory.
    """

    def __init__(
        self,
        w: Writer,
        view: AttentionView,
        plan: AttentionParameters,
        warp_row: Expr,
        origin: Expr,
        batch: Mapping[str, Expr],
    ) -> None:
        self.w, self.view, self.plan = w, view, plan
        self.warp_row, self.origin, self.batch = warp_row, origin, dict(batch)

    def normalise(self, mixed: Value, largest: Value, sums: Value) -> None:
        """Divide accumulators by their rows' sums, and store the logarithms of sums that are results."""
        w = self.w
        with w.loops("i", sums.tensor.shape, unroll=1) as at:
            total = w.load(sums, at)
            for lanes in (1, 2):
                other = w.b.value("thread.shuffle", total, kind="xor", offset=lanes)
                total = w.b.value("scalar.add", total, other)
            if self.plan.sets == 1:
                self._write(w.load(largest, at), total, at)
                total = w.b.value("scalar.div", self._unit(), total)
            w.store(total, sums, at)
        if self.plan.sets > 1:
            self._share(largest, sums)
        w.b.do("thread.scale_rows", mixed, sums)

    def _unit(self) -> Value:
        """What sums are divided into: the factor of the weights that dropout keeps."""
        return self.w.b.const(self.view.kept_scale, "f32")

    def _row(self, at: tuple[Expr, ...]) -> Expr:
        """The row in the block's tile of a row of fragments."""
        inside = at[0] * MMA_M + at[1] * (MMA_M // 2)
        return self.w.simple(self.warp_row + inside + Sym("tid") % WARP // 4)

    def _share(self, largest: Value, sums: Value) -> None:
        """Replace a set's sums by the factors that bring its accumulators to those of all sets, divided."""
        w, plan = self.w, self.plan
        both = w.alloc((plan.sets, plan.rows, 2), "f32", "shared", "row_state")
        own = Sym("tid") // (WARP * plan.warps)
        one_of_four = ((Sym("tid") % 4, 0, 1),)
        with w.loops("i", sums.tensor.shape, unroll=1) as at:
            for i, v in enumerate((largest, sums)):
                w.store(w.load(v, at), both, (own, self._row(at), i), one_of_four)
        w.b.do("thread.barrier")
        with w.loops("i", sums.tensor.shape, unroll=1) as at:
            tops = [w.load(both, (s, self._row(at), 0)) for s in range(plan.sets)]
            top = tops[0]
            for other in tops[1:]:
                top = w.b.value("scalar.max", top, other)
            none = w.b.value("scalar.eq", top, w.b.const(-inf, "f32"))
            top = w.b.value("scalar.select", none, w.b.const(0.0, "f32"), top)
            total = w.b.const(0.0, "f32")
            for s, t in enumerate(tops):
                part = w.load(both, (s, self._row(at), 1))
                total = w.b.value("scalar.fma", part, self._power(t, top), total)
            self._write(top, total, at)
            factor = self._power(w.load(largest, at), top)
            if self.view.kept_scale != 1.0:
                factor = w.b.value("scalar.mul", factor, self._unit())
            w.store(w.b.value("scalar.div", factor, total), sums, at)

    def _power(self, score: Value, top: Value) -> Value:
        """exp(scale (score - top))."""
        w = self.w
        apart = w.b.value("scalar.sub", score, top)
        power = w.b.value("scalar.mul", apart, w.b.const(self.view.scale * log2(euler), "f32"))
        return w.b.value("scalar.exp2", power)

    def _write(self, largest: Value, total: Value, at: tuple[Expr, ...]) -> None:
        """Store scale * largest + log(total), by one lane of the four of a row."""
        w, view = self.w, self.view
        if not view.lse:
            return
        row = w.simple(self.origin + self._row(at))
        env = {**self.batch, **dict(zip(view.rows, w.unravel(row, _sizes(view, view.rows)), strict=True))}
        scaled = w.b.value("scalar.mul", largest, w.b.const(view.scale, "f32"))
        lse = w.b.value("scalar.add", scaled, w.b.value("scalar.log", total))
        warps = WARP * self.plan.warps
        first: Mask = ((Sym("tid"), 0, warps),) if self.plan.sets > 1 else ()
        mask = ((Sym("tid") % 4, 0, 1), *first, *w.below(row, view.size(view.rows)))
        for out in view.lse:
            w.store(lse, w.outputs[out.value], TermWriter(w, env).at(out.at), mask)


def _sizes(view: AttentionView | ResultTile, names: tuple[str, ...]) -> list[int]:
    return [view.sizes[d] for d in names]


@dataclass(frozen=True)
class ResultTile:
    """Results that are maps of one sum of products, whose dimensions are rows, width and those of a batch."""

    sizes: Mapping[str, int]
    rows: tuple[str, ...]
    width: tuple[str, ...]
    mixed: Reduction
    outputs: tuple[Output, ...]

    def size(self, names: tuple[str, ...]) -> int:
        """Product of the extents of dimensions."""
        return prod(self.sizes[d] for d in names)


def write_outputs(
    w: Writer, view: ResultTile, plan: BlockShape, mixed: Value, origin: Expr, batch: Mapping[str, Expr]
) -> None:
    """Store the kernel's results, maps of the accumulators `mixed` [row tiles, column tiles, 16, 8].

    All copies have arrived and all threads are done with their tiles: this one may lie on the same bytes. It
    holds the rows of one set of warps after those of another.
    """
    rows, columns = view.size(view.rows), view.size(view.width)
    tiles = mixed.tensor.shape[1]
    tile = w.alloc((plan.sets * plan.rows, tiles * MMA_N + PAD), "f32", "shared", "mixed_tile")
    own_rows = Sym("tid") // WARP * (plan.rows // plan.warps)
    with w.loops("i", mixed.tensor.shape[:2], unroll=1) as (i, j):
        at = (own_rows + i * MMA_M, j * MMA_N)
        w.b.do("thread.store_fragment", mixed, tile, at=tuple(map(w.simple, at)), item=(i, j))
    lanes = _lanes(view, columns)
    vectors = plan.rows * (columns // lanes)
    steps = -(-vectors // plan.threads)
    with w.loop("e", steps, unroll=1 if steps <= UNROLL else UNROLL) as step:
        linear = w.simple(step * plan.threads + Sym("tid"))
        row, vector = w.unravel(linear, (plan.rows, columns // lanes))
        query = w.simple(origin + row)
        mask = (*w.below(linear, vectors), *w.below(query, rows))
        with w.when(mask), w.loop("v", lanes, unroll=1) as lane:
            column = w.simple(vector * lanes + lane)
            env: dict[str, Expr] = dict(batch)
            for names, at_ in ((view.rows, query), (view.width, column)):
                env.update(zip(names, w.unravel(at_, _sizes(view, names)), strict=True))
            total = w.load(tile, (row, column))
            for s in range(1, plan.sets):
                part = w.load(tile, (row + s * plan.rows, column))
                total = w.b.value("scalar.add", total, part)
            writer = TermWriter(w, env, {view.mixed: total})
            for out in view.outputs:
                w.store(writer.value(out.term), w.outputs[out.value], writer.at(out.at))


def write_pieces(
    w: Writer, view: ResultTile, pieces: Value, mixed: Value, origin: Expr, batch: Mapping[str, Expr]
) -> None:
    """Store the kernel's results, maps of the 16 rows of accumulators of each warp from row `origin` on.

    pieces: rows in shared memory for a part of the columns of each warp, [warps, 16, columns and pad].
    """
    rows, columns = view.size(view.rows), view.size(view.width)
    tiles = mixed.tensor.shape[1]
    part = pieces.tensor.shape[2] - PIECE_PAD
    lanes = gcd(_lanes(view, columns), part)
    warp, lane = w.simple(Sym("tid") // WARP), Sym("tid") % WARP
    with w.loop("piece", tiles * MMA_N // part, unroll=1) as piece:
        with w.loop("j", part // MMA_N, unroll=1) as j:
            item = (0, w.simple(piece * (part // MMA_N) + j))
            w.b.do("thread.store_fragment", mixed, pieces, at=(warp, 0, w.simple(j * MMA_N)), item=item)
        vectors = part // lanes
        with w.loop("e", -(-MMA_M * vectors // WARP), unroll=1) as step:
            linear = w.simple(step * WARP + lane)
            row, vector = w.unravel(linear, (MMA_M, vectors))
            query, first = w.simple(origin + row), w.simple(piece * part + vector * lanes)
            inside = (*w.below(linear, MMA_M * vectors), *w.below(query, rows), *w.below(first, columns))
            with w.when(inside), w.loop("v", lanes, unroll=1) as v:
                env: dict[str, Expr] = dict(batch)
                for names, at in ((view.rows, query), (view.width, w.simple(first + v))):
                    env.update(zip(names, w.unravel(at, _sizes(view, names)), strict=True))
                total = w.load(pieces, (warp, row, vector * lanes + v))
                writer = TermWriter(w, env, {view.mixed: total})
                for out in view.outputs:
                    w.store(writer.value(out.term), w.outputs[out.value], writer.at(out.at))


def _lanes(view: ResultTile, columns: int) -> int:
    """Neighbouring columns that are neighbours in memory, as far as a vector goes."""
    inner = view.width[-1]
    last = [next((e for e in reversed(o.at) if e != 0), 0) for o in view.outputs]
    if any(inner not in symbols(e) for e in last):
        return 1
    return gcd(VECTOR, view.sizes[inner], columns)
