"""Gradients of sorted elements: each goes back to its place; of equal ones the first in order receives."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.sort")
def sort(b: Backward) -> Sequence[Tensor | None]:
    """g at the places that the sorted elements came from."""
    order = b.w.op("argsort", b.x[0], axis=b.op.integer("axis"), is_ascend=b.attr("is_ascend"))
    return [_put_back(b, order)]


@gradient("graph.topk")
def topk(b: Backward) -> Sequence[Tensor | None]:
    """g of the values at their indices, zeros elsewhere."""
    return [_put_back(b, b.y[1])]


def _put_back(b: Backward, places: Tensor) -> Tensor:
    (x,) = b.x
    zeros = b.w.full(0, x.type)
    return b.w.op("scatter_elements", zeros, places, b.g, axis=b.op.integer("axis"), reduction="add")
