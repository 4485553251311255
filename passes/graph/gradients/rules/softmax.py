"""Gradients of softmax and log_softmax in their results; 16-bit floats are computed in float32."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, accumulated, gradient


@gradient("graph.softmax")
def softmax(b: Backward) -> Sequence[Tensor | None]:
    """dx = y (g - sum of g y along the axis)."""
    axis = b.op.integer("axis")
    g, y = accumulated(b.g), accumulated(b.y[0])
    return [(y * (g - (g * y).sum(axis, keepdims=True))).cast(b.x[0].dtype)]


@gradient("graph.log_softmax")
def log_softmax(b: Backward) -> Sequence[Tensor | None]:
    """dx = g - exp(y) times the sum of g along the axis."""
    axis = b.op.integer("axis")
    g, y = accumulated(b.g), accumulated(b.y[0])
    return [(g - y.exp() * g.sum(axis, keepdims=True)).cast(b.x[0].dtype)]
