"""Gradients of discrete Fourier transforms."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.dft")
def dft(b: Backward) -> Sequence[Tensor | None]:
    """The transform with the opposite sign of the angle, scaled as the forward one is."""
    inverse, extent = bool(b.attr("inverse")), b.x[0].shape[-1]
    parts = b.w.ops_of("dft", (b.cotangent(0), b.cotangent(1)), inverse=not inverse)
    return [part / extent if inverse else part * extent for part in parts]
