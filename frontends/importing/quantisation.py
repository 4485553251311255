"""Quantised tensors, as importers of every format build them: a number is scale * (integer - zero point).

A scale or zero point is one number, one per index of an axis, or one per element.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tilewright.frontends.importing.emitter import Emitter
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import accumulator_dtype
from tilewright.ir.nodes import Value
from tilewright.ir.types import BYTES, FLOAT8, FLOATS, numpy_dtype, storage_dtype

#: The smallest and largest value that conversion from float32 keeps, for 32 bits; other integers fit.
_I32_IN_F32 = (-(2**31), 2**31 - 128)


def limits(dtype: str, real: bool = False) -> tuple[int, int]:
    """The range of an integer dtype; `real`: as float32 numbers within it."""
    if dtype == "i32" and real:
        return _I32_IN_F32
    info = np.iinfo(numpy_dtype(dtype))
    return int(info.min), int(info.max)


def saturated(emit: Emitter, x: Value, dtype: str) -> Value:
    """`x` clipped to the range of `dtype` and converted."""
    low, high = limits(dtype, real=x.tensor.dtype in FLOATS)
    if x.tensor.dtype == dtype:
        return x
    return emit.value("cast", emit.value("clip", x, a_min=low, a_max=high), dtype=dtype)


def narrowed(emit: Emitter, x: Value, dtype: str, *, saturate: bool) -> Value:
    """`x` converted to `dtype`; beyond the largest float of one byte that, where `saturate`, else nan."""
    if saturate or dtype not in FLOAT8 or x.tensor.dtype == dtype:
        return emit.cast(x, dtype)
    # the largest number and what is rounded to it: its last digit is even, and half of the next one a tie
    most = float(ml_dtypes.finfo(storage_dtype(dtype)).max)  # type: ignore[no-untyped-call]
    real = emit.cast(x, "f32")
    inside = emit.op("less_equal", emit.value("abs", real), most + (most - _before(most, dtype)) / 2)
    return emit.cast(emit.value("where", inside, real, emit.full(float("nan"), "f32")), dtype)


def _before(number: float, dtype: str) -> float:
    """The next smaller one of the numbers of a dtype."""
    bits = np.asarray(number).astype(storage_dtype(dtype)).view(np.uint8) - np.uint8(1)
    return float(np.asarray(bits).view(storage_dtype(dtype)))


def spread(emit: Emitter, value: Value, rank: int, axis: int = -1) -> Value:
    """One number, or one per index of `axis`, shaped to broadcast against tensors of `rank`."""
    if value.tensor.size == 1:
        return emit.reshape(value, ())
    place = axis + rank if axis < 0 else axis
    if value.tensor.rank != 1 or not 0 <= place < rank:
        raise InputError(f"expected one number or one per index of an axis, got {value.type}")
    return emit.along(value, place, rank)


def _beside(emit: Emitter, value: Value, x: Value, axis: int, dtype: str) -> Value:
    """A scale or zero point of `x` as it broadcasts to it, in `dtype`."""
    emit.numbers.add(value)
    each = x.tensor.rank > 1 and value.tensor.shape == x.tensor.shape
    return emit.cast(value if each else spread(emit, value, x.tensor.rank, axis), dtype)


def is_zero(emit: Emitter, value: Value) -> bool:
    """Return whether `value` is known to be zero."""
    array = emit.known(value)
    return array is not None and not array.any()


def centred(emit: Emitter, x: Value, zero: Value | None, axis: int = -1, dtype: str = "i32") -> Value:
    """x minus its zero point, in `dtype`."""
    if x.tensor.dtype in FLOAT8 and zero is not None and not is_zero(emit, zero):
        raise UnsupportedError(f"expected no zero point but 0 for {x.type}, got {zero.type}")
    x = emit.cast(x, dtype)
    if zero is None or is_zero(emit, zero):
        return x
    return emit.value("subtract", x, _beside(emit, zero, x, axis, dtype))


def exact_factors(
    emit: Emitter, data: Value, zero: Value | None, weight: Value, weight_zero: Value | None, axis: int
) -> tuple[Value, Value, Value | None]:
    """Factors of a product whose sums are integers, and what their product is too large by.

    Bytes, signed or not, stay bytes, which tensor cores multiply exactly: data whose zero point is one number
    stays as it is where the weights are signed and centred at zero, for
    sum (x - z) w = sum x w - z sum w. The third value is z, None for zero. All else is centred in 32 bits.

    axis: that along which the weights' zero points differ.
    """
    plain = weight.tensor.dtype == "i8" and (weight_zero is None or is_zero(emit, weight_zero))
    one = zero is None or zero.tensor.size == 1
    if not plain or not one or data.tensor.dtype not in BYTES:
        return centred(emit, data, zero), centred(emit, weight, weight_zero, axis), None
    offset = None if zero is None or is_zero(emit, zero) else emit.cast(emit.reshape(zero, ()), "i32")
    return data, weight, offset


def without_offset(emit: Emitter, product: Value, offset: Value | None, sums: Value) -> Value:
    """A product of `exact_factors` less its offset times the sums of the weights, shaped to broadcast."""
    if offset is None:
        return product
    return emit.value("subtract", product, emit.value("multiply", offset, sums))


def rounded_half_away(emit: Emitter, x: Value) -> Value:
    """To the nearest whole number, halves away from zero, as TVM's `round` on every target."""
    if x.tensor.dtype not in FLOATS:
        return x
    whole = emit.value("trunc", x)
    rest = emit.value("abs", emit.value("subtract", x, whole))
    away = emit.value("add", whole, emit.value("sign", x))
    return emit.value("where", emit.op("greater_equal", rest, 0.5), away, whole)


def quantised(
    emit: Emitter,
    x: Value,
    scale: Value,
    zero: Value | None,
    axis: int,
    dtype: str,
    *,
    half_even: bool = True,
    saturate: bool = True,
) -> Value:
    """Real numbers as integers: x / scale rounded, plus the zero point, saturated at `dtype`.

    Halves are rounded to even numbers, or away from zero. To floats of one byte x / scale is converted, whose
    zero point is 0; `saturate`: as in `narrowed`, which integers do anyway.
    """
    real = x.tensor.dtype
    ratio = emit.value("divide", x, _beside(emit, scale, x, axis, real))
    if dtype in FLOAT8:
        if zero is not None and not is_zero(emit, zero):
            raise UnsupportedError(f"expected no zero point but 0 for {dtype}, got {zero.type}")
        return narrowed(emit, ratio, dtype, saturate=saturate)
    whole = emit.value("round", ratio) if half_even else rounded_half_away(emit, ratio)
    if zero is not None and not is_zero(emit, zero):
        whole = emit.value("add", whole, _beside(emit, zero, x, axis, real))
    return saturated(emit, whole, dtype)


def _centre_dtype(dtype: str, wide: str) -> str:
    """The dtype in which zero points are taken off numbers of a dtype that stand for numbers of `wide`."""
    if dtype in FLOAT8:
        return wide
    return dtype if dtype in FLOATS else "i32"


def dequantised(emit: Emitter, x: Value, scale: Value, zero: Value | None, axis: int, dtype: str) -> Value:
    """scale * (x - zero point), computed in the dtype of the scale, in float32 at least."""
    wide = accumulator_dtype(scale.tensor.dtype)
    whole = centred(emit, x, zero, axis, _centre_dtype(x.tensor.dtype, wide))
    real, factor = emit.cast(whole, wide), _beside(emit, scale, x, axis, wide)
    return emit.cast(emit.value("multiply", real, factor), dtype)
