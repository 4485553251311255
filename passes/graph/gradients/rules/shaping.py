"""Gradients of ops that keep all elements in their order: the same elements under the operand's shape."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.reshape", "graph.expand_dims", "graph.squeeze", "graph.batch_flatten")
def reshaped(b: Backward) -> Sequence[Tensor | None]:
    """dx = g under the shape of x."""
    return [b.g.reshape(*b.x[0].shape)]
