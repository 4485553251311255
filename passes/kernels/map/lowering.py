"""Elementwise kernels: each thread computes a few neighbouring points of the common domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.costmodel import MapParameters
from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.simplify import coefficients
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.passes.analysis.index_sets import POINTWISE, recompute_cost
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.kernel_problem import map_parts
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
    """The thread-level function of a kernel of maps.

    Results of one shape are computed by the same threads, point by point. Those of another shape have blocks
    of their own, behind the others: neither waits for the other.
    """
    p = parameters_of(kernel, MapParameters)
    parts = [_Part.of(part, p) for part in map_parts(kernel)]
    w = Writer(kernel, p.threads, (sum(part.blocks for part in parts), 1, 1))
    if len(parts) == 1:
        _write(w, p, parts[0], 0)
        return w.finish()
    first = 0
    everywhere = w.ranges["bid.x"]
    for part in parts:
        end = first + part.blocks
        with w.when(((Sym("bid.x"), first, end),)):
            w.ranges["bid.x"] = (first, end - 1)
            _write(w, p, part, first)
            w.ranges["bid.x"] = everywhere
        first = end
    return w.finish()


@dataclass(frozen=True)
class _Part:
    """Results of one shape: groups of `vec` neighbours, and the blocks that compute them."""

    results: tuple[Value, ...]
    ops: tuple[Op, ...]
    shape: tuple[int, ...]
    vec: int
    groups: tuple[int, ...]
    blocks: int

    @classmethod
    def of(cls, part: Func, p: MapParameters) -> _Part:
        """The results of a kernel, all of one shape, by the parameters of the whole launch."""
        ops = tuple(op for op in part.body.ops if op.name in POINTWISE)
        shape = tuple(dims(ops[-1], "par").values())
        last = shape[-1] if shape else 1
        vec = p.vec if last % p.vec == 0 else 1
        groups = (*shape[:-1], last // vec)
        blocks = max(1, -(-prod(groups) // (p.threads * p.items)))
        return cls(part.body.ops[-1].operands, ops, shape, vec, groups, blocks)


def _write(w: Writer, p: MapParameters, part: _Part, first_block: int) -> None:
    """Write what the blocks of one part compute; the first of them has this number."""
    ops, vec, items, total = part.ops, part.vec, p.items, prod(part.groups)
    work = ADDRESS_COST + sum(map(recompute_cost, ops)) + SINGLE_COST * vec * sum(map(_single_reads, ops))
    unroll = int(items * work <= MAX_UNROLLED)
    gathers = sum(op.name == "tensor.gather" for op in ops)
    with w.b.at(ops[-1].loc), w.loop("t", items, unroll=unroll) as item:
        block = Sym("bid.x") - first_block if part.blocks > 1 else 0
        first = block * (p.threads * items)
        linear = w.simple(first + item * p.threads + Sym("tid"))
        with w.when(w.below(linear, total)):
            # One index where there is only one: reads that a broadcast gave it are then the same reads.
            index = tuple(
                i if n > 1 else 0 for i, n in zip(w.unravel(linear, part.groups), part.groups, strict=True)
            )
            with w.loop("v", vec, unroll=int(vec * gathers <= MAX_GATHERS)) as lane:
                place = (*index[:-1], index[-1] * vec + lane) if part.shape else ()
                store_results(w, Points(w), place, part.results)


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
