"""Elementwise kernels: each thread computes a few neighbouring points of the common domain."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.costmodel import MapParameters
from tilewright.ir import Expr, Func, Op, Sym
from tilewright.ir.expr import symbols
from tilewright.ir.simplify import coefficients
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.passes.analysis.index_sets import POINTWISE, recompute_cost
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.writing.points import Points, store_results
from tilewright.passes.kernels.writing.writer import Writer

#: most work, in additions, of the items of one thread that stand in its code one after the other
MAX_UNROLLED = 1024
#: additions that finding the place of one item counts for
ADDRESS_COST = 8
#: additions that a read counts for that is not part of a vector read: guarded, gathered or strided
SINGLE_COST = 2
#: most gathers of the lanes of one vector that stand in its code one after the other
MAX_GATHERS = 64


def lower_map(kernel: Func) -> Func:
    """The thread-level function of a kernel of maps over one domain."""
    p = parameters_of(kernel, MapParameters)
    threads, vec, items = p.threads, p.vec, p.items
    ops = [op for op in kernel.body.ops if op.name in POINTWISE]
    shape = tuple(dims(ops[-1], "par").values())
    last = shape[-1] if shape else 1
    if last % vec:
        vec = 1
    groups = (*shape[:-1], last // vec)
    total = prod(groups)
    blocks = max(1, -(-total // (threads * items)))
    w = Writer(kernel, threads, (blocks, 1, 1))
    work = ADDRESS_COST + sum(map(recompute_cost, ops)) + SINGLE_COST * vec * sum(map(_single_reads, ops))
    unroll = int(items * work <= MAX_UNROLLED)
    gathers = sum(op.name == "tensor.gather" for op in ops)
    with w.b.at(ops[-1].loc), w.loop("t", items, unroll=unroll) as item:
        first = Sym("bid.x") * (threads * items)
        linear = w.simple(first + item * threads + Sym("tid"))
        with w.when(w.below(linear, total)):
            # One index where there is only one: reads that a broadcast gave it are then the same reads.
            index = tuple(i if n > 1 else 0 for i, n in zip(w.unravel(linear, groups), groups, strict=True))
            with w.loop("v", vec, unroll=int(vec * gathers <= MAX_GATHERS)) as lane:
                place = (*index[:-1], index[-1] * vec + lane) if shape else ()
                store_results(w, Points(w), place)
    return w.finish()


def _single_reads(op: Op) -> int:
    """Reads at one point of a map or gather that neighbouring points cannot make as one vector."""
    if op.name == "tensor.gather":
        return 1
    last = next(reversed(dims(op, "par")), "")
    return sum(
        fill is not None or not _consecutive(at, last) for at, fill in zip(reads(op), fills(op), strict=True)
    )


def _consecutive(at: Sequence[Expr], last: str) -> bool:
    """True where neighbours along the last dimension read one element, or neighbouring ones."""
    *outer, inner = at or (0,)
    if any(last in symbols(e) for e in outer):
        return False
    form = coefficients(inner, [last], {})
    return form is not None and form[0].get(last, 0) in (0, 1)
