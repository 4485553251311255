"""Relay's qnn operators element by element: changes of scale, sums, products and functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.quantisation import (
    centred,
    converted,
    dequantised,
    limits,
    quantised,
    requantised,
    requantised_or_cast,
    same,
    saturated,
    scales_of,
    spread,
    times,
)
from tilewright.frontends.relay.rules.numbers import rounded_half_away
from tilewright.frontends.relay.rules.windows import RULES as WINDOWS
from tilewright.frontends.relay.static_operands import static_integers
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.operands import axis_of
from tilewright.ir.nodes import Value

#: TVM's codes of the dtypes that its simulated operators simulate; 0 is none
_SIMULATED = {1: "i8", 2: "u8", 3: "i32"}
#: bits of the fraction of qnn.softmax, and of what it quantises to
_FRACTION_BITS, _RESULT_BITS = 30, 8


def _quantize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, scale, zero = emit.tensors(args, 3)
    axis, dtype = attrs.integer("axis", -1), attrs.dtype("out_dtype") or "i8"
    return quantised(emit, x, scale, zero, axis, dtype)


def _dequantize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, scale, zero = emit.tensors(args, 3)
    axis, dtype = attrs.integer("axis", -1), attrs.dtype("out_dtype") or "f32"
    return dequantised(emit, x, scale, zero, axis, dtype)


def _requantize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Unless the text says otherwise, TVM rounds halves up and computes in fixed point."""
    x, *params = emit.tensors(args, 5)
    rounding, compute = attrs.text("rounding", "None"), attrs.text("compute_dtype", "None")
    if rounding not in ("None", "UPWARD", "TONEAREST"):
        raise InputError(f"expected rounding UPWARD or TONEAREST, got '{rounding}'")
    computed = {"None": "i64", "int64": "i64", "float32": "f32", "float64": "f64"}
    if compute not in computed:
        raise InputError(f"expected compute_dtype among int64, float32, float64, got '{compute}'")
    return requantised(
        emit, x, (params[0], params[1]), (params[2], params[3]), axis=attrs.integer("axis", -1),
        dtype=attrs.dtype("out_dtype") or "i8", compute=computed[compute],
        rounding="UPWARD" if rounding == "None" else rounding,
    )  # fmt: skip


def _sum(name: str, back: str) -> Rule:
    """Both operands under the scale of the result; `back` mends how often its zero point counts."""

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        a, b, *params = emit.tensors(args, 8)
        wanted = (params[4], params[5])
        left = requantised_or_cast(emit, a, (params[0], params[1]), wanted, attrs.integer("lhs_axis", -1))
        right = requantised_or_cast(emit, b, (params[2], params[3]), wanted, attrs.integer("rhs_axis", -1))
        total = emit.value(name, left, right)
        zero = converted(emit, spread(emit, params[5], 0), "i32")
        return saturated(emit, emit.value(back, total, zero), a.tensor.dtype)

    return rule


