"""Relay operators on numbers that need several graph ops: rounding as TVM does, quotients, bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import FLOATS, itemsize, storage_dtype


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


RULES: Mapping[str, Rule] = {
    "round": _round,
    "trunc_divide": _trunc_divide,
    "reinterpret": _reinterpret,
}
