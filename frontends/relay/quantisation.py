"""Arithmetic of quantised tensors: a real number is scale * (integer - zero point).

Scales become fixed-point factors as TVM chooses them, so that integer results are exact.
"""

from __future__ import annotations

from math import frexp

import numpy as np

from tilewright.frontends.emitter import Emitter
from tilewright.frontends.relay.rules.numbers import rounded_half_away
from tilewright.frontends.relay.static_operands import static_array
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import numpy_dtype

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
    low, high = limits(dtype, real=x.tensor.dtype.startswith("f"))
    if x.tensor.dtype == dtype:
        return x
    return emit.value("cast", emit.value("clip", x, a_min=low, a_max=high), dtype=dtype)


def spread(emit: Emitter, value: Value, rank: int, axis: int = -1) -> Value:
    """One number, or one per index of `axis`, shaped to broadcast against tensors of `rank`."""
    if value.tensor.size == 1:
        return emit.value("reshape", value, newshape=()) if value.tensor.shape else value
    place = axis + rank if axis < 0 else axis
    if value.tensor.rank != 1 or not 0 <= place < rank:
        raise InputError(f"expected one number or one per index of an axis, got {value.type}")
    shape = [value.tensor.size if d == place else 1 for d in range(rank)]
    return emit.value("reshape", value, newshape=tuple(shape))


def converted(emit: Emitter, x: Value, dtype: str) -> Value:
    """`x` as `dtype`."""
    return x if x.tensor.dtype == dtype else emit.value("cast", x, dtype=dtype)


def is_zero(emit: Emitter, value: Value) -> bool:
    """Whether `value` is known to be zero."""
    array = emit.known(value)
    return array is not None and not array.any()


def centred(emit: Emitter, x: Value, zero: Value, axis: int = -1, dtype: str = "i32") -> Value:
    """x minus its zero point, in `dtype`."""
    x = converted(emit, x, dtype)
    if is_zero(emit, zero):
        return x
    return emit.value("subtract", x, converted(emit, spread(emit, zero, x.tensor.rank, axis), dtype))


def same(emit: Emitter, a: Value, b: Value) -> bool:
    """Whether two parameters are known to be one and the same number."""
    x, y = emit.known(a), emit.known(b)
    return x is not None and y is not None and x.size == y.size == 1 and x.item() == y.item()


def scales_of(emit: Emitter, value: Value, what: str) -> np.ndarray:
    """The numbers of a constant scale, in double precision."""
    return static_array(emit, value, what).reshape(-1).astype(np.float64)


def fixed_point(factor: float) -> tuple[int, int]:
    """(m, s) with factor = m * 2**(s - 31) up to rounding of m, which has 31 bits."""
    fraction, exponent = frexp(factor)
    mantissa = int(np.floor(fraction * (1 << 31) + 0.5))
    if mantissa == 1 << 31:
        mantissa, exponent = mantissa >> 1, exponent + 1
    return (mantissa, exponent) if factor else (0, 0)


def times(emit: Emitter, x: Value, factors: np.ndarray, axis: int, upward: bool = True) -> Value:
    """Integers of 32 bits times constant positive factors (one, or one along `axis`), rounded to integers.

    Halves go up, or away from zero where `upward` is false.
    """
    if (factors == 1).all():
        return x
    pairs = [fixed_point(float(f)) for f in factors]
    # What is shifted by 62 or more is zero.
    pairs = [(m, s) if s > -31 else (0, 0) for m, s in pairs]
    if any(s > 31 for _, s in pairs):
        raise UnsupportedError(f"expected a ratio of scales below 2**31, got {factors.max()}")

    def constant(numbers: list[int]) -> Value:
        array = np.asarray(numbers, np.int64)
        line = emit.constant(array if len(numbers) > 1 else array.reshape(()))
        return spread(emit, line, x.tensor.rank, axis)

    places = [31 + max(-s, 0) for _, s in pairs]
    wide = emit.value("cast", x, dtype="i64")
    product = emit.value("multiply", wide, constant([m << max(s, 0) for m, s in pairs]))
    half = constant([1 << (p - 1) for p in places])
    if not upward:
        less = constant([(1 << (p - 1)) - 1 for p in places])
        positive = emit.value("greater_equal", product, constant([0]))
        half = emit.value("where", positive, half, less)
    shifted = emit.value("right_shift", emit.value("add", product, half), constant(places))
    return emit.value("cast", shifted, dtype="i32")


