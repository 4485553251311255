"""Running sums and products along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.division import along_other_axes
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.operands import accumulator_dtype, axis_of, dtype_of, tensors
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

_ATTRS: Mapping[str, AttrDef] = {
    "axis": AttrDef("int"),
    "dtype": AttrDef("dtype?", None, "of the result, which elements are converted to first; else that of x"),
    "exclusive": AttrDef("bool", False, "an element is not part of its own result"),
}


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types)
    axis_of(attrs["axis"], x.rank)
    return [TensorType(attrs["dtype"] or x.dtype, x.shape)]


def _evaluate(
    inputs: Sequence[np.ndarray], attrs: Attrs, ufuncs: tuple[np.ufunc, np.ufunc]
) -> Sequence[np.ndarray]:
    (x,) = inputs
    dtype = numpy_dtype(attrs["dtype"] or dtype_of(x))
    acc = numpy_dtype(accumulator_dtype(dtype_of(np.empty(0, dtype))))
    ufunc = ufuncs[acc == np.bool_]
    axis = attrs["axis"] % x.ndim
    with np.errstate(all="ignore"):
        out = ufunc.accumulate(x.astype(dtype, copy=False).astype(acc, copy=False), axis=axis, dtype=acc)
        if attrs["exclusive"]:
            shape = (*x.shape[:axis], min(1, x.shape[axis]), *x.shape[axis + 1 :])
            start = np.full(shape, ufunc.identity, acc)
            before = np.take(out, range(max(0, x.shape[axis] - 1)), axis=axis)
            out = np.concatenate([start, before], axis=axis)
        return [out.astype(dtype, copy=False)]


#: facts that ops below share; each replaces those that differ
_SCAN = Facts(
    elements=Elements.SCANS,
    flops=flops_per_element,
    precision=Precision.WIDE,
    exact=False,
    division=along_other_axes,
    extents=attributes_stay,
    report=ReportClass.SCAN,
    gradient=Gradient.RULE,
)
define(
    "graph.cumsum",
    ("x",),
    "Sums of the elements up to each one along `axis`; or for bool.",
    attrs=_ATTRS,
    infer=_infer,
    evaluate=lambda x, a: _evaluate(x, a, (np.add, np.logical_or)),
    facts=_SCAN,
)
define(
    "graph.cumprod",
    ("x",),
    "Products of the elements up to each one along `axis`; and for bool.",
    attrs=_ATTRS,
    infer=_infer,
    evaluate=lambda x, a: _evaluate(x, a, (np.multiply, np.logical_and)),
    facts=replace(_SCAN, gradient=Gradient.DERIVED),
)
