"""Gradients of matrix products and of biases; transposes are flags, nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.dense")
def dense(b: Backward) -> Sequence[Tensor | None]:
    """y = x w^T: dx = g w, dw = g^T x over all rows."""
    x, w = b.x
    g = b.g.cast(x.dtype)
    rows = prod(x.shape[:-1])
    flat_g, flat_x = g.reshape(rows, w.shape[0]), x.reshape(rows, x.shape[-1])
    return [
        flat_g.matmul(w).reshape(*x.shape) if b.needed[0] else None,
        flat_g.matmul(flat_x, transpose_a=True) if b.needed[1] else None,
    ]


@gradient("graph.bias_add")
def bias_add(b: Backward) -> Sequence[Tensor | None]:
    """dx = g, and the bias gathers the sums of g over every other dimension."""
    axis = b.op.integer("axis") % b.x[0].rank
    others = tuple(d for d in range(b.x[0].rank) if d != axis)
    return [b.g, b.g.sum(others) if b.needed[1] else None]
