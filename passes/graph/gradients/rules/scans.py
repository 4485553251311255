"""Gradients of running sums and products."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


def _reversed(b: Backward, x: Tensor) -> Tensor:
    return b.w.op("reverse", x, axis=b.op.integer("axis") % x.rank)


def _sums_from(b: Backward, x: Tensor, *, exclusive: bool = False) -> Tensor:
    """Sums of the elements from each one on; with `exclusive`, behind each one."""
    axis = b.op.integer("axis") % x.rank
    return _reversed(b, b.w.op("cumsum", _reversed(b, x), axis=axis, exclusive=exclusive))


@gradient("graph.cumsum")
def cumsum(b: Backward) -> Sequence[Tensor | None]:
    """An element receives the sum of g from its own result on, or behind it where results are exclusive."""
    return [_sums_from(b, b.g, exclusive=bool(b.attr("exclusive"))).cast(b.x[0].dtype)]


@gradient("graph.cumprod")
def cumprod(b: Backward) -> Sequence[Tensor | None]:
    """An element receives the sum over later results of g times the product of the other elements.

    Without zeros the product of the others is y / x. Of the zeros of a line only the first one receives
    something: from results before the second, with the product of all elements but the zero.
    """
    axis = b.op.integer("axis") % b.g.rank
    x, g = b.x[0].cast(b.g.dtype), b.g
    if b.attr("exclusive"):
        # Result i + 1 is the inclusive product of element i; that of the last one is not returned.
        n, at = g.shape[axis], g.rank
        begin, end = ([int(d == axis) * k for d in range(at)] for k in (min(1, n), min(1, n)))
        size = [m - min(1, n) if d == axis else m for d, m in enumerate(g.shape)]
        later = b.w.op("strided_slice", g, begin=tuple(begin), size=tuple(size), strides=(1,) * at)
        g = b.w.op("pad", later, pad_before=(0,) * at, pad_after=tuple(end))
    zero = x.equal(0)
    factors = zero.where(1, x)
    zeros = b.w.op("cumsum", zero.cast("i32"), axis=axis)
    weighted = g * b.w.op("cumprod", factors, axis=axis)
    without = _sums_from(b, zeros.equal(0).where(weighted, 0)) / factors
    only = _sums_from(b, zeros.equal(1).where(weighted, 0))
    # The only sum counts for the first zero alone: behind it the sum starts within the same results.
    first = zero & zeros.equal(1)
    return [first.where(only, zero.where(0, without)).cast(b.x[0].dtype)]
