"""Relay operators that compute element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import FLOATS, itemsize, storage_dtype

_ONE_OPERAND = """
    abs acos acosh asin asinh atan atanh bitwise_not ceil copy cos cosh erf exp floor isfinite isinf isnan
    log log10 log2 logical_not negative rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
"""
_TWO_OPERANDS = """
    add bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal
    left_shift less less_equal logical_and logical_or logical_xor maximum minimum mod multiply not_equal power
    right_shift subtract
"""
#: Remarks to TVM's passes; what they are about stays what it is.
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
#: Relay operator -> graph op, one operand, no attributes
_UNARY: Mapping[str, str] = {
    **{name: name for name in _ONE_OPERAND.split()},
    "nn.relu": "relu",
    "fast_erf": "erf",
    "fast_exp": "exp",
    "fast_tanh": "tanh",
}
#: Relay operator -> graph op, two operands, no attributes
BINARY: Mapping[str, str] = {name: name for name in _TWO_OPERANDS.split()} | {"trunc_mod": "mod"}


def _plain(graph_op: str, operands: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        return emit.value(graph_op, *emit.tensors(args, operands))

    return rule


def _remark(dropped: Sequence[str]) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        attrs.drop(*dropped)
        if len(args) != 1:
            raise InputError(f"expected one argument, got {len(args)}")
        return args[0]

    return rule


def rounded_half_away(emit: Emitter, x: Value) -> Value:
    """To the nearest whole number, halves away from zero, as TVM's `round` on every target."""
    if x.tensor.dtype not in FLOATS:
        return x
    whole = emit.value("trunc", x)
    half = emit.constant(np.asarray(0.5).astype(storage_dtype(x.tensor.dtype)))
    rest = emit.value("abs", emit.value("subtract", x, whole))
    away = emit.value("add", whole, emit.value("sign", x))
    return emit.value("where", emit.value("greater_equal", rest, half), away, whole)


def _round(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return rounded_half_away(emit, *emit.tensors(args, 1))


def _trunc_divide(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    quotient = emit.value("divide", *emit.tensors(args, 2))
    return emit.value("trunc", quotient) if quotient.tensor.dtype in FLOATS else quotient


def _reinterpret(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The same bits as another dtype: of constants, and of integers as those of the other signedness."""
    (x,) = emit.tensors(args, 1)
    dtype = attrs.dtype("dtype")
    if itemsize(dtype) != itemsize(x.tensor.dtype):
        raise InputError(f"expected a dtype as wide as that of {x.type}, got {dtype}")
    known = emit.known(x)
    if known is not None:
        return emit.constant(known.view(storage_dtype(dtype)))
    if {x.tensor.dtype, dtype} & {*FLOATS, "bool"} and x.tensor.dtype != dtype:
        raise UnsupportedError(f"expected integers or a constant to reinterpret as {dtype}, got {x.type}")
    return emit.value("cast", x, dtype=dtype)


def _leaky_relu(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("leaky_relu", *emit.tensors(args, 1), alpha=attrs.real("alpha", 0.25))


def _prelu(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("prelu", *emit.tensors(args, 2), axis=attrs.integer("axis", 1))


def _clip(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("clip", *emit.tensors(args, 1), a_min=attrs.real("a_min"), a_max=attrs.real("a_max"))


def _cast(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("cast", *emit.tensors(args, 1), dtype=attrs.dtype("dtype"))


def _cast_like(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    value, like = emit.tensors(args, 2)
    return emit.value("cast", value, dtype=like.tensor.dtype)


RULES: Mapping[str, Rule] = {
    **{name: _plain(op, 1) for name, op in _UNARY.items()},
    **{name: _plain(op, 2) for name, op in BINARY.items()},
    **{name: _remark(dropped) for name, dropped in _REMARKS.items()},
    "where": _plain("where", 3),
    "round": _round,
    "trunc_divide": _trunc_divide,
    "reinterpret": _reinterpret,
    "nn.leaky_relu": _leaky_relu,
    "nn.prelu": _prelu,
    "clip": _clip,
    "cast": _cast,
    "cast_like": _cast_like,
}
