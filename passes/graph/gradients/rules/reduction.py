"""Gradients of folds over dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Value
from tilewright.passes.graph.gradients.registry import Backward, accumulated, gradient, summed_to


def spread(b: Backward, g: Tensor) -> Tensor:
    """`g`, of a fold's result, repeated along the dimensions that the fold of `b` reduced."""
    x = b.x[0]
    axes = {a % x.rank for a in b.op.integers("axis")}
    return g.reshape(*(1 if d in axes else n for d, n in enumerate(x.shape))).broadcast_to(*x.shape)


@gradient("graph.sum")
def total(b: Backward) -> Sequence[Tensor | None]:
    """Every summand receives g."""
    return [spread(b, b.g)]


@gradient("graph.mean")
def mean(b: Backward) -> Sequence[Tensor | None]:
    """Every element receives g divided by their number."""
    return [spread(b, b.g / (b.x[0].size // max(1, b.g.size)))]


@gradient("graph.max", "graph.min")
def extreme(b: Backward) -> Sequence[Tensor | None]:
    """g is split evenly over all elements that equal the extreme; nan where the extreme is none of them."""
    x = b.x[0]
    g = accumulated(b.g)
    hits = x.equal(spread(b, b.y[0]))
    count = hits.cast(g.dtype).sum([a % x.rank for a in b.op.integers("axis")], keepdims=True)
    return [(hits.where(spread(b, g), 0) / count).cast(x.dtype)]


@gradient("graph.variance")
def variance(b: Backward) -> Sequence[Tensor | None]:
    """dx = 2 g (x - mean) / divisor; the mean receives minus the sums of that where it was broadcast.

    These sums are 0 where the mean is that of x over the same dimensions; then none is returned.
    """
    x, mean = b.x
    divisor = x.size // max(1, b.y[0].size) - bool(b.op["unbiased"])
    centred = accumulated(x) - accumulated(mean)
    dx = centred * spread(b, accumulated(b.g) * 2 / divisor)
    own = _is_mean_of(b, mean.value, x.value)
    return [
        dx.cast(x.dtype) if b.needed[0] else None,
        -summed_to(dx, mean.shape).cast(x.dtype) if b.needed[1] and not own else None,
    ]


def _is_mean_of(b: Backward, mean: Value, x: Value) -> bool:
    """Whether a value is, but for its shape, the mean of `x` over the axes that the op of `b` reduces."""
    rank = b.x[0].rank
    axes = {a % rank for a in b.op.integers("axis")}
    makers = {r: op for op in b.w.ops for r in op.results}
    op = makers.get(mean)
    while op is not None and op.name in ("graph.reshape", "graph.expand_dims", "graph.squeeze"):
        op = makers.get(op.operands[0])
    return (
        op is not None
        and op.name == "graph.mean"
        and op.operands[0] is x
        and {a % rank for a in op.integers("axis")} == axes
        and mean.tensor.shape == tuple(1 if d in axes else n for d, n in enumerate(x.tensor.shape))
    )
