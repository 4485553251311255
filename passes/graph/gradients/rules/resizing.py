"""Gradients of resizing: products with the transposed interpolation matrix of each dimension."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters

import numpy as np

from tilewright.ir.graph_code import Tensor
from tilewright.ir.graph_ops.interpolation import spatial
from tilewright.ir.graph_ops.resizing import axis_taps
from tilewright.passes.graph.gradients.registry import Backward, accumulated, gradient


@gradient("graph.resize1d", "graph.resize2d", "graph.resize3d")
def resize(b: Backward) -> Sequence[Tensor | None]:
    """dx = R^T g along each dimension; sums where R repeats every element the same number of times."""
    x, attrs = b.x[0], b.op.attributes
    matrices = {
        d: _matrix(attrs, axis, x.shape[d], b.y[0].shape[d])
        for axis, d in enumerate(spatial(str(attrs["layout"])))
    }
    return [interpolated_back(accumulated(b.g), matrices).cast(x.dtype)]


def _matrix(attrs: Mapping[str, object], axis: int, size: int, target: int) -> np.ndarray:
    """[target, size]: what each element of a dimension weighs in each of the resized one."""
    taps, weights, outside = axis_taps(attrs, axis, size, target)
    out = np.zeros((target, size))
    for places, share in zip(taps, weights, strict=True):
        np.add.at(out, (np.arange(target), places), share)
    out[outside] = 0
    return out


def interpolated_back(g: Tensor, matrices: Mapping[int, np.ndarray]) -> Tensor:
    """`g` multiplied along each dimension by the transpose of its matrix [extent of g, new extent].

    Dimensions that shrink most come first. A matrix that repeats elements is a sum of neighbours.
    """
    for d, matrix in sorted(matrices.items(), key=lambda item: item[1].shape[1] / item[1].shape[0]):
        target, size = matrix.shape
        if target % size == 0 and np.array_equal(matrix, np.eye(size).repeat(target // size, axis=0)):
            factor = target // size
            split = g.reshape(*g.shape[:d], size, factor, *g.shape[d + 1 :])
            g = split.sum(d + 1) if factor > 1 else g
            continue
        names = ascii_letters[: g.rank]
        new = ascii_letters[g.rank]
        constant = g.writer.constant(matrix, f"interpolation.{target}.{size}").cast(g.dtype)
        result = names.replace(names[d], new)
        g = g.writer.op("einsum", g, constant, equation=f"{names},{names[d]}{new}->{result}")
    return g
