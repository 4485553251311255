"""Normalisations. 16-bit floats are normalised in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.division import Labels, along_other_axes, closed_from, per_channel, same_dimensions
from tilewright.ir.division import axis_of as axis_label
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.moments import joined_moments
from tilewright.ir.graph_ops.operands import (
    accumulator_dtype,
    alike,
    axes_of,
    axis_of,
    dtype_of,
    require,
    require_float,
    wide,
)
from tilewright.ir.graph_ops.unary import along
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type

_AFFINE = {
    "epsilon": AttrDef("float", 1e-5, "added to the variance"),
    "center": AttrDef("bool", True, "add beta"),
    "scale": AttrDef("bool", True, "multiply by gamma"),
}


def _infer_affine(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    """x normalised in its own shape, with one value of every further operand per index of `axis`."""
    x, *vectors = alike(types)
    require_float(x)
    axis = axis_of(attrs["axis"], x.rank)
    for v in vectors:
        require(v.shape == (x.shape[axis],), f"expected operands along axis {axis} of {x}, got {v}")
    if "num_groups" in attrs:
        groups = attrs["num_groups"]
        good = groups >= 1 and x.shape[axis] % groups == 0 and axis > 0
        require(good, f"expected {x.shape[axis]} channels on an axis after the first, in {groups} groups")
    return [x]


def _shifted(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, attrs: Attrs) -> np.ndarray:
    if attrs["scale"]:
        x = x * along(gamma.astype(x.dtype), attrs["axis"], x.ndim)
    return x + along(beta.astype(x.dtype), attrs["axis"], x.ndim) if attrs["center"] else x


def _evaluate_batch_norm(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, gamma, beta, mean, var = (wide(v, dtype_of(v)) for v in inputs)
    deviation = np.sqrt(var + np.asarray(attrs["epsilon"]).astype(var.dtype))
    normal = (x - along(mean, attrs["axis"], x.ndim)) / along(deviation, attrs["axis"], x.ndim)
    return [_shifted(normal, gamma, beta, attrs).astype(inputs[0].dtype, copy=False)]


define(
    "graph.batch_norm",
    ("x", "gamma", "beta", "moving_mean", "moving_var"),
    "(x - mean) / sqrt(var + epsilon) * gamma + beta, with one of each per index of `axis`.",
    attrs={"axis": AttrDef("int", 1), **_AFFINE},
    infer=_infer_affine,
    evaluate=_evaluate_batch_norm,
    facts=Facts(
        elements=Elements.MAPS_PER_CHANNEL,
        flops=flops_per_element,
        precision=Precision.FOLLOWS,
        division=per_channel,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.RULE,
        exact=False,
    ),
)


def _standardised(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    centred = x - x.mean(axis=axes, keepdims=True)
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    return np.asarray(centred / np.sqrt(variance + np.asarray(epsilon).astype(x.dtype)))


def _evaluate_layer_norm(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, gamma, beta = (wide(v, dtype_of(v)) for v in inputs)
    normal = _standardised(x, (attrs["axis"] % x.ndim,), attrs["epsilon"])
    return [_shifted(normal, gamma, beta, attrs).astype(inputs[0].dtype, copy=False)]


def _evaluate_group_norm(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, gamma, beta = (wide(v, dtype_of(v)) for v in inputs)
    axis, groups = attrs["axis"] % x.ndim, attrs["num_groups"]
    split = x.reshape(*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    axes = tuple(d for d in range(1, split.ndim) if d != axis)
    normal = _standardised(split, axes, attrs["epsilon"]).reshape(x.shape)
    return [_shifted(normal, gamma, beta, attrs).astype(inputs[0].dtype, copy=False)]


def _evaluate_instance_norm(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, gamma, beta = (wide(v, dtype_of(v)) for v in inputs)
    axes = tuple(d for d in range(1, x.ndim) if d != attrs["axis"] % x.ndim)
    normal = _standardised(x, axes, attrs["epsilon"])
    return [_shifted(normal, gamma, beta, attrs).astype(inputs[0].dtype, copy=False)]


def _divided_instances(op: Op) -> Labels:
    """Samples and channels are independent."""
    rank, axis = op.operands[0].tensor.rank, op.integer("axis") % op.operands[0].tensor.rank
    return same_dimensions(op, [d for d in range(1, rank) if d != axis], (axis,), (axis,))


#: facts that ops below share; each replaces those that differ
_NORMALISATION = Facts(
    elements=Elements.NORMALISES,
    flops=flops_per_element,
    precision=Precision.BOUNDED,
    exact=False,
    division=along_other_axes,
    extents=attributes_stay,
    report=ReportClass.NORMALISATION,
    gradient=Gradient.RULE,
)
define(
    "graph.layer_norm",
    ("x", "gamma", "beta"),
    "x standardised along `axis` (biased variance), times gamma plus beta.",
    attrs={"axis": AttrDef("int", -1), **_AFFINE},
    infer=_infer_affine,
    evaluate=_evaluate_layer_norm,
    facts=_NORMALISATION,
)
define(
    "graph.group_norm",
    ("x", "gamma", "beta"),
    "x standardised per sample and group of channels, times gamma plus beta per channel.",
    attrs={"num_groups": AttrDef("int"), "axis": AttrDef("int", 1, "the channels"), **_AFFINE},
    infer=_infer_affine,
    evaluate=_evaluate_group_norm,
    facts=replace(_NORMALISATION, division=closed_from(1)),
)
define(
    "graph.instance_norm",
    ("x", "gamma", "beta"),
    "x standardised per sample and channel, times gamma plus beta per channel.",
    attrs={"axis": AttrDef("int", 1, "the channels"), **_AFFINE},
    infer=_infer_affine,
    evaluate=_evaluate_instance_norm,
    facts=replace(_NORMALISATION, division=_divided_instances),
)


def _infer_batch_norm_training(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (out,) = _infer_affine(types, attrs)
    assert isinstance(out, TensorType)
    axis = axis_of(attrs["axis"], out.rank)
    require(out.size > 0 or out.shape[axis] == 0, f"expected elements to take moments of, got {out}")
    moments = TensorType(accumulator_dtype(out.dtype), (out.shape[axis],))
    return [out, moments, moments]


def _evaluate_batch_norm_training(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, gamma, beta = (wide(v, dtype_of(v)) for v in inputs)
    axis = attrs["axis"] % x.ndim
    axes = tuple(d for d in range(x.ndim) if d != axis)
    mean = x.mean(axis=axes, keepdims=True)
    centred = x - mean
    variance = np.mean(centred * centred, axis=axes, keepdims=True)
    normal = centred / np.sqrt(variance + np.asarray(attrs["epsilon"]).astype(x.dtype))
    y = _shifted(normal, gamma, beta, attrs).astype(inputs[0].dtype, copy=False)
    return [y, mean.reshape(-1), variance.reshape(-1)]


def _divided_channels(op: Op) -> Labels:
    """Channels are independent, and moments of samples are joined from those of pieces."""
    axis = axis_label(op)
    dims = tuple(d if d == axis else None for d in range(op.operands[0].tensor.rank))
    return Labels((dims, (axis,), (axis,)), (dims, (axis,), (axis,)), moments=joined_moments)


define(
    "graph.batch_norm_training",
    ("x", "gamma", "beta"),
    "x standardised per channel over all other dimensions, times gamma plus beta per channel; then the mean "
    "and the biased variance of every channel, in at least float32.",
    attrs={"axis": AttrDef("int", 1, "the channels"), **_AFFINE},
    results=3,
    infer=_infer_batch_norm_training,
    evaluate=_evaluate_batch_norm_training,
    facts=replace(_NORMALISATION, division=_divided_channels, gradient=Gradient.RULE),
)


def _infer_l2(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = alike(types)
    require_float(x)
    axes_of(attrs["axis"], x.rank)
    return [x]


def _evaluate_l2(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x = wide(inputs[0], dtype_of(inputs[0]))
    squares = np.sum(x * x, axis=tuple(attrs["axis"]) or None, keepdims=True)
    bounded = np.maximum(squares, np.asarray(attrs["eps"]).astype(x.dtype))
    return [(x / np.sqrt(bounded)).astype(inputs[0].dtype, copy=False)]


def _divided_lines(op: Op) -> Labels:
    """The dimensions that are summed over are needed whole."""
    return same_dimensions(op, op.integers("axis") or range(op.operands[0].tensor.rank))


define(
    "graph.l2_normalize",
    ("x",),
    "x / sqrt(max(sum of squares over `axis`, eps)).",
    attrs={"eps": AttrDef("float"), "axis": AttrDef("ints", (), "empty: all axes")},
    infer=_infer_l2,
    evaluate=_evaluate_l2,
    facts=replace(_NORMALISATION, precision=Precision.WIDE, division=_divided_lines),
)


def _infer_lrn(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = alike(types)
    require_float(x)
    axis_of(attrs["axis"], x.rank)
    require(attrs["size"] >= 1 and attrs["size"] % 2 == 1, f"expected an odd size, got {attrs['size']}")
    return [x]


def _evaluate_lrn(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x = wide(inputs[0], dtype_of(inputs[0]))
    axis, size = attrs["axis"] % x.ndim, attrs["size"]
    n = x.shape[axis]
    widths = [(size // 2, size // 2) if d == axis else (0, 0) for d in range(x.ndim)]
    squares = np.pad(x * x, widths)
    window = np.zeros_like(x)
    for k in range(size):
        window += squares[(slice(None),) * axis + (slice(k, k + n),)]
    bias, alpha, beta = (
        np.asarray(v).astype(x.dtype) for v in (attrs["bias"], attrs["alpha"] / size, attrs["beta"])
    )
    return [(x / np.power(bias + alpha * window, beta)).astype(inputs[0].dtype, copy=False)]


define(
    "graph.lrn",
    ("x",),
    "x / (bias + alpha / size * sum of squares of the `size` neighbours along `axis`) ** beta.",
    attrs={
        "size": AttrDef("int", 5),
        "axis": AttrDef("int", 1),
        "bias": AttrDef("float", 2.0),
        "alpha": AttrDef("float", 1e-5),
        "beta": AttrDef("float", 0.75),
    },
    infer=_infer_lrn,
    evaluate=_evaluate_lrn,
    facts=replace(_NORMALISATION, precision=Precision.WIDE, gradient=Gradient.DERIVED),
)


def channel_groups(x: TensorType, axis: int, groups: int) -> tuple[int, ...]:
    """The shape of x with its channels split into [groups, channels per group]."""
    return (*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
