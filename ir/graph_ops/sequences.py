"""Sequences of different lengths in one tensor, and ranges of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite

import numpy as np

from tilewright.ir.division import Labels, same_dimensions, undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, movement, no_flops
from tilewright.ir.graph_ops.operands import accumulator_dtype, axis_of, require, require_integer, tensors
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import FLOATS, TensorType, Type, numpy_dtype


def _lengths(types: Sequence[Type], seq_axis: int, batch_axis: int) -> tuple[TensorType, TensorType]:
    x, lengths = tensors(types)
    seq, batch = (axis_of(a, x.rank) for a in (seq_axis, batch_axis))
    require(seq != batch, f"expected different axes of sequences and batch, got {seq} twice")
    fitting = (x.shape[batch],)
    require(lengths.shape == fitting, f"expected lengths of shape {fitting} for {x}, got {lengths}")
    return x, lengths


def _infer_reverse(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, lengths = _lengths(types, attrs["seq_axis"], attrs["batch_axis"])
    require_integer(lengths)
    return [x]


def _evaluate_reverse(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, lengths = inputs
    seq, batch = attrs["seq_axis"] % x.ndim, attrs["batch_axis"] % x.ndim
    moved = np.moveaxis(x, (batch, seq), (0, 1))
    place = np.arange(moved.shape[1])
    count = np.minimum(lengths.astype(np.int64), moved.shape[1])[:, None]
    place = np.where(place < count, count - 1 - place, place)
    out = moved[np.arange(moved.shape[0])[:, None], place]
    return [np.moveaxis(out, (0, 1), (batch, seq))]


def _divided_reverse(op: Op) -> Labels:
    """Sequences are independent, and so are dimensions along which elements keep their place."""
    return same_dimensions(
        op, [op.integer("seq_axis")], (op.integer("batch_axis") % op.operands[0].tensor.rank,)
    )


define(
    "graph.reverse_sequence",
    ("x", "lengths"),
    "x where the first lengths[b] elements along `seq_axis` of part b of `batch_axis` are reversed.",
    attrs={"seq_axis": AttrDef("int", 1), "batch_axis": AttrDef("int", 0)},
    infer=_infer_reverse,
    evaluate=_evaluate_reverse,
    facts=movement(Elements.MOVES, _divided_reverse, attributes_stay, gradient=Gradient.RULE),
)


def _infer_mask(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    require(attrs["axis"] in (0, 1), f"expected axis 0 or 1, got {attrs['axis']}")
    x, _ = _lengths(types, attrs["axis"], 1 - attrs["axis"])
    return [x]


def _evaluate_mask(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, lengths = inputs
    axis = attrs["axis"]
    along = [1] * x.ndim
    along[axis], place = x.shape[axis], np.arange(x.shape[axis])
    across = [1] * x.ndim
    across[1 - axis] = x.shape[1 - axis]
    inside = place.reshape(along) < lengths.reshape(across)
    return [np.where(inside, x, np.asarray(attrs["mask_value"]).astype(x.dtype))]


define(
    "graph.sequence_mask",
    ("x", "lengths"),
    "x with `mask_value` from element lengths[b] on along `axis` (0 or 1); b is the index of the other.",
    attrs={"mask_value": AttrDef("number", 0.0), "axis": AttrDef("int", 0)},
    infer=_infer_mask,
    evaluate=_evaluate_mask,
    facts=movement(Elements.MOVES, undivided, attributes_stay, gradient=Gradient.RULE),
)


def range_count(start: float, stop: float, step: float) -> int:
    """Elements of start, start + step, ... before stop; raises InputError for a step of 0."""
    good = step != 0 and isfinite(start) and isfinite(stop)
    require(good, f"expected finite bounds and a step other than 0: {start}, {stop}, {step}")
    if all(isinstance(v, int) for v in (start, stop, step)):
        return int(max(0, -((start - stop) // step)))
    return max(0, ceil((stop - start) / step))


def range_values(start: float, stop: float, step: float, dtype: str) -> np.ndarray:
    """The numbers of arange: floats of 16 bits are computed in float32, integers of fractions in float64."""
    place = np.arange(range_count(start, stop, step), dtype=np.int64)
    if dtype not in FLOATS and isinstance(start, int) and isinstance(step, int):
        return (start + step * place).astype(numpy_dtype(dtype))
    sum_dtype = numpy_dtype(accumulator_dtype(dtype)) if dtype in FLOATS else np.dtype(np.float64)
    values = sum_dtype.type(start) + place.astype(sum_dtype) * sum_dtype.type(step)
    return values.astype(numpy_dtype(dtype))


def _infer_arange(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    return [TensorType(attrs["dtype"], (range_count(attrs["start"], attrs["stop"], attrs["step"]),))]


define(
    "graph.arange",
    (),
    "start, start + step, start + 2 * step, ... before stop.",
    attrs={
        "start": AttrDef("number", 0),
        "stop": AttrDef("number"),
        "step": AttrDef("number", 1),
        "dtype": AttrDef("dtype", "f32"),
    },
    infer=_infer_arange,
    evaluate=lambda x, a: [range_values(a["start"], a["stop"], a["step"], a["dtype"])],
    facts=Facts(
        elements=Elements.CREATES,
        flops=no_flops,
        precision=Precision.FOLLOWS,
        division=undivided,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.NONE,
        exact=False,
    ),
)
