"""Gradients of pooled regions: by the data they are derived; a region has none here."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, derived, gradient


@gradient("graph.roi_align", "graph.roi_pool")
def of_data(b: Backward) -> Sequence[Tensor | None]:
    """By the data alone: the bounds of bins and the number of samples jump with a region."""
    if b.needed[1]:
        raise b.refused("it has a gradient by its data, none by its regions")
    return derived(b)
