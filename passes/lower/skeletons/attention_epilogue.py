"""What follows the second product of attention: a tile in shared memory, read and stored by vectors."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.expr import binary, symbols
from tilewright.passes.lower.skeletons.attention_plan import AttentionPlan
from tilewright.passes.lower.skeletons.attention_terms import TermWriter
from tilewright.passes.lower.skeletons.attention_view import AttentionView
from tilewright.passes.lower.skeletons.matrix_plan import TILE_M, TILE_N
from tilewright.passes.lower.skeletons.writer import Writer

#: elements that a thread reads of the tile at once, and stores
VECTOR = 4
#: words added to the rows of the tile: fragments are stored without bank conflicts
PAD = 8
#: vectors of a thread that are unrolled together
UNROLL = 8


def write_outputs(
    w: Writer,
    view: AttentionView,
    plan: AttentionPlan,
    mixed: Value,
    origin: Expr,
    warp_row: Expr,
    batch: Mapping[str, Expr],
) -> None:
    """Store the kernel's results, maps of the accumulators `mixed` [row tiles, column tiles, 16, 8].

    All copies have arrived and all threads are done with their tiles: this one may lie on the same bytes.
    """
    rows, columns = view.size(view.rows), view.size(view.width)
    tiles = mixed.tensor.shape[1]
    tile = w.alloc((plan.rows, tiles * TILE_N + PAD), "f32", "shared", "mixed_tile")
    with w.loops("i", mixed.tensor.shape[:2], unroll=1) as (i, j):
        at = (binary("+", warp_row, binary("*", i, TILE_M)), binary("*", j, TILE_N))
        w.b.do("thread.store_fragment", mixed, tile, at=tuple(map(w.simple, at)), item=(i, j))
    lanes = _lanes(view, columns)
    total = plan.rows * (columns // lanes)
    steps = -(-total // plan.threads)
    with w.loop("e", steps, unroll=1 if steps <= UNROLL else UNROLL) as step:
        linear = w.simple(binary("+", binary("*", step, plan.threads), Sym("tid")))
        row, vector = w.unravel(linear, (plan.rows, columns // lanes))
        query = w.simple(binary("+", origin, row))
        mask = (*w.below(linear, total), *w.below(query, rows))
        with w.when(mask), w.loop("v", lanes, unroll=1) as lane:
            column = w.simple(binary("+", binary("*", vector, lanes), lane))
            env: dict[str, Expr] = dict(batch)
            for names, at_ in ((view.rows, query), (view.width, column)):
                env.update(zip(names, w.unravel(at_, [view.sizes[d] for d in names]), strict=True))
            writer = TermWriter(w, env, {view.mixed: w.load(tile, (row, column))})
            for out in view.outputs:
                w.store(writer.value(out.term), w.outputs[out.value], writer.at(out.at))


def _lanes(view: AttentionView, columns: int) -> int:
    """Neighbouring columns that are neighbours in memory, as far as a vector goes."""
    inner = view.width[-1]
    last = [next((e for e in reversed(o.at) if e != 0), 0) for o in view.outputs]
    if any(inner not in symbols(e) for e in last):
        return 1
    return gcd(VECTOR, view.sizes[inner], columns)
