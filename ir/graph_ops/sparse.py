"""Coordinates of sparse tensors: unravel_index, and sparse_reshape."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.division import undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.operands import alike, require, require_integer, require_rank
from tilewright.ir.opdef import Attrs, define
from tilewright.ir.types import TensorType, Type


def _infer_unravel_index(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    indices, shape = alike(types)
    require_integer(indices)
    require_rank(shape, 1)
    return [TensorType(indices.dtype, (*shape.shape, *indices.shape))]


def coordinates(place: np.ndarray, shape: Sequence[int]) -> list[np.ndarray]:
    """Coordinates of row-major places; the first one is all that is left, which may be out of bounds."""
    out: list[np.ndarray] = []
    with np.errstate(all="ignore"):
        for extent in reversed(shape[1:]):
            out.append(place % extent)
            place = place // extent
    return [*([place] if len(shape) else []), *out[::-1]]


def _evaluate_unravel_index(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    indices, shape = inputs
    rows = coordinates(indices, list(shape))
    if not rows:
        return [np.empty((0, *indices.shape), indices.dtype)]
    with np.errstate(all="ignore"):
        return [np.stack([rows[0] % shape[0], *rows[1:]])]


#: facts that ops below share; each replaces those that differ
_COMPUTATION = Facts(
    elements=Elements.COMPUTES,
    flops=flops_per_element,
    precision=Precision.FOLLOWS,
    exact=False,
    division=undivided,
    extents=attributes_stay,
    report=ReportClass.OF_KERNEL,
    gradient=Gradient.NONE,
)
define(
    "graph.unravel_index",
    ("indices", "shape"),
    "Coordinates, along a new dimension 0, of row-major places in a tensor of the given shape (an "
    "operand); remainders where out of bounds.",
    infer=_infer_unravel_index,
    evaluate=_evaluate_unravel_index,
    facts=_COMPUTATION,
)


def _infer_sparse_reshape(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    indices, before, after = alike(types)
    require_integer(indices)
    require_rank(indices, 2)
    require_rank(before, 1)
    require_rank(after, 1)
    fits = before.shape == indices.shape[1:]
    require(fits, f"expected {before} to list one extent per column of {indices}")
    return [TensorType(indices.dtype, (indices.shape[0], *after.shape)), after]


def _evaluate_sparse_reshape(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    indices, before, after = inputs
    known = np.prod(np.where(after == -1, 1, after), dtype=after.dtype)
    with np.errstate(all="ignore"):
        rest = np.prod(before, dtype=before.dtype) // known
    shape = np.where(after == -1, rest, after).astype(after.dtype)
    if np.array_equal(shape, before):
        return [indices, shape]
    place = np.zeros(indices.shape[:1], indices.dtype)
    for column, extent in zip(indices.T, before, strict=True):
        place = place * extent + column
    rows = coordinates(place, list(shape))
    return [np.stack(rows, axis=1) if rows else np.empty((len(place), 0), indices.dtype), shape]


define(
    "graph.sparse_reshape",
    ("indices", "prev_shape", "new_shape"),
    "The rows of coordinates under another shape, and that shape with -1 replaced by what is left; "
    "shapes are operands. Coordinates out of bounds stay as they are where the shape does.",
    results=2,
    infer=_infer_sparse_reshape,
    evaluate=_evaluate_sparse_reshape,
    facts=_COMPUTATION,
)
