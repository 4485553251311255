"""Prefetches of what a block will read of a constant operand, before anything waits for other kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.ir import Expr, Func, Sym
from tilewright.ir.hardware_facts import LINE_BYTES
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.writing.staging import Region
from tilewright.passes.kernels.writing.writer import Writer

#: attribute of a kernel: positions of the parameters it brings to the cache first
PREFETCHED = "prefetch"
#: blocks at most that share one prefetch: those that run at the same time
MOST_SHARERS = 16


def prefetched(kernel: Func) -> tuple[int, ...]:
    """Positions of the parameters to prefetch."""
    listed = kernel.get(PREFETCHED, ())
    return tuple(i for i in listed if type(i) is int) if isinstance(listed, tuple) else ()


def emit_prefetch(
    w: Writer, r: Region, origin: Mapping[str, Expr], sharers: Sequence[tuple[Expr, int]]
) -> None:
    """Prefetch the box of a kernel input, line by line of its rows, spread over the threads of a block.

    origin: the first index of every dimension. sharers: (index, count) of grid dimensions whose blocks read
    the same box; each of them takes a part of it.
    """
    parts, index = _share(sharers)
    per_line = max(1, LINE_BYTES // itemsize(r.value.tensor.dtype))
    box = (*r.extents[:-1], -(-(r.extents[-1] * r.gaps[-1]) // per_line))
    steps = -(-prod(box) // (w.threads * parts))
    base = r.base(origin)
    with w.loop("p", steps) as step:
        thread = (step * parts + index) * w.threads + Sym("tid")
        at = w.unravel(thread, box)
        whole = w.below(thread, prod(box))
        where = [b + i * g for b, i, g in zip(base, at, r.gaps, strict=True)]
        where[-1] = base[-1] + at[-1] * per_line
        place = tuple(w.simple(e) for e in where)
        mask = (*whole, *w.bounds(place, r.value.tensor.shape))
        w.b.do("thread.prefetch", w.inputs[r.value], at=place, mask=mask)


def _share(sharers: Sequence[tuple[Expr, int]]) -> tuple[int, Expr]:
    """Return how many blocks share the work, and which part is this block's."""
    flat: Expr = 0
    total = 1
    for e, count in sharers:
        flat += e * total
        total *= count
    index, parts = shared_lines(flat, total)
    return parts, index


def shared_lines(block: Expr, blocks: int) -> tuple[Expr, int]:
    """Which part of the lines that `blocks` blocks read a block prefetches, and of how many parts."""
    parts = min(blocks, MOST_SHARERS)
    return (block % parts if parts > 1 else 0), parts
