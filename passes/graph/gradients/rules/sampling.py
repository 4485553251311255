"""Gradients of sampling: by the data they are derived; a box has none here."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.ir.graph_ops.sampling import GRID_EPSILON
from tilewright.passes.graph.gradients.registry import Backward, derived, gradient


@gradient("graph.affine_grid")
def affine_grid(b: Backward) -> Sequence[Tensor | None]:
    """A matrix receives the sums of g times the points (x, y, 1) of the grid."""
    g, (height, width) = b.g, b.op.integers("target_shape")
    x, y = _points(b, width, g.dtype), _points(b, height, g.dtype)
    rows, columns = g.sum(3), g.sum(2)
    parts = [(columns * x).sum(2), (rows * y).sum(2), rows.sum(2)]
    return [b.w.op("stack", *parts, axis=2)]


def _points(b: Backward, count: int, dtype: str) -> Tensor:
    step = (2 - GRID_EPSILON) / (count - 1)
    return b.w.op("arange", start=-1.0, stop=-1 + step * (count - 0.5), step=step, dtype=dtype)


@gradient("graph.crop_and_resize")
def crop_and_resize(b: Backward) -> Sequence[Tensor | None]:
    """By the data alone."""
    if b.needed[1]:
        raise b.refused("it has a gradient by its data, none by its boxes")
    return derived(b)
