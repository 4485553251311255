"""Sorting along an axis, the largest or smallest k, places in sorted sequences, and distinct elements.

Orders are stable, the descending one as well; a nan counts as larger than everything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from tilewright.ir.division import along_other_axes, undivided
from tilewright.ir.extents import Dims, attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.operands import alike, axis_of, dtype_of, require, require_rank, tensors, wide
from tilewright.ir.nodes import Attr
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

_ORDER: Mapping[str, AttrDef] = {
    "axis": AttrDef("int", -1),
    "is_ascend": AttrDef("bool", True, "smallest first, else largest first"),
}
_INDEX = AttrDef("dtype", "i32", "of the indices")
#: indices are computed as int32
MAX_EXTENT = 1 << 30


def _along(types: Sequence[Type], attrs: Attrs) -> tuple[TensorType, int]:
    """The operand and its axis, known to fit."""
    (x,) = tensors(types)
    axis = axis_of(attrs["axis"], x.rank)
    require(x.shape[axis] <= MAX_EXTENT, f"expected at most {MAX_EXTENT} elements to sort, got {x}")
    return x, axis


def order_of(x: np.ndarray, axis: int, ascending: bool) -> np.ndarray:
    """Indices (int64) that sort `x` along `axis`; equal elements keep their order."""
    keys = wide(x, dtype_of(x))
    if ascending:
        return np.argsort(keys, axis=axis, kind="stable")
    backwards = np.argsort(np.flip(keys, axis), axis=axis, kind="stable")
    return np.asarray(x.shape[axis] - 1 - np.flip(backwards, axis))


def _evaluate_sort(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    order = order_of(x, attrs["axis"], attrs["is_ascend"])
    return [np.take_along_axis(x, order, attrs["axis"])]


#: facts that ops below share; each replaces those that differ
_SORT = Facts(
    elements=Elements.SORTS,
    flops=flops_per_element,
    precision=Precision.WIDE,
    exact=True,
    division=along_other_axes,
    extents=attributes_stay,
    report=ReportClass.SORT,
    gradient=Gradient.RULE,
)
define(
    "graph.sort",
    ("x",),
    "The elements of x in order along `axis`.",
    attrs=_ORDER,
    infer=lambda t, a: [_along(t, a)[0]],
    evaluate=_evaluate_sort,
    facts=_SORT,
)
define(
    "graph.argsort",
    ("x",),
    "The indices that put x in order along `axis`.",
    attrs={**_ORDER, "dtype": _INDEX},
    infer=lambda t, a: [TensorType(a["dtype"], _along(t, a)[0].shape)],
    evaluate=lambda x, a: [order_of(x[0], a["axis"], a["is_ascend"]).astype(numpy_dtype(a["dtype"]))],
    facts=replace(_SORT, exact=False, gradient=Gradient.NONE),
)


def _infer_topk(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, axis = _along(types, attrs)
    k, n = attrs["k"], x.shape[axis]
    require(0 <= k <= n, f"expected k in [0, {n}] for axis {axis} of {x}, got {k}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    return [TensorType(x.dtype, shape), TensorType(attrs["dtype"], shape)]


def _evaluate_topk(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    axis = attrs["axis"]
    first = np.take(order_of(x, axis, attrs["is_ascend"]), range(attrs["k"]), axis=axis)
    return [np.take_along_axis(x, first, axis), first.astype(numpy_dtype(attrs["dtype"]))]


def _new_count(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """All elements stay all elements."""
    dim = operands[0][attrs["axis"]]
    return {"k": dim.new} if attrs["k"] == dim.old else {}


define(
    "graph.topk",
    ("x",),
    "The first k elements along `axis` in order, and their indices.",
    attrs={"k": AttrDef("int"), **_ORDER, "is_ascend": AttrDef("bool", False), "dtype": _INDEX},
    results=2,
    infer=_infer_topk,
    evaluate=_evaluate_topk,
    facts=replace(_SORT, extents=_new_count),
)


def _infer_searchsorted(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    ordered, values = alike(types)
    require(ordered.rank > 0, f"expected a sequence, got {ordered}")
    rows = ordered.rank == 1 or (ordered.rank == values.rank and ordered.shape[:-1] == values.shape[:-1])
    require(rows, f"expected one sequence, or one per row of {values}, got {ordered}")
    return [TensorType(attrs["dtype"], values.shape)]


def _evaluate_searchsorted(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    ordered, values = (wide(v, dtype_of(v)) for v in inputs)
    side: Literal["left", "right"] = "right" if attrs["right"] else "left"
    if ordered.ndim == 1:
        places = np.searchsorted(ordered, values, side=side)
        return [np.asarray(places).astype(numpy_dtype(attrs["dtype"]))]
    out = np.empty(values.shape, numpy_dtype(attrs["dtype"]))
    for row in np.ndindex(*values.shape[:-1]):
        out[row] = np.searchsorted(ordered[row], values[row], side=side)
    return [out]


define(
    "graph.searchsorted",
    ("sorted_sequence", "values"),
    "How many elements of the ascending sequence (one for all, or one per row) are less than each value, "
    "or not greater where `right`.",
    attrs={"right": AttrDef("bool", False), "dtype": _INDEX},
    infer=_infer_searchsorted,
    evaluate=_evaluate_searchsorted,
    facts=replace(
        _SORT, exact=False, division=undivided, report=ReportClass.OF_KERNEL, gradient=Gradient.NONE
    ),
)


def _infer_unique(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types)
    require_rank(x, 1)
    each = TensorType("i32", x.shape)
    counts = [each] if attrs["return_counts"] else []
    return [x, each, each, TensorType("i32", (1,)), *counts]


def _evaluate_unique(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    n = x.size
    _, first, inverse, counts = np.unique(
        wide(x, dtype_of(x)), return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    if not attrs["sorted"]:
        order = np.argsort(first)
        place = np.argsort(order)
        first, inverse, counts = first[order], place[inverse], counts[order]
    values = np.zeros_like(x)
    values[: first.size] = x[first]
    out = [values, _padded(first, n, n), _padded(inverse, n, 0), np.array([first.size], np.int32)]
    return [*out, _padded(counts, n, 0)] if attrs["return_counts"] else out


def _padded(x: np.ndarray, size: int, value: int) -> np.ndarray:
    out = np.full(size, value, np.int32)
    out[: x.size] = x
    return out


define(
    "graph.unique",
    ("x",),
    "Distinct elements of the vector x, where each occurs first, for every element which of them it is, "
    "how many there are, and (with `return_counts`) how often each occurs. Results have the size of x: "
    "after the distinct elements stand zeros, indices equal to that size, and counts of zero. "
    "Every nan is distinct.",
    attrs={
        "sorted": AttrDef("bool", True, "in ascending order, else in order of first occurrence"),
        "return_counts": AttrDef("bool", False),
    },
    results=None,
    infer=_infer_unique,
    evaluate=_evaluate_unique,
    facts=replace(_SORT, division=undivided, report=ReportClass.OF_KERNEL, gradient=Gradient.REFUSED),
)
