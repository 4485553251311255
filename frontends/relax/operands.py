"""Operands that must be constants: Relax passes shapes, axes and bounds as operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.importing.call import Call
from tilewright.frontends.importing.emitter import Emitter
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import axes_of, axis_of
from tilewright.ir.nodes import Value


def array_of(emit: Emitter, call: Call, index: int, what: str) -> np.ndarray:
    """Operand `index` as an array: a constant, or a tuple of constant scalars."""
    if index >= call.count:
        raise InputError(f"expected at least {index + 1} arguments, got {call.count}")
    value = call.inputs[index]
    if isinstance(value, tuple):
        fields = Call(value)
        return np.asarray([array_of(emit, fields, i, what).reshape(()).item() for i in range(len(value))])
    known = emit.known(value)
    if known is None:
        raise UnsupportedError(f"expected {what} to be a constant, got {call.tensor(index).type}")
    return known


def integers(emit: Emitter, call: Call, index: int, what: str) -> tuple[int, ...]:
    """Operand `index` as integers."""
    return tuple(int(v) for v in array_of(emit, call, index, what).reshape(-1))


def number(emit: Emitter, call: Call, index: int, what: str) -> float | int | bool:
    """Operand `index` as one number."""
    known = array_of(emit, call, index, what)
    if known.size != 1:
        raise InputError(f"expected {what} to be one number, got an array of shape {known.shape}")
    value: float | int | bool = known.reshape(()).item()
    return value


def axis_in(x: Value, axis: int) -> int:
    """`axis` of `x` counted from the front."""
    return axis_of(axis, x.tensor.rank, "axis")


def axes_in(x: Value, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Axes of `x` counted from the front, in rising order; None means all."""
    return tuple(sorted(axes_of(range(x.tensor.rank) if axes is None else axes, x.tensor.rank, "axis")))
