"""Updates of a copy at given indices: scatter_elements, scatter_nd, and sparse_to_dense.

Several updates of one element are applied in row-major order. Negative indices count from the end; what is
still out of bounds is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.division import undivided, where_untouched
from tilewright.ir.extents import attributes_stay, same_places
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.indexing import ramp
from tilewright.ir.graph_ops.operands import (
    axis_of,
    dtype_of,
    quotient,
    require,
    require_integer,
    tensors,
    wide,
)
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type

#: modes that overwrite, or combine by a scalar op; mean halves the sum of old and update each time
MODES = {"update": "", "add": "add", "mul": "mul", "min": "min", "max": "max"}
REDUCTIONS = {**MODES, "mean": "mean"}


def _scattered(
    types: Sequence[Type], mode: str, known: Sequence[str]
) -> tuple[TensorType, TensorType, TensorType]:
    """Data, indices and updates, where dtypes and the mode fit."""
    x, indices, updates = tensors(types)
    require_integer(indices)
    require(mode in known, f"expected one of {', '.join(known)}, got '{mode}'")
    require(x.dtype == updates.dtype, f"expected updates of dtype {x.dtype}, got {updates}")
    require(x.dtype != "bool" or mode == "update", f"expected numbers to {mode}, got {x}")
    return x, indices, updates


def _from_end(index: np.ndarray, extent: int) -> np.ndarray:
    i = index.astype(np.int64)
    return np.where(i < 0, i + extent, i)


def updated(x: np.ndarray, at: Sequence[np.ndarray], updates: np.ndarray, mode: str) -> np.ndarray:
    """A copy of x with `updates` at the coordinates `at`, both of which broadcast to one shape."""
    shape = np.broadcast_shapes(updates.shape, *(i.shape for i in at))
    flat, inside = np.zeros(shape, np.int64), np.ones(shape, np.bool_)
    for i, extent in zip(at, x.shape, strict=True):
        flat = flat * extent + i
        inside &= (i >= 0) & (i < extent)
    out = wide(x, dtype_of(x)).copy()
    target, place = out.reshape(-1), flat[inside]
    new = np.broadcast_to(wide(updates, dtype_of(x)), shape)[inside]
    with np.errstate(all="ignore"):
        if mode == "update":
            target[place] = new
        elif mode == "mean":
            _halve(target, place, new)
        else:
            ufunc = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}[mode]
            ufunc.at(target, place, new)
    return out.astype(x.dtype, copy=False)


def _halve(target: np.ndarray, place: np.ndarray, new: np.ndarray) -> None:
    """target[p] = (target[p] + new) / 2 one after another, in rounds in which no place occurs twice."""
    left = np.arange(place.size)
    while left.size:
        _, first = np.unique(place[left], return_index=True)
        now = left[first]
        target[place[now]] = quotient(target[place[now]] + new[now], np.asarray(2))
        left = np.delete(left, first)


def _infer_scatter_elements(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, indices, updates = _scattered(types, attrs["reduction"], tuple(REDUCTIONS))
    axis = axis_of(attrs["axis"], x.rank)
    fits = indices.rank == x.rank and all(d == axis or n <= x.shape[d] for d, n in enumerate(indices.shape))
    require(fits, f"expected indices no larger than {x} but along axis {axis}, got {indices}")
    same = indices.shape == updates.shape
    require(same, f"expected one update per index of {indices}, got {updates}")
    return [x]


def _evaluate_scatter_elements(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, indices, updates = inputs
    axis = attrs["axis"] % x.ndim
    at = [
        _from_end(indices, x.shape[axis]) if d == axis else ramp(n, d, x.ndim)
        for d, n in enumerate(indices.shape)
    ]
    return [updated(x, at, updates, attrs["reduction"])]


#: facts that ops below share; each replaces those that differ
_SCATTER = Facts(
    elements=Elements.SCATTERS,
    flops=flops_per_element,
    precision=Precision.FOLLOWS,
    exact=False,
    division=undivided,
    extents=attributes_stay,
    report=ReportClass.OF_KERNEL,
    gradient=Gradient.RULE,
)
define(
    "graph.scatter_elements",
    ("x", "indices", "updates"),
    "A copy of x where element [.., indices[.., i, ..], ..] along `axis` becomes, or is combined with, "
    "updates[.., i, ..].",
    attrs={
        "axis": AttrDef("int", 0),
        "reduction": AttrDef("str", "update", "update, add, mul, min, max, or mean: (old + update) / 2"),
    },
    infer=_infer_scatter_elements,
    evaluate=_evaluate_scatter_elements,
    facts=replace(_SCATTER, division=where_untouched, extents=same_places(3, axis=True)),
)


def _infer_scatter_nd(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, indices, updates = _scattered(types, attrs["mode"], tuple(MODES))
    fits = indices.rank > 0 and indices.shape[0] <= x.rank
    require(fits, f"expected at most {x.rank} coordinates in dimension 0 of the indices, got {indices}")
    shape = (*indices.shape[1:], *x.shape[indices.shape[0] :])
    require(updates.shape == shape, f"expected updates of shape {shape}, got {updates}")
    return [x]


def _evaluate_scatter_nd(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, indices, updates = inputs
    depth, points = indices.shape[0], indices.ndim - 1
    at = []
    for d, extent in enumerate(x.shape):
        if d < depth:
            i = _from_end(indices[d], extent)
            at.append(i.reshape((*i.shape, *[1] * (x.ndim - depth))))
        else:
            at.append(ramp(extent, points + d - depth, updates.ndim))
    return [updated(x, at, updates, attrs["mode"])]


define(
    "graph.scatter_nd",
    ("x", "indices", "updates"),
    "A copy of x where the slice x[indices[0, y], indices[1, y], ..] becomes, or is combined with, "
    "updates[y, ..]: dimension 0 of indices lists coordinates.",
    attrs={"mode": AttrDef("str", "update", "update, add, mul, min or max")},
    infer=_infer_scatter_nd,
    evaluate=_evaluate_scatter_nd,
    facts=_SCATTER,
)


def _infer_sparse_to_dense(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    indices, values, default = tensors(types)
    require_integer(indices)
    same = values.dtype == default.dtype
    require(same, f"expected a default of dtype {values.dtype}, got {default}")
    require(default.rank == 0, f"expected a scalar default, got {default}")
    rank = len(attrs["output_shape"])
    depth = indices.shape[1] if indices.rank == 2 else 1
    good = indices.rank <= 2 and depth == rank
    require(good, f"expected indices with {rank} coordinates each, got {indices}")
    each = values.shape in ((), indices.shape[:1])
    require(each, f"expected one value, or one per row of {indices}, got {values}")
    return [TensorType(values.dtype, attrs["output_shape"])]


def _evaluate_sparse_to_dense(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    indices, values, default = inputs
    shape = attrs["output_shape"]
    rows = indices.astype(np.int64).reshape(-1, len(shape))
    return [updated(np.full(shape, default), list(rows.T), values, "update")]


define(
    "graph.sparse_to_dense",
    ("indices", "values", "default"),
    "A tensor of shape `output_shape` filled with the scalar default, with values at the indices: "
    "scalars, or one row of coordinates each. Negative indices are out of bounds.",
    attrs={"output_shape": AttrDef("ints")},
    infer=_infer_sparse_to_dense,
    evaluate=_evaluate_sparse_to_dense,
    facts=replace(_SCATTER, exact=True),
)
