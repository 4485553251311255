"""The epilogue of attention: a tile in shared memory, read and stored by vectors."""

from __future__ import annotations

from collections.abc import Mapping
from math import e as euler
from math import gcd, inf, log2

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import MMA_M, MMA_N, WARP
from tilewright.passes.kernels.attention.parameters import AttentionParameters
from tilewright.passes.kernels.attention.term_writer import TermWriter
from tilewright.passes.kernels.attention.view import AttentionView
from tilewright.passes.kernels.writing.writer import Writer

#: elements that a thread reads of the tile at once, and stores
VECTOR = 4
#: words added to the rows of the tile: fragments are stored without bank conflicts
PAD = 8
#: vectors of a thread that are unrolled together
UNROLL = 8


def normalise(
    w: Writer, plan: AttentionParameters, scale: float, state: tuple[Value, Value, Value], warp_row: Expr
) -> None:
    """Divide accumulators by their rows' sums, of which four lanes, and all sets of warps, hold parts.

    state: accumulators, largest scores and sums of the warp's rows. Those of a set are brought to the largest
    score of all sets first, through shared memory.
    """
    mixed, largest, sums = state
    with w.loops("i", sums.tensor.shape, unroll=1) as at:
        total = w.load(sums, at)
        for lanes in (1, 2):
            other = w.b.value("thread.shuffle", total, kind="xor", offset=lanes)
            total = w.b.value("scalar.add", total, other)
        if plan.sets == 1:
            total = w.b.value("scalar.div", w.b.const(1.0, "f32"), total)
        w.store(total, sums, at)
    if plan.sets > 1:
        _share(w, plan, scale, (largest, sums), warp_row)
    w.b.do("thread.scale_rows", mixed, sums)


def _share(
    w: Writer, plan: AttentionParameters, scale: float, state: tuple[Value, Value], warp_row: Expr
) -> None:
    """Replace a set's sums by the factors that bring its accumulators to those of all sets, divided."""
    largest, sums = state
    both = w.alloc((plan.sets, plan.rows, 2), "f32", "shared", "row_state")
    own = Sym("tid") // (WARP * plan.warps)
    lane = Sym("tid") % WARP // 4

    def row(at: tuple[Expr, ...]) -> Expr:
        inside = at[0] * MMA_M + at[1] * (MMA_M // 2)
        return w.simple(warp_row + inside + lane)

    one_of_four = ((Sym("tid") % 4, 0, 1),)
    with w.loops("i", sums.tensor.shape, unroll=1) as at:
        for i, v in enumerate(state):
            w.store(w.load(v, at), both, (own, row(at), i), one_of_four)
    w.b.do("thread.barrier")
    with w.loops("i", sums.tensor.shape, unroll=1) as at:
        tops = [w.load(both, (s, row(at), 0)) for s in range(plan.sets)]
        top = tops[0]
        for other in tops[1:]:
            top = w.b.value("scalar.max", top, other)
        none = w.b.value("scalar.eq", top, w.b.const(-inf, "f32"))
        top = w.b.value("scalar.select", none, w.b.const(0.0, "f32"), top)
        total = w.b.const(0.0, "f32")
        for s, t in enumerate(tops):
            part = w.load(both, (s, row(at), 1))
            total = w.b.value("scalar.fma", part, _power(w, t, top, scale), total)
        w.store(w.b.value("scalar.div", _power(w, w.load(largest, at), top, scale), total), sums, at)


def _power(w: Writer, score: Value, top: Value, scale: float) -> Value:
    """exp(scale (score - top))."""
    apart = w.b.value("scalar.sub", score, top)
    power = w.b.value("scalar.mul", apart, w.b.const(scale * log2(euler), "f32"))
    return w.b.value("scalar.exp2", power)


def write_outputs(
    w: Writer,
    view: AttentionView,
    plan: AttentionParameters,
    mixed: Value,
    origin: Expr,
    batch: Mapping[str, Expr],
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
                env.update(zip(names, w.unravel(at_, [view.sizes[d] for d in names]), strict=True))
            total = w.load(tile, (row, column))
            for s in range(1, plan.sets):
                part = w.load(tile, (row + s * plan.rows, column))
                total = w.b.value("scalar.add", total, part)
            writer = TermWriter(w, env, {view.mixed: total})
            for out in view.outputs:
                w.store(writer.value(out.term), w.outputs[out.value], writer.at(out.at))


def _lanes(view: AttentionView, columns: int) -> int:
    """Neighbouring columns that are neighbours in memory, as far as a vector goes."""
    inner = view.width[-1]
    last = [next((e for e in reversed(o.at) if e != 0), 0) for o in view.outputs]
    if any(inner not in symbols(e) for e in last):
        return 1
    return gcd(VECTOR, view.sizes[inner], columns)
