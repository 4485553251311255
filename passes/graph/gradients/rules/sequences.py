"""Gradients of ops on sequences of different lengths."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.reverse_sequence")
def reverse_sequence(b: Backward) -> Sequence[Tensor | None]:
    """The op is its own inverse."""
    return [b.w.op("reverse_sequence", b.g, b.x[1], **b.op.attributes), None]


@gradient("graph.sequence_mask")
def sequence_mask(b: Backward) -> Sequence[Tensor | None]:
    """g within the sequences, zeros behind them."""
    masked = b.w.op("sequence_mask", b.g, b.x[1], axis=b.op.integer("axis"), mask_value=0.0)
    return [masked, None]
