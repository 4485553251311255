"""Gradients of folds over dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


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
