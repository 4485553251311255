"""Relay operators that compute element by element."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule

_ONE_OPERAND = """
    abs acos acosh asin asinh atan atanh bitwise_not ceil copy cos cosh erf exp floor isfinite isinf isnan
    log log10 log2 logical_not negative rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
"""
_TWO_OPERANDS = """
    add bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal
    left_shift less less_equal logical_and logical_or logical_xor maximum minimum mod multiply not_equal power
    right_shift subtract
"""
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
    "where": _plain("where", 3),
    "nn.leaky_relu": _leaky_relu,
    "nn.prelu": _prelu,
    "clip": _clip,
    "cast": _cast,
    "cast_like": _cast_like,
}
