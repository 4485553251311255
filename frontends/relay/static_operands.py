"""Operands that must be known at import: constants, and what graph ops compute from small constants."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import TensorType

#: Shapes are small; larger tensors are data and are not computed at import.
MAX_ELEMENTS = 4096


def static_array(emit: Emitter, value: Value, what: str) -> np.ndarray:
    """The array of `value`; raises UnsupportedError where it depends on inputs or is large."""
    array = emit.known(value)
    if array is None:
        array = _computed(emit, value)
    if array is None:
        raise UnsupportedError(f"expected a constant as {what}, got {value.type}, which depends on inputs")
    return array


def static_integers(emit: Emitter, value: Value, what: str) -> tuple[int, ...]:
    """The integers of `value`, in row-major order; errors as those of `static_array`."""
    array = static_array(emit, value, what)
    if not np.issubdtype(array.dtype, np.integer):
        raise UnsupportedError(f"expected integers as {what}, got {value.type}")
    return tuple(int(v) for v in array.reshape(-1))


def _computed(emit: Emitter, value: Value) -> np.ndarray | None:
    needed = _needed(emit, value)
    if needed is None:
        return None
    arrays: dict[Value, np.ndarray] = {}
    for op in needed:
        operands = [_array(emit, arrays, v) for v in op.operands]
        known = [a for a in operands if a is not None]
        definition = op_def(op.name)
        if len(known) < len(operands) or definition.evaluate is None:
            return None
        with np.errstate(all="ignore"):
            arrays.update(zip(op.results, definition.evaluate(known, dict(op.attrs)), strict=True))
    return arrays.get(value)


def _array(emit: Emitter, arrays: dict[Value, np.ndarray], value: Value) -> np.ndarray | None:
    found = emit.known(value)
    return arrays.get(value) if found is None else found


def _needed(emit: Emitter, value: Value) -> Sequence[Op] | None:
    """The ops that `value` is computed by, in order; None where one of them makes more than a shape holds."""
    wanted, out = {value}, []
    for op in reversed(emit.builder.ops):
        if wanted.isdisjoint(op.results) or op.name == "graph.constant":
            continue
        if any(isinstance(r.type, TensorType) and r.type.size > MAX_ELEMENTS for r in op.results):
            return None
        wanted.update(op.operands)
        out.append(op)
    return out[::-1]
