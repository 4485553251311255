"""Elementwise kernels: each thread computes a few neighbouring points of the common domain."""

from __future__ import annotations

from math import prod

from tilewright.ir import Func, InputError, Pairs, Sym
from tilewright.ir.expr import binary
from tilewright.ir.tensor_ops import dims, fills
from tilewright.passes.lower.skeletons.contract import store_results
from tilewright.passes.lower.skeletons.contract_plan import whole
from tilewright.passes.lower.skeletons.writer import Points, Writer
from tilewright.passes.tensor.index_sets import POINTWISE, recompute_cost

#: most work, in additions, of the items of one thread that stand in its code one after the other
MAX_UNROLLED = 1024
#: additions that finding the place of one item counts for
ADDRESS_COST = 8
#: additions that one guarded read counts for: it is not part of a vector read
GUARDED_COST = 2


def integer_params(kernel: Func, *names: str) -> tuple[int, ...]:
    """Named integers of the kernel's `params`; raises InputError naming what is missing."""
    p = kernel.get("params")
    if not isinstance(p, Pairs) or any(n not in p for n in names):
        raise InputError(f"expected params with {', '.join(names)}, got {p!r}", where=f"@{kernel.name}")
    try:
        return tuple(whole(p[n], n, 1) for n in names)
    except InputError as e:
        raise InputError(str(e), where=f"@{kernel.name}") from e


def lower_map(kernel: Func) -> Func:
    """The thread-level function of a kernel of maps over one domain.

    params: threads per block, vec consecutive points along the last dimension, items such vectors per thread.
    """
    threads, vec, items = integer_params(kernel, "threads", "vec", "items")
    ops = [op for op in kernel.body.ops if op.name in POINTWISE]
    shape = tuple(dims(ops[-1], "par").values())
    last = shape[-1] if shape else 1
    if last % vec:
        vec = 1
    groups = (*shape[:-1], last // vec)
    total = prod(groups)
    blocks = max(1, -(-total // (threads * items)))
    w = Writer(kernel, threads, (blocks, 1, 1))
    guarded = sum(fill is not None for op in ops for fill in fills(op))
    work = ADDRESS_COST + sum(map(recompute_cost, ops)) + GUARDED_COST * vec * guarded
    unroll = int(items * work <= MAX_UNROLLED)
    with w.b.at(ops[-1].loc), w.loop("t", items, unroll=unroll) as item:
        first = binary("*", Sym("bid.x"), threads * items)
        linear = w.simple(binary("+", binary("+", first, binary("*", item, threads)), Sym("tid")))
        with w.when(w.below(linear, total)):
            index = w.unravel(linear, groups)
            with w.loop("v", vec, unroll=1) as lane:
                place = (*index[:-1], binary("+", binary("*", index[-1], vec), lane)) if shape else ()
                store_results(w, Points(w), place)
    return w.finish()
