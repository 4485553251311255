"""Relay operators on sequences of different lengths, on diagonals of matrices, and in fixed point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.operands import axes_of, axis_of


def _reverse_sequence(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, lengths = emit.tensors(args, 2)
    rank = data.tensor.rank
    seq, batch = attrs.integer("seq_axis", 1), attrs.integer("batch_axis", 0)
    return emit.value(
        "reverse_sequence",
        data,
        lengths,
        seq_axis=axis_of(seq, rank, "seq_axis"),
        batch_axis=axis_of(batch, rank, "batch_axis"),
    )


def _sequence_mask(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, lengths = emit.tensors(args, 2)
    value, axis = attrs.real("mask_value", 0.0), attrs.integer("axis", 0)
    return emit.value("sequence_mask", data, lengths, mask_value=value, axis=axis)


def _trilu(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, k = emit.tensors(args, 2)
    upper, known = attrs.flag("upper", True), emit.known(k)
    if known is None:
        return emit.value("trilu", data, k, upper=upper)
    if known.size != 1:
        raise InputError(f"expected one diagonal, got {k.type}")
    return emit.value("trilu", data, k=int(known.reshape(())), upper=upper)


def _matrix_set_diag(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value(
        "matrix_set_diag",
        *emit.tensors(args, 2),
        k1=attrs.integer("k1", 0),
        k2=attrs.integer("k2", 0),
        super_diag_right_align=attrs.flag("super_diag_right_align", True),
        sub_diag_right_align=attrs.flag("sub_diag_right_align", False),
    )


def _fixed_point_multiply(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """x * multiplier * 2**(shift - 31), rounded half up, in 64 bits."""
    (data,) = emit.tensors(args, 1)
    if data.tensor.dtype != "i32":
        raise InputError(f"expected an operand of int32, got {data.type}")
    multiplier, shift = attrs.integer("multiplier"), attrs.integer("shift")
    left, right = max(shift, 0), 31 + max(-shift, 0)
    if not 0 <= left < 32 or not 0 < right < 63:
        raise InputError(f"expected a shift in [-31, 31], got {shift}")
    factor, half, places = (
        emit.constant(np.asarray(v, np.int64)) for v in (multiplier << left, 1 << (right - 1), right)
    )
    product = emit.value("multiply", emit.value("cast", data, dtype="i64"), factor)
    rounded = emit.value("right_shift", emit.value("add", product, half), places)
    return emit.value("cast", rounded, dtype="i32")


def _fixed_point_multiply_per_axis(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """(x << lshift) * multiplier * 2**(-31 - rshift), rounded half up; factor and shifts lie along `axes`.

    TVM applies rshift whether it says that it is required or not.
    """
    data, *factors = emit.tensors(args, 4)
    axes = axes_of(attrs.integers("axes"), data.tensor.rank, "axes")
    left = attrs.flag("is_lshift_required", False)
    attrs.drop("is_rshift_required")
    shape = tuple(n if d in axes else 1 for d, n in enumerate(data.tensor.shape))
    multiplier, up, down = (
        emit.value("cast", emit.value("reshape", v, newshape=shape), dtype="i64") for v in factors
    )
    fraction, one = (emit.constant(np.asarray(v, np.int64)) for v in (31, 1))
    wide = emit.value("cast", data, dtype="i64")
    if left:
        wide = emit.value("left_shift", wide, up)
    product = emit.value("multiply", wide, multiplier)
    places = emit.value("add", down, fraction)
    half = emit.value("left_shift", one, emit.value("subtract", places, one))
    rounded = emit.value("right_shift", emit.value("add", product, half), places)
    return emit.value("cast", rounded, dtype="i32")


RULES: Mapping[str, Rule] = {
    "reverse_sequence": _reverse_sequence,
    "sequence_mask": _sequence_mask,
    "trilu": _trilu,
    "matrix_set_diag": _matrix_set_diag,
    "fixed_point_multiply": _fixed_point_multiply,
    "fixed_point_multiply_per_axis": _fixed_point_multiply_per_axis,
}