def rounded(emit: Emitter, x: Value, upward: bool) -> Value:
    """Real numbers rounded to whole ones; halves go up, or away from zero."""
    half = emit.constant(np.asarray(0.5, numpy_dtype(x.tensor.dtype)))
    up = emit.value("floor", emit.value("add", x, half))
    if upward:
        return up
    zero = emit.constant(np.asarray(0, numpy_dtype(x.tensor.dtype)))
    down = emit.value("ceil", emit.value("subtract", x, half))
    return emit.value("where", emit.value("less", x, zero), down, up)


def requantised(
    emit: Emitter,
    x: Value,
    given: tuple[Value, Value],
    wanted: tuple[Value, Value],
    *,
    axis: int = -1,
    dtype: str = "i32",
    rounding: str = "UPWARD",
    compute: str = "i64",
) -> Value:
    """Quantised numbers under another scale and zero point; each pair is (scale, zero point).

    Scales must be constants. compute: i64 for fixed point, f32 or f64. Results saturate at `dtype`.
    """
    upward = rounding == "UPWARD"
    out_scale = scales_of(emit, wanted[0], "the output scale")
    if out_scale.size != 1 or not out_scale.all():
        raise InputError(f"expected one output scale that is not zero, got {out_scale}")
    factors = scales_of(emit, given[0], "the input scale") / out_scale
    if compute == "i64":
        scaled = times(emit, centred(emit, x, given[1], axis), factors, axis, upward)
        if not is_zero(emit, wanted[1]):
            zero = spread(emit, wanted[1], x.tensor.rank, axis)
            scaled = emit.value("add", scaled, converted(emit, zero, "i32"))
        return saturated(emit, scaled, dtype)
    real = centred(emit, x, given[1], axis, compute)
    array = factors.astype(numpy_dtype(compute))
    line = emit.constant(array if array.size > 1 else array.reshape(()))
    real = emit.value("multiply", real, spread(emit, line, x.tensor.rank, axis))
    if not is_zero(emit, wanted[1]):
        zero = spread(emit, wanted[1], x.tensor.rank, axis)
        real = emit.value("add", real, converted(emit, zero, compute))
    return saturated(emit, saturated(emit, rounded(emit, real, upward), "i32"), dtype)


def requantised_or_cast(
    emit: Emitter, x: Value, given: tuple[Value, Value], wanted: tuple[Value, Value], axis: int = -1
) -> Value:
    """As `requantised`, in 32 bits; numbers whose scale and zero point stay are only converted."""
    if same(emit, given[0], wanted[0]) and same(emit, given[1], wanted[1]):
        return converted(emit, x, "i32")
    return requantised(emit, x, given, wanted, axis=axis)


def quantised(emit: Emitter, x: Value, scale: Value, zero: Value, axis: int, dtype: str) -> Value:
    """Real numbers as integers: x / scale rounded, plus the zero point, saturated at `dtype`."""
    rank, held = x.tensor.rank, x.tensor.dtype
    ratio = emit.value("divide", x, converted(emit, spread(emit, scale, rank, axis), held))
    whole = rounded_half_away(emit, ratio)
    if not is_zero(emit, zero):
        whole = emit.value("add", whole, converted(emit, spread(emit, zero, rank, axis), held))
    return saturated(emit, whole, dtype)


def dequantised(emit: Emitter, x: Value, scale: Value, zero: Value, axis: int, dtype: str) -> Value:
    """scale * (x - zero point), computed in float32."""
    rank = x.tensor.rank
    real = emit.value("cast", centred(emit, x, zero, axis), dtype="f32")
    scaled = emit.value("multiply", real, converted(emit, spread(emit, scale, rank, axis), "f32"))
    return converted(emit, scaled, dtype)
