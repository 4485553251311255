"""Relay operators that compute element by element, and those that say something to TVM's passes alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.quantisation import rounded_half_away
from tilewright.frontends.importing.rules import direct, directs, dtype, integer, real
from tilewright.frontends.tvm.rules import elementwise
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import axes_of
from tilewright.ir.types import FLOATS, itemsize, storage_dtype

#: operator -> its attributes, which say nothing here
_REMARKS: Mapping[str, Sequence[str]] = {
    "annotation.bitpack_end": (),
    "annotation.bitpack_start": (),
    "annotation.cast_hint": ("dtype",),
    "annotation.checkpoint": (),
    "annotation.compiler_begin": ("compiler",),
    "annotation.compiler_end": ("compiler",),
    "annotation.stop_fusion": (),
    "debug": ("debug_func",),
    "device_copy": ("src_virtual_device", "dst_virtual_device", "src_dev_type", "dst_dev_type"),
    "on_device": ("virtual_device", "constrain_result", "constrain_body", "device_type", "is_fixed"),
}


def _remark(dropped: Sequence[str]) -> Rule:
    def rule(emit: Emitter, call: Call) -> Result:
        call.drop(*dropped)
        if call.count != 1:
            raise InputError(f"expected one argument, got {call.count}")
        return call.inputs[0]

    return rule


def _cast_like(emit: Emitter, call: Call) -> Result:
    value, like = call.tensors(2)
    return emit.value("cast", value, dtype=like.tensor.dtype)


def _round(emit: Emitter, call: Call) -> Result:
    return rounded_half_away(emit, call.single())


def _trunc_divide(emit: Emitter, call: Call) -> Result:
    quotient = emit.value("divide", *call.tensors(2))
    return emit.value("trunc", quotient) if quotient.tensor.dtype in FLOATS else quotient


def _reinterpret(emit: Emitter, call: Call) -> Result:
    """The same bits as another dtype: of constants, and of integers as those of the other signedness."""
    x = call.single()
    kind = call.dtype("dtype")
    if itemsize(kind) != itemsize(x.tensor.dtype):
        raise InputError(f"expected a dtype as wide as that of {x.type}, got {kind}")
    known = emit.known(x)
    if known is not None:
        return emit.constant(known.view(storage_dtype(kind)))
    if {x.tensor.dtype, kind} & {*FLOATS, "bool"} and x.tensor.dtype != kind:
        raise UnsupportedError(f"expected integers or a constant to reinterpret as {kind}, got {x.type}")
    return emit.value("cast", x, dtype=kind)


def _fixed_point_multiply(emit: Emitter, call: Call) -> Result:
    """x * multiplier * 2**(shift - 31), rounded half up, in 64 bits."""
    data = call.single()
    if data.tensor.dtype != "i32":
        raise InputError(f"expected an operand of int32, got {data.type}")
    multiplier, shift = call.integer("multiplier"), call.integer("shift")
    left, right = max(shift, 0), 31 + max(-shift, 0)
    if not 0 <= left < 32 or not 0 < right < 63:
        raise InputError(f"expected a shift in [-31, 31], got {shift}")
    product = emit.op("multiply", emit.value("cast", data, dtype="i64"), multiplier << left)
    rounded = emit.op("right_shift", emit.op("add", product, 1 << (right - 1)), right)
    return emit.value("cast", rounded, dtype="i32")


def _fixed_point_multiply_per_axis(emit: Emitter, call: Call) -> Result:
    """(x << lshift) * multiplier * 2**(-31 - rshift), rounded half up; factor and shifts lie along `axes`.

    TVM applies rshift whether it says that it is required or not.
    """
    data, *factors = call.tensors(4)
    axes = axes_of(call.integers("axes"), data.tensor.rank, "axes")
    left = call.flag("is_lshift_required", False)
    call.drop("is_rshift_required")
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
    **directs("copy log10 log2", 1, fast_erf="erf", fast_exp="exp", fast_tanh="tanh"),
    **directs(elementwise.BINARY, 2, trunc_mod="mod"),
    **directs("where", 3),
    **{name: _remark(dropped) for name, dropped in _REMARKS.items()},
    "nn.leaky_relu": direct("leaky_relu", alpha=real(0.25)),
    "nn.prelu": direct("prelu", 2, axis=integer(1)),
    "clip": direct("clip", a_min=real(), a_max=real()),
    "cast": direct("cast", dtype=dtype("")),
    "cast_like": _cast_like,
    "round": _round,
    "trunc_divide": _trunc_divide,
    "reinterpret": _reinterpret,
    "fixed_point_multiply": _fixed_point_multiply,
    "fixed_point_multiply_per_axis": _fixed_point_multiply_per_axis,
}
