"""Operators that rearrange, select and place elements, as Relay and Relax both call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.rules import axis, direct, integers, text
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value
from tilewright.ir.types import TensorType, storage_dtype

#: Tensors that are made from nothing become constants up to this size, above it ops that make them.
MAX_CONSTANT_BYTES = 1 << 20


def collapsed(emit: Emitter, data: Value, shape: Sequence[int]) -> Value:
    """The sum of `data` over the dimensions that broadcasting `shape` to it repeats."""
    x = data.tensor
    lead = x.rank - len(shape)
    if lead < 0 or any(n not in (1, m) for n, m in zip(shape, x.shape[lead:], strict=True)):
        raise InputError(f"expected a shape that broadcasts to {x}, got {tuple(shape)}")
    repeated = [lead + d for d, n in enumerate(shape) if n != x.shape[lead + d]]
    axes = (*range(lead), *repeated)
    return emit.reshape(emit.value("sum", data, axis=axes, keepdims=True), shape) if axes else data


def _collapse_sum_like(emit: Emitter, call: Call) -> Result:
    data, like = call.tensors(2)
    return collapsed(emit, data, like.tensor.shape)


def _meshgrid(emit: Emitter, call: Call) -> Result:
    """One grid per operand, in which it runs along its own dimension; `xy` swaps the first two."""
    parts = call.only_fields()
    indexing = call.choice("indexing", ("ij", "xy"), "ij")
    if any(v.tensor.rank > 1 for v in parts):
        raise InputError(f"expected operands of rank 0 or 1, got {', '.join(str(v.type) for v in parts)}")
    rank = len(parts)
    places = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else list(range(rank))
    shape = tuple(parts[k].tensor.size for k in places)
    lines = (emit.along(v, place, rank) for v, place in zip(parts, places, strict=True))
    return tuple(emit.value("broadcast_to", line, shape=shape) for line in lines)


def tile(name: str) -> Rule:
    """The rule of a repetition; fewer repetitions than dimensions stand for the last ones."""

    def rule(emit: Emitter, call: Call) -> Result:
        data = call.single()
        reps = call.integers(name)
        return emit.value("tile", data, reps=(*(1,) * (data.tensor.rank - len(reps)), *reps))

    return rule


def filled(emit: Emitter, value: Value | int, shape: Sequence[int], dtype: str) -> Value:
    """One number as every element of a tensor: a constant while it is small, else a broadcast."""
    if isinstance(value, Value) and value.tensor.size != 1:
        raise InputError(f"expected one element to fill with, got {value.type}")
    known = emit.known(value) if isinstance(value, Value) else np.asarray(value)
    kind = TensorType(dtype, tuple(shape))
    if isinstance(value, Value) and known is None:
        one = emit.cast(emit.reshape(value, ()), dtype)
    else:
        number = np.asarray(known).reshape(()).astype(storage_dtype(dtype))
        if kind.nbytes <= MAX_CONSTANT_BYTES:
            return emit.constant(np.full(kind.shape, number))
        one = emit.constant(number)
    return emit.value("broadcast_to", one, shape=kind.shape)


def _filled_like(value: int) -> Rule:
    """The rule of a tensor of one number, shaped and, unless the call says a dtype, typed like another."""

    def rule(emit: Emitter, call: Call) -> Result:
        like = call.single().tensor
        return filled(emit, value, like.shape, call.dtype("dtype") or like.dtype)

    return rule


def _full_like(emit: Emitter, call: Call) -> Result:
    like, value = call.tensors(2)
    return filled(emit, value, like.tensor.shape, call.dtype("dtype") or like.tensor.dtype)


RULES: Mapping[str, Rule] = {
    "full_like": _full_like,
    "ones_like": _filled_like(1),
    "zeros_like": _filled_like(0),
    "collapse_sum_like": _collapse_sum_like,
    "meshgrid": _meshgrid,
    "scatter_elements": direct("scatter_elements", 3, axis=axis(0), reduction=text("update")),
    "squeeze": direct("squeeze", axis=integers(None)),
}
