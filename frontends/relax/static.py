"""Operands that must be constants: Relax passes shapes, axes and bounds as operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import accumulator_dtype, axes_of, axis_of
from tilewright.ir.nodes import Value
from tilewright.ir.types import TensorType, storage_dtype

#: Tensors that are made from nothing become constants up to this size.
MAX_CONSTANT_BYTES = 1 << 30


def array_of(emit: Emitter, args: Sequence[Result], index: int, what: str) -> np.ndarray:
    """Operand `index` as an array: a constant, or a tuple of constant scalars."""
    if index >= len(args):
        raise InputError(f"expected at least {index + 1} arguments, got {len(args)}")
    given = args[index]
    if isinstance(given, tuple):
        return np.asarray([array_of(emit, given, i, what).reshape(()).item() for i in range(len(given))])
    known = emit.known(given)
    if known is None:
        raise UnsupportedError(f"expected {what} to be a constant, got {emit.tensor(args, index).type}")
    return known


def integers(emit: Emitter, args: Sequence[Result], index: int, what: str) -> tuple[int, ...]:
    """Operand `index` as integers."""
    return tuple(int(v) for v in array_of(emit, args, index, what).reshape(-1))


def number(emit: Emitter, args: Sequence[Result], index: int, what: str) -> float | int | bool:
    """Operand `index` as one number."""
    known = array_of(emit, args, index, what)
    if known.size != 1:
        raise InputError(f"expected {what} to be one number, got an array of shape {known.shape}")
    value: float | int | bool = known.reshape(()).item()
    return value


def is_absent(args: Sequence[Result], index: int) -> bool:
    """Whether an optional operand is left out."""
    return index >= len(args) or args[index] is None


def filled(emit: Emitter, shape: Sequence[int], dtype: str, value: float | int) -> Value:
    """A constant of one value."""
    kind = TensorType(dtype, tuple(shape))
    if kind.nbytes > MAX_CONSTANT_BYTES:
        raise InputError(f"expected a constant of at most {MAX_CONSTANT_BYTES} bytes, got {kind}")
    return emit.constant(np.full(kind.shape, value, storage_dtype(dtype)))


def scalar(emit: Emitter, value: float | int, like: Value) -> Value:
    """A rank-0 constant of the dtype of `like`."""
    return emit.constant(np.asarray(value).astype(storage_dtype(like.tensor.dtype)))


def cast(emit: Emitter, x: Value, dtype: str) -> Value:
    """`x` as `dtype`."""
    return x if x.tensor.dtype == dtype else emit.value("cast", x, dtype=dtype)


def held(emit: Emitter, x: Value) -> Value:
    """`x` in the dtype in which compositions are computed: float32 for 16-bit floats."""
    return cast(emit, x, accumulator_dtype(x.tensor.dtype))


def transposed(emit: Emitter, x: Value, axes: Sequence[int]) -> Value:
    """`x` with its axes in this order."""
    return x if tuple(axes) == tuple(range(len(axes))) else emit.value("transpose", x, axes=tuple(axes))


def reshaped(emit: Emitter, x: Value, shape: Sequence[int]) -> Value:
    """`x` with this shape."""
    return x if x.tensor.shape == tuple(shape) else emit.value("reshape", x, newshape=tuple(shape))


def axis_in(x: Value, axis: int) -> int:
    """`axis` of `x` counted from the front."""
    return axis_of(axis, x.tensor.rank, "axis")


def axes_in(x: Value, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Axes of `x` counted from the front, in rising order; None means all."""
    return tuple(sorted(axes_of(range(x.tensor.rank) if axes is None else axes, x.tensor.rank, "axis")))
