"""The gradient of the spatial shift."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.places import signed
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.shift")
def shift(b: Backward) -> Sequence[Tensor | None]:
    """Every channel moves back."""
    return [b.w.op("shift", b.g, -signed(b.x[1]), **b.op.attributes), None]
