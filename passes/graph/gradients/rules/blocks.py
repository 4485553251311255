"""Gradients of moving blocks of pixels into channels and back, which are each other's."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.depth_to_space")
def depth_to_space(b: Backward) -> Sequence[Tensor | None]:
    """The pixels of each block become channels again."""
    return [b.w.op("space_to_depth", b.g, **b.op.attributes)]


@gradient("graph.space_to_depth")
def space_to_depth(b: Backward) -> Sequence[Tensor | None]:
    """The channels become the pixels of blocks again."""
    return [b.w.op("depth_to_space", b.g, **b.op.attributes)]