def _product(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    a, b, *params = emit.tensors(args, 8)
    axes = [attrs.integer(name, -1) for name in ("lhs_axis", "rhs_axis")]
    scales = [scales_of(emit, params[k], "the scale of an operand") for k in (0, 2)]
    if max(s.size for s in scales) > 1 and axes[0] % a.tensor.rank != axes[1] % b.tensor.rank:
        raise InputError(f"expected scales along the same axis of both operands, got {axes}")
    product = emit.value(
        "multiply", centred(emit, a, params[1], axes[0]), centred(emit, b, params[3], axes[1])
    )
    # TVM multiplies the scales in single precision.
    joined = (scales[0] * scales[1]).astype(np.float32)
    scale = emit.constant(joined if joined.size > 1 else joined.reshape(()))
    none = emit.constant(np.asarray(0, np.int32))
    return requantised(
        emit, product, (scale, none), (params[4], params[5]), axis=axes[0], dtype=a.tensor.dtype
    )


def _concatenate(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    if len(args) != 5:
        raise InputError(f"expected 5 arguments, got {len(args)}")
    parts, scales, zeros = (emit.fields(args, k) for k in range(3))
    wanted = (emit.tensor(args, 3), emit.tensor(args, 4))
    if not len(parts) == len(scales) == len(zeros):
        raise InputError(f"expected as many scales and zero points as tensors ({len(parts)})")
    out = []
    for part, scale, zero in zip(parts, scales, zeros, strict=True):
        if same(emit, scale, wanted[0]) and same(emit, zero, wanted[1]):
            out.append(part)
        else:
            out.append(requantised(emit, part, (scale, zero), wanted, dtype=part.tensor.dtype))
    return emit.value("concatenate", *out, axis=attrs.integer("axis", 0))


def _function(name: str) -> Rule:
    """Real numbers in between."""

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        x, scale, zero, *wanted = emit.tensors(args, 5)
        real = emit.value(name, dequantised(emit, x, scale, zero, -1, "f32"))
        return quantised(emit, real, wanted[0], wanted[1], -1, x.tensor.dtype)

    return rule


def _hardswish(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, scale, zero, *wanted = emit.tensors(args, 5)
    real = dequantised(emit, x, scale, zero, -1, "f32")
    three, six = (emit.constant(np.asarray(v, np.float32)) for v in (3, 6))
    gate = emit.value("clip", emit.value("add", real, three), a_min=0.0, a_max=6.0)
    out = emit.value("divide", emit.value("multiply", real, gate), six)
    return quantised(emit, out, wanted[0], wanted[1], -1, x.tensor.dtype)


def _leaky_relu(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Below the zero point: alpha * x' + (1 - alpha) * zero, x' under the scale of the result."""
    x, scale, zero, *wanted = emit.tensors(args, 5)
    alpha = attrs.real("alpha", 0.25)
    wide, zero = converted(emit, x, "i32"), converted(emit, spread(emit, zero, 0), "i32")
    moved = requantised_or_cast(emit, wide, (scale, zero), (wanted[0], wanted[1]))
    out_zero = converted(emit, spread(emit, wanted[1], 0), "i32")
    slope = times(emit, moved, np.asarray([alpha]), -1)
    rest = times(emit, out_zero, np.asarray([1 - alpha]), -1)
    low = emit.value("add", slope, rest)
    return saturated(emit, emit.value("where", emit.value("less", wide, zero), low, moved), x.tensor.dtype)


def _softmax(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Exponentials by shifts of integers (arXiv 2207.01405, algorithm 1), as TVM computes them."""
    x, scale, zero, *wanted = emit.tensors(args, 5)
    axis = axis_of(attrs.integer("axis", -1), x.tensor.rank, "axis")

    def number(value: int) -> Value:
        return emit.constant(np.asarray(value, np.int32))

    def whole(name: str, value: Value) -> Value:
        return emit.value(name, value, axis=(axis,), keepdims=True)

    def op(name: str, a: Value, b: Value) -> Value:
        return emit.value(name, a, b)

    step = int(np.floor(1 / scales_of(emit, scale, "the scale")[0] + 0.5))
    data = centred(emit, x, zero)
    data = op("subtract", data, whole("max", data))
    # x * log2(e) is about x + x / 2 - x / 16.
    power = op(
        "subtract", op("add", data, op("right_shift", data, number(1))), op("right_shift", data, number(4))
    )
    exponent = emit.value("clip", op("divide", power, number(-step)), a_min=0, a_max=20)
    rest = op("subtract", power, op("multiply", exponent, number(-step)))
    mantissa = op("add", op("right_shift", rest, number(1)), number(step))
    exps = op("left_shift", mantissa, op("subtract", whole("max", exponent), exponent))
    share = op("multiply", op("divide", number(1 << _FRACTION_BITS), whole("sum", exps)), exps)
    shifted = op("right_shift", share, number(_FRACTION_BITS - (_RESULT_BITS - 1)))
    unit = emit.constant(np.asarray(2.0 ** (1 - _RESULT_BITS), np.float32))
    return requantised(emit, shifted, (unit, number(0)), (wanted[0], wanted[1]), dtype="i8")


def _avg_pool2d(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, scale, zero, *wanted = emit.tensors(args, 5)
    moved = requantised_or_cast(emit, x, (scale, zero), (wanted[0], wanted[1]))
    pooled = WINDOWS["nn.avg_pool2d"](emit, (moved,), attrs)
    return saturated(emit, pooled, x.tensor.dtype)


def _simulated_quantize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, code, scale, zero = emit.tensors(args, 4)
    dtype = _simulated_dtype(emit, code)
    axis, rank, held = attrs.integer("axis", -1), x.tensor.rank, x.tensor.dtype
    if not dtype:
        return x
    ratio = emit.value("divide", x, converted(emit, spread(emit, scale, rank, axis), held))
    whole = rounded_half_away(emit, ratio)
    moved = emit.value("add", whole, converted(emit, spread(emit, zero, rank, axis), held))
    low, high = limits(dtype, real=True)
    return emit.value("clip", moved, a_min=low, a_max=high)


def _simulated_dequantize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x, code, scale, zero = emit.tensors(args, 4)
    axis, rank, held = attrs.integer("axis", -1), x.tensor.rank, x.tensor.dtype
    attrs.drop("out_dtype")
    if not _simulated_dtype(emit, code):
        return x
    moved = emit.value("subtract", x, converted(emit, spread(emit, zero, rank, axis), held))
    return emit.value("multiply", moved, converted(emit, spread(emit, scale, rank, axis), held))


def _simulated_dtype(emit: Emitter, code: Value) -> str:
    (number,) = static_integers(emit, code, "the code of a dtype")
    if number not in (0, *_SIMULATED):
        raise InputError(f"expected a code of a dtype among 0 to {max(_SIMULATED)}, got {number}")
    return _SIMULATED.get(number, "")


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
}
