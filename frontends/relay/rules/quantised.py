"""Relay's qnn operators: changes of scale, sums, products, functions and layers of quantised tensors.

Scales become fixed-point factors as TVM chooses them, so that integer results are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import frexp

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.quantisation import (
    centred,
    dequantised,
    is_zero,
    limits,
    quantised,
    rounded_half_away,
    saturated,
    spread,
)
from tilewright.frontends.relay.rules.layers import RULES as LAYERS
from tilewright.frontends.tvm.rules.windows import RULES as WINDOWS
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import axis_of
from tilewright.ir.nodes import Value
from tilewright.ir.types import BYTES, numpy_dtype

#: TVM's codes of the dtypes that its simulated operators simulate; 0 is none
_SIMULATED = {1: "i8", 2: "u8", 3: "i32"}
#: bits of the fraction of qnn.softmax, and of what it quantises to
_FRACTION_BITS, _RESULT_BITS = 30, 8
_quantised = partial(quantised, half_even=False)


def _same(emit: Emitter, a: Value, b: Value) -> bool:
    """Return whether two parameters are known to be one and the same number."""
    x, y = emit.known(a), emit.known(b)
    return x is not None and y is not None and x.size == y.size == 1 and x.item() == y.item()


def _scales_of(emit: Emitter, value: Value, what: str) -> np.ndarray:
    """The numbers of a constant scale, in double precision."""
    return emit.static(value, what).reshape(-1).astype(np.float64)


def _line(emit: Emitter, numbers: np.ndarray) -> Value:
    """A constant vector; a scalar where it has one element."""
    return emit.constant(numbers if numbers.size > 1 else numbers.reshape(()))


def _fixed_point(factor: float) -> tuple[int, int]:
    """(m, s) with factor = m * 2**(s - 31) up to rounding of m, which has 31 bits."""
    fraction, exponent = frexp(factor)
    mantissa = int(np.floor(fraction * (1 << 31) + 0.5))
    if mantissa == 1 << 31:
        mantissa, exponent = mantissa >> 1, exponent + 1
    return (mantissa, exponent) if factor else (0, 0)


def _times(emit: Emitter, x: Value, factors: np.ndarray, axis: int, upward: bool = True) -> Value:
    """Integers of 32 bits times constant positive factors (one, or one along `axis`), rounded to integers.

    Halves go up, or away from zero where `upward` is false.
    """
    if (factors == 1).all():
        return x
    pairs = [_fixed_point(float(f)) for f in factors]
    # A product that is shifted by 62 or more becomes zero.
    pairs = [(m, s) if s > -31 else (0, 0) for m, s in pairs]
    if any(s > 31 for _, s in pairs):
        raise UnsupportedError(f"expected a ratio of scales below 2**31, got {factors.max()}")

    def constant(numbers: list[int]) -> Value:
        return spread(emit, _line(emit, np.asarray(numbers, np.int64)), x.tensor.rank, axis)

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


def _rounded(emit: Emitter, x: Value, upward: bool) -> Value:
    """Real numbers rounded to whole ones; halves go up, or away from zero."""
    up = emit.value("floor", emit.op("add", x, 0.5))
    if upward:
        return up
    down = emit.value("ceil", emit.op("subtract", x, 0.5))
    return emit.value("where", emit.op("less", x, 0), down, up)


def _requantised(
    emit: Emitter,
    x: Value,
    source: tuple[Value, Value],
    target: tuple[Value, Value],
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
    out_scale = _scales_of(emit, target[0], "the output scale")
    if out_scale.size != 1 or not out_scale.all():
        raise InputError(f"expected one output scale that is not zero, got {out_scale}")
    factors = _scales_of(emit, source[0], "the input scale") / out_scale
    if compute == "i64":
        scaled = _times(emit, centred(emit, x, source[1], axis), factors, axis, upward)
        if not is_zero(emit, target[1]):
            zero = spread(emit, target[1], x.tensor.rank, axis)
            scaled = emit.value("add", scaled, emit.cast(zero, "i32"))
        return saturated(emit, scaled, dtype)
    real = centred(emit, x, source[1], axis, compute)
    line = _line(emit, factors.astype(numpy_dtype(compute)))
    real = emit.value("multiply", real, spread(emit, line, x.tensor.rank, axis))
    if not is_zero(emit, target[1]):
        zero = spread(emit, target[1], x.tensor.rank, axis)
        real = emit.value("add", real, emit.cast(zero, compute))
    return saturated(emit, saturated(emit, _rounded(emit, real, upward), "i32"), dtype)


def _requantised_or_cast(
    emit: Emitter, x: Value, source: tuple[Value, Value], target: tuple[Value, Value], axis: int = -1
) -> Value:
    """As `_requantised`, in 32 bits; numbers whose scale and zero point stay are only converted."""
    if _same(emit, source[0], target[0]) and _same(emit, source[1], target[1]):
        return emit.cast(x, "i32")
    return _requantised(emit, x, source, target, axis=axis)


def _quantize(emit: Emitter, call: Call) -> Result:
    x, scale, zero = call.tensors(3)
    axis, dtype = call.integer("axis", -1), call.dtype("out_dtype") or "i8"
    return _quantised(emit, x, scale, zero, axis, dtype)


def _dequantize(emit: Emitter, call: Call) -> Result:
    x, scale, zero = call.tensors(3)
    axis, dtype = call.integer("axis", -1), call.dtype("out_dtype") or "f32"
    return dequantised(emit, x, scale, zero, axis, dtype)


def _requantize(emit: Emitter, call: Call) -> Result:
    """Unless the text says otherwise, TVM rounds halves up and computes in fixed point."""
    x, *params = call.tensors(5)
    rounding, compute = call.text("rounding", "None"), call.text("compute_dtype", "None")
    if rounding not in ("None", "UPWARD", "TONEAREST"):
        raise InputError(f"expected rounding UPWARD or TONEAREST, got '{rounding}'")
    computed = {"None": "i64", "int64": "i64", "float32": "f32", "float64": "f64"}
    if compute not in computed:
        raise InputError(f"expected compute_dtype among int64, float32, float64, got '{compute}'")
    return _requantised(
        emit, x, (params[0], params[1]), (params[2], params[3]), axis=call.integer("axis", -1),
        dtype=call.dtype("out_dtype") or "i8", compute=computed[compute],
        rounding="UPWARD" if rounding == "None" else rounding,
    )  # fmt: skip


def _sum(name: str, back: str) -> Rule:
    """Both operands under the scale of the result; `back` mends how often its zero point counts."""

    def rule(emit: Emitter, call: Call) -> Result:
        a, b, *params = call.tensors(8)
        target = (params[4], params[5])
        left = _requantised_or_cast(emit, a, (params[0], params[1]), target, call.integer("lhs_axis", -1))
        right = _requantised_or_cast(emit, b, (params[2], params[3]), target, call.integer("rhs_axis", -1))
        total = emit.value(name, left, right)
        zero = emit.cast(spread(emit, params[5], 0), "i32")
        return saturated(emit, emit.value(back, total, zero), a.tensor.dtype)

    return rule


def _product(emit: Emitter, call: Call) -> Result:
    a, b, *params = call.tensors(8)
    axes = [call.integer(name, -1) for name in ("lhs_axis", "rhs_axis")]
    scales = [_scales_of(emit, params[k], "the scale of an operand") for k in (0, 2)]
    if max(s.size for s in scales) > 1 and axes[0] % a.tensor.rank != axes[1] % b.tensor.rank:
        raise InputError(f"expected scales along the same axis of both operands, got {axes}")
    product = emit.value(
        "multiply", centred(emit, a, params[1], axes[0]), centred(emit, b, params[3], axes[1])
    )
    # TVM multiplies the scales in single precision.
    scale = _line(emit, (scales[0] * scales[1]).astype(np.float32))
    pair = (scale, emit.full(0, "i32"))
    return _requantised(emit, product, pair, (params[4], params[5]), axis=axes[0], dtype=a.tensor.dtype)


def _concatenate(emit: Emitter, call: Call) -> Result:
    if call.count != 5:
        raise InputError(f"expected 5 arguments, got {call.count}")
    parts, scales, zeros = (call.fields(k) for k in range(3))
    target = (call.tensor(3), call.tensor(4))
    if not len(parts) == len(scales) == len(zeros):
        raise InputError(f"expected as many scales and zero points as tensors ({len(parts)})")
    out = []
    for part, scale, zero in zip(parts, scales, zeros, strict=True):
        if _same(emit, scale, target[0]) and _same(emit, zero, target[1]):
            out.append(part)
        else:
            out.append(_requantised(emit, part, (scale, zero), target, dtype=part.tensor.dtype))
    return emit.value("concatenate", *out, axis=call.integer("axis", 0))


def _function(name: str) -> Rule:
    """Real numbers in between."""

    def rule(emit: Emitter, call: Call) -> Result:
        x, scale, zero, *target = call.tensors(5)
        real = emit.value(name, dequantised(emit, x, scale, zero, -1, "f32"))
        return _quantised(emit, real, target[0], target[1], -1, x.tensor.dtype)

    return rule


def _hardswish(emit: Emitter, call: Call) -> Result:
    x, scale, zero, *target = call.tensors(5)
    real = dequantised(emit, x, scale, zero, -1, "f32")
    gate = emit.value("clip", emit.op("add", real, 3), a_min=0.0, a_max=6.0)
    out = emit.op("divide", emit.value("multiply", real, gate), 6)
    return _quantised(emit, out, target[0], target[1], -1, x.tensor.dtype)


def _leaky_relu(emit: Emitter, call: Call) -> Result:
    """Below the zero point: alpha * x' + (1 - alpha) * zero, x' under the scale of the result."""
    x, scale, zero, *target = call.tensors(5)
    alpha = call.real("alpha", 0.25)
    wide, zero = emit.cast(x, "i32"), emit.cast(spread(emit, zero, 0), "i32")
    moved = _requantised_or_cast(emit, wide, (scale, zero), (target[0], target[1]))
    out_zero = emit.cast(spread(emit, target[1], 0), "i32")
    slope = _times(emit, moved, np.asarray([alpha]), -1)
    rest = _times(emit, out_zero, np.asarray([1 - alpha]), -1)
    low = emit.value("add", slope, rest)
    return saturated(emit, emit.value("where", emit.value("less", wide, zero), low, moved), x.tensor.dtype)


def _softmax(emit: Emitter, call: Call) -> Result:
    """Exponentials by shifts of integers (arXiv 2207.01405, algorithm 1), as TVM computes them."""
    x, scale, zero, *target = call.tensors(5)
    axis = axis_of(call.integer("axis", -1), x.tensor.rank, "axis")

    def whole(name: str, value: Value) -> Value:
        return emit.value(name, value, axis=(axis,), keepdims=True)

    op = emit.op
    step = int(np.floor(1 / _scales_of(emit, scale, "the scale")[0] + 0.5))
    data = centred(emit, x, zero)
    data = op("subtract", data, whole("max", data))
    # x * log2(e) is about x + x / 2 - x / 16.
    power = op("subtract", op("add", data, op("right_shift", data, 1)), op("right_shift", data, 4))
    exponent = emit.value("clip", op("divide", power, -step), a_min=0, a_max=20)
    rest = op("subtract", power, op("multiply", exponent, -step))
    mantissa = op("add", op("right_shift", rest, 1), step)
    exps = op("left_shift", mantissa, op("subtract", whole("max", exponent), exponent))
    share = op("multiply", op("divide", emit.full(1 << _FRACTION_BITS, "i32"), whole("sum", exps)), exps)
    shifted = op("right_shift", share, _FRACTION_BITS - (_RESULT_BITS - 1))
    pair = (emit.full(2.0 ** (1 - _RESULT_BITS), "f32"), emit.full(0, "i32"))
    return _requantised(emit, shifted, pair, (target[0], target[1]), dtype="i8")


def _avg_pool2d(emit: Emitter, call: Call) -> Result:
    x, scale, zero, *target = call.tensors(5)
    moved = _requantised_or_cast(emit, x, (scale, zero), (target[0], target[1]))
    call.inputs = (moved,)
    pooled = WINDOWS["nn.avg_pool2d"](emit, call)
    return saturated(emit, pooled, x.tensor.dtype)


def _simulated_quantize(emit: Emitter, call: Call) -> Result:
    x, code, scale, zero = call.tensors(4)
    dtype = _simulated_dtype(emit, code)
    axis, rank, real = call.integer("axis", -1), x.tensor.rank, x.tensor.dtype
    if not dtype:
        return x
    ratio = emit.value("divide", x, emit.cast(spread(emit, scale, rank, axis), real))
    whole = rounded_half_away(emit, ratio)
    moved = emit.value("add", whole, emit.cast(spread(emit, zero, rank, axis), real))
    low, high = limits(dtype, real=True)
    return emit.value("clip", moved, a_min=low, a_max=high)


def _simulated_dequantize(emit: Emitter, call: Call) -> Result:
    x, code, scale, zero = call.tensors(4)
    axis, rank, real = call.integer("axis", -1), x.tensor.rank, x.tensor.dtype
    call.drop("out_dtype")
    if not _simulated_dtype(emit, code):
        return x
    moved = emit.value("subtract", x, emit.cast(spread(emit, zero, rank, axis), real))
    return emit.value("multiply", moved, emit.cast(spread(emit, scale, rank, axis), real))


def _simulated_dtype(emit: Emitter, code: Value) -> str:
    (number,) = emit.integers(code, "the code of a dtype")
    if number not in (0, *_SIMULATED):
        raise InputError(f"expected a code of a dtype among 0 to {max(_SIMULATED)}, got {number}")
    return _SIMULATED.get(number, "")


def _layer(inner: Rule, channels: str) -> Rule:
    """`inner` on integers; operands are data, weight, their zero points, and scales that only say what an
    integer stands for. Zeros that pad the centred data are its zero point.

    channels: the dimension of the weight that zero points may differ along, in letters of its layout; a
    digit is the dimension itself.
    """

    def rule(emit: Emitter, call: Call) -> Result:
        data, weight, zero, weight_zero, *_ = call.tensors(6)
        dtype = call.dtype("out_dtype") or "i32"
        if dtype not in ("i16", "i32", "i64"):
            raise InputError(f"expected out_dtype among int16, int32, int64, got {dtype}")
        wide = "i64" if dtype == "i64" else "i32"
        plain = is_zero(emit, zero) and is_zero(emit, weight_zero)
        kinds = {data.tensor.dtype, weight.tensor.dtype}
        if plain and (len(kinds) == 1 or kinds <= {*BYTES}):
            call.give("out_dtype", "int64" if wide == "i64" else "int32")
            call.inputs = (data, weight)
        else:
            axis = _axis(call, weight, channels)
            call.inputs = (
                centred(emit, data, zero, dtype=wide),
                centred(emit, weight, weight_zero, axis, wide),
            )
        return emit.cast(inner(emit, call), dtype)

    return rule


def _axis(call: Call, weight: Value, channels: str) -> int:
    if channels.isdigit():
        return int(channels)
    layout = call.text("kernel_layout", channels)
    call.give("kernel_layout", layout)
    if "O" not in layout or len(layout) != weight.tensor.rank:
        raise InputError(f"expected a kernel layout with O for {weight.type}, got '{layout}'")
    return layout.index("O")


RULES: Mapping[str, Rule] = {
    "qnn.quantize": _quantize,
    "qnn.dequantize": _dequantize,
    "qnn.requantize": _requantize,
    "qnn.add": _sum("add", "subtract"),
    "qnn.subtract": _sum("subtract", "add"),
    "qnn.mul": _product,
    "qnn.concatenate": _concatenate,
    **{
        f"qnn.{name}": _function(name)
        for name in ("tanh", "exp", "sqrt", "rsqrt", "erf", "sigmoid", "log", "abs")
    },
    "qnn.hardswish": _hardswish,
    "qnn.leaky_relu": _leaky_relu,
    "qnn.softmax": _softmax,
    "qnn.avg_pool2d": _avg_pool2d,
    "qnn.simulated_quantize": _simulated_quantize,
    "qnn.simulated_dequantize": _simulated_dequantize,
    "qnn.conv2d": _layer(WINDOWS["nn.conv2d"], "OIHW"),
    "qnn.conv2d_transpose": _layer(WINDOWS["nn.conv2d_transpose"], "IOHW"),
    "qnn.dense": _layer(LAYERS["nn.dense"], "0"),
    "qnn.batch_matmul": _layer(LAYERS["nn.batch_matmul"], "1"),
}
