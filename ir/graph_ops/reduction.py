"""Reductions over axes: sums, products, extremes, truth, moments, and the position of an extreme."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from tilewright.ir.division import Labels, PartialOp, broadcast_labels, by_rules, part_of_mean
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.operands import (
    accumulator_dtype,
    alike,
    axes_of,
    broadcast_shapes,
    dtype_of,
    highest,
    lowest,
    quotient,
    require,
    tensors,
    wide,
)
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import FLOATS, TensorType, Type, numpy_dtype

_ATTRS: Mapping[str, AttrDef] = {
    "axis": AttrDef("ints", doc="the axes reduced; none of them leaves every element by itself"),
    "keepdims": AttrDef("bool", False, "keep the reduced axes with extent 1"),
}
#: positions are int32
MAX_POSITIONS = (1 << 31) - 1


def moment_dtype(dtype: str) -> str:
    """The dtype in which means and variances of `dtype` are summed: 64 bits for integers."""
    if dtype in FLOATS:
        return accumulator_dtype(dtype)
    return "u64" if dtype.startswith("u") else "i64"


def reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    """`shape` without `axes`, or with extent 1 there."""
    return tuple(1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes)


def _reduced(x: TensorType, dtype: str, attrs: Attrs) -> TensorType:
    axes = axes_of(attrs["axis"], x.rank)
    return TensorType(dtype, reduced_shape(x.shape, axes, attrs["keepdims"]))


def count(x: TensorType, attrs: Attrs) -> int:
    """Elements that one result is made of."""
    return prod(x.shape[d] for d in attrs["axis"])


def _sum(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    if x.dtype == np.bool_:
        return np.any(x, axis=axes, keepdims=keep)
    return np.asarray(x.sum(axis=axes, keepdims=keep, dtype=x.dtype))


def _product(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    if x.dtype == np.bool_:
        return np.all(x, axis=axes, keepdims=keep)
    return np.asarray(x.prod(axis=axes, keepdims=keep, dtype=x.dtype))


def _largest(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return np.asarray(np.max(x, axis=axes, keepdims=keep, initial=lowest(dtype_of(x))))


def _smallest(x: np.ndarray, axes: tuple[int, ...], keep: bool) -> np.ndarray:
    return np.asarray(np.min(x, axis=axes, keepdims=keep, initial=highest(dtype_of(x))))


def _divided(op: Op, *, open_axes: frozenset[int] = frozenset()) -> Labels:
    """Kept dimensions are independent; of reduced ones, `open_axes` have labels too."""
    x = op.operands[0].tensor
    axes = {d % x.rank for d in op.integers("axis")}
    dims = tuple(None if d in axes - open_axes else d for d in range(x.rank))
    result = tuple(None if d in axes else d for d in range(x.rank) if op["keepdims"] or d not in axes)
    rest = (broadcast_labels(v.tensor.shape, x.shape, dims) for v in op.operands[1:])
    return Labels((dims, *rest), (result,))


def _reduced_axes(op: Op) -> frozenset[int]:
    """The reduced dimensions; none of bools, which do not add up."""
    x = op.operands[0].tensor
    return frozenset(d % x.rank for d in op.integers("axis")) if x.dtype != "bool" else frozenset()


def _divided_sum(op: Op) -> Labels:
    axes = _reduced_axes(op)
    return replace(_divided(op, open_axes=axes), sums=axes)


def _divided_maximum(op: Op) -> Labels:
    axes = _reduced_axes(op)
    return replace(_divided(op, open_axes=axes), maxima=axes)


def _define_fold(
    name: str,
    doc: str,
    fold: Callable[[np.ndarray, tuple[int, ...], bool], np.ndarray],
    *,
    truth: bool = False,
    facts: Facts,
) -> None:
    def infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
        (x,) = tensors(types)
        require(not truth or x.dtype == "bool", f"expected a bool operand, got {x}")
        return [_reduced(x, x.dtype, attrs)]

    def run(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
        (x,) = inputs
        with np.errstate(all="ignore"):
            out = fold(wide(x, dtype_of(x)), tuple(attrs["axis"]), attrs["keepdims"])
            return [out.astype(x.dtype, copy=False)]

    define(f"graph.{name}", ("x",), doc, attrs=_ATTRS, infer=infer, evaluate=run, facts=facts)


#: facts that ops below share; each replaces those that differ
_REDUCTION = Facts(
    elements=Elements.REDUCES,
    flops=flops_per_element,
    precision=Precision.FOLLOWS,
    exact=False,
    division=_divided,
    extents=attributes_stay,
    report=ReportClass.REDUCTION,
    gradient=Gradient.DERIVED,
)
_define_fold(
    "sum",
    "The sum over `axis` in the dtype of x; any for bool.",
    _sum,
    facts=replace(_REDUCTION, division=_divided_sum, gradient=Gradient.RULE),
)
_define_fold(
    "prod",
    "The product over `axis` in the dtype of x; all for bool.",
    _product,
    facts=replace(_REDUCTION, precision=Precision.WIDE),
)
_define_fold(
    "max",
    "The largest element over `axis`; nan where one is.",
    _largest,
    facts=replace(_REDUCTION, exact=True, division=_divided_maximum, gradient=Gradient.RULE),
)
_define_fold(
    "min",
    "The smallest element over `axis`; nan where one is.",
    _smallest,
    facts=replace(_REDUCTION, exact=True, gradient=Gradient.RULE),
)
_define_fold(
    "all",
    "True where every element over `axis` is.",
    _product,
    truth=True,
    facts=replace(_REDUCTION, gradient=Gradient.NONE),
)
_define_fold(
    "any",
    "True where an element over `axis` is.",
    _sum,
    truth=True,
    facts=replace(_REDUCTION, gradient=Gradient.NONE),
)


def _infer_mean(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types)
    out = _reduced(x, x.dtype, attrs)
    require(x.dtype != "bool", f"expected numbers, got {x}")
    _require_divisible(x, out, count(x, attrs))
    return [out]


def _require_divisible(x: TensorType, out: TensorType, divisor: int) -> None:
    defined = x.dtype in FLOATS or divisor > 0 or out.size == 0
    require(defined, f"expected integers to divide by more than {divisor}, got {x}")


def _mean_parts(op: Op, operand: int, axis: int, start: int, end: int) -> PartialOp | None:
    """Some of the rows that are reduced."""
    return part_of_mean(op, operand, axis, start, end) if axis in _reduced_axes(op) else None


def _evaluate_mean(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    t = TensorType(dtype_of(x), x.shape)
    terms = x.astype(numpy_dtype(moment_dtype(t.dtype)), copy=False)
    with np.errstate(all="ignore"):
        total = _sum(terms, tuple(attrs["axis"]), attrs["keepdims"])
        return [quotient(total, np.asarray(count(t, attrs))).astype(x.dtype, copy=False)]


define(
    "graph.mean",
    ("x",),
    "The mean over `axis`; integers sum in 64 bits and round towards zero.",
    attrs=_ATTRS,
    infer=_infer_mean,
    evaluate=_evaluate_mean,
    facts=replace(_REDUCTION, division=by_rules(parts=_mean_parts, labels=_divided), gradient=Gradient.RULE),
)


def _infer_variance(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, mean = alike(types)
    out = _reduced(x, x.dtype, attrs)
    require(x.dtype != "bool", f"expected numbers, got {x}")
    require(
        broadcast_shapes([x.shape, mean.shape]) == x.shape,
        f"expected a mean that broadcasts to {x}, got {mean}",
    )
    _require_divisible(x, out, count(x, attrs) - attrs["unbiased"])
    return [out]


def _evaluate_variance(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, mean = inputs
    t = TensorType(dtype_of(x), x.shape)
    sum_dtype = numpy_dtype(moment_dtype(t.dtype))
    with np.errstate(all="ignore"):
        centred = x.astype(sum_dtype, copy=False) - mean.astype(sum_dtype, copy=False)
        total = _sum(centred * centred, tuple(attrs["axis"]), attrs["keepdims"])
        return [quotient(total, np.asarray(count(t, attrs) - attrs["unbiased"])).astype(x.dtype, copy=False)]


define(
    "graph.variance",
    ("x", "mean"),
    "The mean of (x - mean)**2 over `axis`, divided by one less than the count where unbiased; "
    "mean broadcasts to x.",
    attrs={**_ATTRS, "unbiased": AttrDef("bool", False, "divide by count - 1")},
    infer=_infer_variance,
    evaluate=_evaluate_variance,
    facts=replace(_REDUCTION, precision=Precision.WIDE, gradient=Gradient.RULE),
)


def _infer_position(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types)
    out = _reduced(x, "i32", attrs)
    elements = count(x, attrs)
    fits = 1 <= elements <= MAX_POSITIONS or out.size == 0
    require(fits, f"expected from 1 to {MAX_POSITIONS} elements to choose from, got {x}")
    return [out]


def _evaluate_position(largest: bool, inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, axes = wide(inputs[0], dtype_of(inputs[0])), sorted(attrs["axis"])
    others = [d for d in range(x.ndim) if d not in axes]
    elements = prod(x.shape[d] for d in axes)
    rows = x.transpose(*others, *axes).reshape([*(x.shape[d] for d in others), elements])
    shape = reduced_shape(x.shape, axes, attrs["keepdims"])
    if 0 in shape:
        return [np.empty(shape, np.int32)]
    find = np.argmax if largest else np.argmin
    if attrs["select_last_index"]:
        position = elements - 1 - find(rows[..., ::-1], axis=-1)
    else:
        position = find(rows, axis=-1)
    return [np.asarray(position).astype(np.int32).reshape(shape)]


for _kind, _what in (("max", "largest"), ("min", "smallest")):
    define(
        f"graph.arg{_kind}",
        ("x",),
        f"The position of the {_what} element (a nan counts as such) in row-major order of `axis`; "
        "the first of several, or the last.",
        attrs={**_ATTRS, "select_last_index": AttrDef("bool", False)},
        infer=_infer_position,
        evaluate=partial(_evaluate_position, _kind == "max"),
        facts=replace(_REDUCTION, precision=Precision.WIDE, gradient=Gradient.NONE),
    )
