"""Gradients of lists of boxes."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.compact")
def compact(b: Backward) -> Sequence[Tensor | None]:
    """A kept row receives g of the place it moved to."""
    x, keep = b.x
    if not x.size:
        return [b.w.full(0, x.type), None]
    place = b.w.op("cumsum", keep.cast("i32"), axis=1) - 1
    rows = b.w.op("take", b.g, place, axis=1, batch_dims=1)
    return [keep.reshape(*keep.shape, *(1,) * (x.rank - 2)).where(rows, 0), None]
