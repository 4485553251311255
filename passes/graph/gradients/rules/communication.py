"""Gradients through communication, of the sum of what all ranks differentiate.

Every rank differentiates its own module; what comes back meets in the same order on all of them. Where each
rank computes the same loss, it must be divided by their number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.ir.graph_ops.communication import Interval, halo_pieces
from tilewright.ir.types import TensorType
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.all_gather")
def all_gather(b: Backward) -> Sequence[Tensor | None]:
    """Every member's piece receives the sum of what came back to it on all ranks."""
    return [b.w.op("reduce_scatter", b.g, **b.op.attributes)]


@gradient("graph.reduce_scatter")
def reduce_scatter(b: Backward) -> Sequence[Tensor | None]:
    """Every rank contributed to all pieces."""
    return [b.w.op("all_gather", b.g, **b.op.attributes)]


@gradient("graph.all_reduce")
def all_reduce(b: Backward) -> Sequence[Tensor | None]:
    """Of a sum: what came back on all ranks; of a maximum: an even split among ranks that have it."""
    attrs = {**b.op.attributes, "reduction": "sum"}
    total = b.w.op("all_reduce", b.g, **attrs)
    if b.attr("reduction") == "sum":
        return [total]
    largest = b.x[0].equal(b.y[0])
    count = b.w.op("all_reduce", largest.cast(b.g.dtype), **attrs)
    return [largest.where(total / count, 0)]


@gradient("graph.halo_exchange")
def halo_exchange(b: Backward) -> Sequence[Tensor | None]:
    """A row receives what came back to it on its own rank and, at its first owner, what others took of it."""
    rank, ranks = b.op.integer("rank"), b.op.integers("ranks")
    owned, needed = (_intervals(b, key) for key in ("owned", "needed"))
    axis, (low, high) = b.op.integer("axis") % b.g.rank, owned[rank]
    pieces = [halo_pieces(owned, needed, m) for m in range(len(ranks))]
    mine = [(p.start, p.end) for p in pieces[rank] if p.member == rank]
    local = _moved(_only(b.g, axis, needed[rank], mine), axis, needed[rank], (low, high))
    if all(p.member == m for m in range(len(ranks)) for p in pieces[m]):
        return [local]
    whole = (0, max(end for _, end in owned))
    others = [(p.start, p.end) for p in pieces[rank] if p.member != rank]
    taken = _moved(_only(b.g, axis, needed[rank], others), axis, needed[rank], whole)
    summed = b.w.op("all_reduce", taken, rank=rank, ranks=ranks, reduction="sum")
    total = _moved(summed, axis, whole, (low, high))
    first = [(i, i + 1) for i in range(low, high) if not any(s <= i < e for s, e in owned[:rank])]
    return [local + _only(total, axis, (low, high), first)]


def _intervals(b: Backward, key: str) -> list[Interval]:
    return list(b.op.attributes[key])


def _only(x: Tensor, axis: int, rows: Interval, kept: Iterable[Interval]) -> Tensor:
    """`x`, which holds these rows along `axis`, with zeros in all rows that are not kept."""
    at = rows[0]
    for start, end in [*sorted(kept), (rows[1], rows[1])]:
        if start > at:
            x = _zeroed(x, axis, at - rows[0], start - at)
        at = max(at, end)
    return x


def _zeroed(x: Tensor, axis: int, first: int, count: int) -> Tensor:
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    begin = tuple(first if d == axis else 0 for d in range(x.rank))
    zeros = x.writer.full(0, TensorType(x.dtype, shape))
    return x.writer.op("strided_set", x, zeros, begin=begin, strides=(1,) * x.rank)


def _moved(x: Tensor, axis: int, rows: Interval, onto: Interval) -> Tensor:
    """`x`, which holds `rows` along `axis`, as rows `onto`: cut, or with zeros around it."""
    low, high = max(rows[0], onto[0]), max(rows[0], onto[0], min(rows[1], onto[1]))
    begin, size = low - rows[0], high - low
    if not size:
        return x.writer.full(
            0, TensorType(x.dtype, (*x.shape[:axis], onto[1] - onto[0], *x.shape[axis + 1 :]))
        )
    cut = x.writer.op(
        "strided_slice", x,
        begin=tuple(begin if d == axis else 0 for d in range(x.rank)),
        size=tuple(size if d == axis else n for d, n in enumerate(x.shape)),
        strides=(1,) * x.rank,
    )  # fmt: skip
    before, after = low - onto[0], onto[1] - high
    return x.writer.op(
        "pad", cut,
        pad_before=tuple(before if d == axis else 0 for d in range(x.rank)),
        pad_after=tuple(after if d == axis else 0 for d in range(x.rank)),
    )  # fmt: skip
