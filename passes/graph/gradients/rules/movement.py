"""Gradients of ops that rearrange, repeat or select elements by position."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient, summed_to


@gradient("graph.transpose")
def transpose(b: Backward) -> Sequence[Tensor | None]:
    """g with its dimensions back in the order of x."""
    rank = b.g.rank
    axes = [a % rank for a in b.op.integers("axes")]
    return [b.g.transpose(*(axes.index(d) for d in range(rank)))]


@gradient("graph.broadcast_to")
def broadcast_to(b: Backward) -> Sequence[Tensor | None]:
    """g summed over the dimensions along which x was repeated."""
    return [summed_to(b.g, b.x[0].shape)]


@gradient("graph.tile")
def tile(b: Backward) -> Sequence[Tensor | None]:
    """The sum of all copies."""
    (x,) = b.x
    reps = b.op.integers("reps")
    shape = (*(1,) * (len(reps) - x.rank), *x.shape)
    copies = b.g.reshape(*(n for pair in zip(reps, shape, strict=True) for n in pair))
    repeated = tuple(2 * d for d, r in enumerate(reps) if r != 1)
    return [(copies.sum(repeated) if repeated else copies).reshape(*x.shape)]


@gradient("graph.repeat")
def repeat(b: Backward) -> Sequence[Tensor | None]:
    """The sum of each element's repetitions."""
    (x,) = b.x
    axis, repeats = b.op.integer("axis") % x.rank, b.op.integer("repeats")
    return [b.g.reshape(*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :]).sum(axis + 1)]


@gradient("graph.reverse")
def reverse(b: Backward) -> Sequence[Tensor | None]:
    """g in the order of x again."""
    return [b.w.op("reverse", b.g, axis=b.op.integer("axis"))]


@gradient("graph.strided_slice")
def strided_slice(b: Backward) -> Sequence[Tensor | None]:
    """g where its elements came from, zeros elsewhere."""
    (x,) = b.x
    begin, strides = b.op.integers("begin"), b.op.integers("strides")
    if all(step == 1 or n == 1 for step, n in zip(strides, b.g.shape, strict=True)):
        after = tuple(n - m - at for n, m, at in zip(x.shape, b.g.shape, begin, strict=True))
        return [b.w.op("pad", b.g, pad_before=begin, pad_after=after)]
    return [b.w.op("strided_set", b.w.full(0, x.type), b.g, begin=begin, strides=strides)]


@gradient("graph.strided_set")
def strided_set(b: Backward) -> Sequence[Tensor | None]:
    """dx = g with zeros where v was put, dv = g from there."""
    _, v = b.x
    begin, strides = b.op.integers("begin"), b.op.integers("strides")
    return [
        b.w.op("strided_set", b.g, b.w.full(0, v.type), begin=begin, strides=strides)
        if b.needed[0]
        else None,
        b.w.op("strided_slice", b.g, begin=begin, size=v.shape, strides=strides) if b.needed[1] else None,
    ]
