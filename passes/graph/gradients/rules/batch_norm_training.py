"""Gradient of batch normalisation by the statistics of the batch itself."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.ir.graph_ops.operands import accumulator_dtype
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.batch_norm_training")
def batch_norm_training(b: Backward) -> Sequence[Tensor | None]:
    """The gradients from two sums per channel: of g (that of beta), and of g times normal x (that of gamma).

    dx = gamma / deviation * (g - sum(g) / n - normal * sum(g normal) / n), and what comes back through mean
    and variance: (d mean + 2 (x - mean) d variance) / n. As in S. Ioffe, C. Szegedy, "Batch Normalization",
    2015, with the terms of the two moments gathered.
    """
    x, gamma, beta = b.x
    _, mean, variance = b.y
    axis = b.op.integer("axis") % x.rank
    others = tuple(d for d in range(x.rank) if d != axis)
    count = x.size // max(1, x.shape[axis])
    acc = accumulator_dtype(x.dtype)

    def spread(v: Tensor) -> Tensor:
        return v.along(axis, x.rank)

    centred = x.cast(acc) - spread(mean)
    deviation = (variance + b.op.number("epsilon")).rsqrt()
    normal = centred * spread(deviation)
    g = b.g.cast(acc)
    total, projected = g.sum(others), (g * normal).sum(others)
    dx = None
    if b.needed[0]:
        dx = g - spread(total / count) - normal * spread(projected / count)
        dx = dx * spread(gamma.cast(acc) * deviation if b.op["scale"] else deviation)
        dmean, dvariance = b.cotangents[1:]
        if dmean is not None:
            dx = dx + spread(dmean / count)
        if dvariance is not None:
            dx = dx + centred * spread(dvariance * 2 / count)
        dx = dx.cast(x.dtype)
    return [
        dx,
        projected.cast(gamma.dtype) if b.needed[1] and b.op["scale"] else None,
        total.cast(beta.dtype) if b.needed[2] and b.op["center"] else None,
    ]
