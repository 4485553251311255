"""Gradients of normalisations in closed form; 16-bit floats are computed in float32.

Standardised elements are computed again from the operands: n = (x - mean) * rstd.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.ir.graph_ops.normalisation import channel_groups
from tilewright.passes.graph.gradients.registry import Backward, accumulated, gradient, standardised


def _others(rank: int, axis: int) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d != axis)


def _scaled(b: Backward, g: Tensor, gamma: Tensor, axis: int) -> Tensor:
    """What comes back to the standardised elements."""
    return g * accumulated(gamma).along(axis, g.rank) if b.attr("scale") else g


def _affine(b: Backward, g: Tensor, normal: Tensor, axis: int) -> list[Tensor | None]:
    """The gradients by gamma and beta: sums over all dimensions but the channels."""
    others = _others(g.rank, axis)
    dtype = b.x[0].dtype
    return [
        (g * normal).sum(others).cast(dtype) if b.needed[1] and b.attr("scale") else None,
        g.sum(others).cast(dtype) if b.needed[2] and b.attr("center") else None,
    ]


@gradient("graph.batch_norm")
def batch_norm(b: Backward) -> Sequence[Tensor | None]:
    """dx = g gamma rstd; mean and variance receive sums of g and of g n per channel.

    d n / d mean = -rstd and d n / d var = -n rstd^2 / 2.
    """
    rank, dtype = b.x[0].rank, b.x[0].dtype
    axis = b.op.integer("axis") % rank
    x, gamma, _, mean, var = map(accumulated, b.x)
    g = accumulated(b.g)
    rstd = (var + b.op.number("epsilon")).rsqrt()
    factor = gamma * rstd if b.attr("scale") else rstd
    normal = (x - mean.along(axis, rank)) * rstd.along(axis, rank)
    others = _others(rank, axis)
    total, weighted = g.sum(others), (g * normal).sum(others)
    results = (
        g * factor.along(axis, rank),
        weighted if b.attr("scale") else None,
        total if b.attr("center") else None,
        -(factor * total),
        factor * rstd * weighted * -0.5,
    )
    return [
        None if result is None or not needed else result.cast(dtype)
        for result, needed in zip(results, b.needed, strict=True)
    ]


def _through(h: Tensor, normal: Tensor, rstd: Tensor, axes: Sequence[int]) -> Tensor:
    """What comes back to x where `h` comes back to its standardised elements."""
    mean, slope = h.mean(axes, keepdims=True), (h * normal).mean(axes, keepdims=True)
    return (h - mean - normal * slope) * rstd


@gradient("graph.layer_norm", "graph.instance_norm")
def layer_norm(b: Backward) -> Sequence[Tensor | None]:
    """dx = rstd (h - mean(h) - n mean(h n)) with h = g gamma, over the axis or over each image."""
    x, gamma, _ = b.x
    axis = b.op.integer("axis") % x.rank
    layer = b.op.name == "graph.layer_norm"
    axes = (axis,) if layer else tuple(d for d in range(1, x.rank) if d != axis)
    g = accumulated(b.g)
    normal, rstd = standardised(accumulated(x), axes, b.op.number("epsilon"))
    affine = _affine(b, g, normal, axis)
    dx = _through(_scaled(b, g, gamma, axis), normal, rstd, axes) if b.needed[0] else None
    return [None if dx is None else dx.cast(x.dtype), *affine]


@gradient("graph.group_norm")
def group_norm(b: Backward) -> Sequence[Tensor | None]:
    """As layer_norm, over all elements of a group of channels of one sample."""
    x, gamma, _ = b.x
    axis = b.op.integer("axis") % x.rank
    split = channel_groups(x.type, axis, b.op.integer("num_groups"))
    axes = tuple(d for d in range(1, x.rank + 1) if d != axis)
    g = accumulated(b.g)
    normal, rstd = standardised(accumulated(x).reshape(*split), axes, b.op.number("epsilon"))
    dx = None
    if b.needed[0]:
        h = _scaled(b, g, gamma, axis).reshape(*split)
        dx = _through(h, normal, rstd, axes).reshape(*x.shape).cast(x.dtype)
    return [dx, *_affine(b, g, normal.reshape(*x.shape), axis)]


@gradient("graph.l2_normalize")
def l2_normalize(b: Backward) -> Sequence[Tensor | None]:
    """dx = (g - y sum(g y)) / length; g / length where eps took the place of a smaller sum of squares."""
    axes = b.op.integers("axis") or tuple(range(b.x[0].rank))
    x, g, eps = accumulated(b.x[0]), accumulated(b.g), b.op.number("eps")
    squares = (x * x).sum(axes, keepdims=True)
    inverse = squares.maximum(eps).rsqrt()
    y = x * inverse
    along = (squares > eps).where((g * y).sum(axes, keepdims=True), 0)
    return [((g - y * along) * inverse).cast(b.x[0].dtype)]
