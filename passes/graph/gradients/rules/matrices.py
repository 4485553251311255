"""Gradients of parts of matrices."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.trilu")
def trilu(b: Backward) -> Sequence[Tensor | None]:
    """The same triangle of g."""
    return [b.w.op("trilu", b.g, *b.x[1:], **b.op.attributes), *(None for _ in b.x[1:])]
