"""Gradients of running sums."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


def _reversed(b: Backward, x: Tensor) -> Tensor:
    return b.w.op("reverse", x, axis=b.op.integer("axis") % x.rank)


@gradient("graph.cumsum")
def cumsum(b: Backward) -> Sequence[Tensor | None]:
    """An element receives the sum of g from its own result on, or behind it where results are exclusive."""
    axis, exclusive = b.op.integer("axis") % b.g.rank, b.attr("exclusive")
    sums = b.w.op("cumsum", _reversed(b, b.g), axis=axis, exclusive=exclusive)
    return [_reversed(b, sums).cast(b.x[0].dtype)]
