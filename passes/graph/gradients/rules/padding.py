"""Gradients of padding."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, derived, gradient


@gradient("graph.pad")
def pad(b: Backward) -> Sequence[Tensor | None]:
    """In mode constant: dx = the part of g that x fills; the value gathers the sum of the rest."""
    if b.attr("pad_mode") != "constant":
        return derived(b)
    x = b.x[0]
    before, ones = b.op.integers("pad_before"), (1,) * x.rank
    out = [
        b.w.op("strided_slice", b.g, begin=before, size=x.shape, strides=ones) if b.needed[0] else None,
    ]
    if len(b.x) > 1:
        # A difference of two sums would cancel.
        rest = b.w.op("strided_set", b.g, b.w.full(0, x.type), begin=before, strides=ones)
        out.append(rest.sum().reshape(*b.x[1].shape) if b.needed[1] else None)
    return out
