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
    array = known_array(emit, value)
    if array is None:
        raise UnsupportedError(f"expected a constant as {what}, got {value.type}, which depends on inputs")
    return array


def known_array(emit: Emitter, value: Value) -> np.ndarray | None:
    """The array of `value`, computed where only small constants take part; None where it is not known."""
    array = emit.known(value)
    return _computed(emit, value) if array is None else array


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
    for op in needed:
        operands = [a for v in op.operands if (a := emit.known(v)) is not None]
        definition = op_def(op.name)
        if len(operands) < len(op.operands) or definition.evaluate is None:
            return None
        with np.errstate(all="ignore"):
            found = definition.evaluate(operands, dict(op.attrs))
        for result, array in zip(op.results, found, strict=True):
            emit.remember(result, array)
    return emit.known(value)


def _needed(emit: Emitter, value: Value) -> Sequence[Op] | None:
    """The ops that `value` is computed by, in order; None where an input or a tensor larger than a shape
    takes part."""
    out: dict[int, Op] = {}
    todo = [value]
    while todo:
        v = todo.pop()
        if emit.known(v) is not None:
            continue
        found = emit.producer(v)
        if found is None:
            return None
        place, op = found
        if any(isinstance(r.type, TensorType) and r.type.size > MAX_ELEMENTS for r in op.results):
            return None
        if place not in out:
            out[place] = op
            todo.extend(op.operands)
    return [out[place] for place in sorted(out)]
