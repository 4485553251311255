"""Relax operators that compute element by element; activations are composed, 16-bit floats in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import sqrt

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relax.static import array_of, axis_in, cast, held, number, scalar
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype

_ONE_OPERAND = """
    abs acos acosh asin asinh atan atanh bitwise_not ceil cos cosh erf exp floor isfinite isinf isnan log
    logical_not negative round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
"""
_TWO_OPERANDS = """
    add atan2 bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater greater_equal
    left_shift less less_equal logical_and logical_or logical_xor maximum minimum mod multiply not_equal power
    right_shift subtract
"""
#: operators that leave their operand as it is at inference
_IDENTITIES = """
    builtin.stop_lift_params grad.end_checkpoint grad.no_grad grad.start_checkpoint hint_on_device to_vdevice
"""
#: Klambauer et al., Self-Normalizing Neural Networks, 2017
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
#: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016: the cubic coefficient of the tanh form
GELU_CUBIC = 0.044715


def _plain(graph_op: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        return emit.value(graph_op, *emit.tensors(args, 1))

    return rule


def _binary(graph_op: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        return emit.value(graph_op, *alike(emit, *emit.tensors(args, 2)))

    return rule


def alike(emit: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """Both operands in one dtype: one of them may be a plain number."""
    if a.tensor.dtype == b.tensor.dtype:
        return a, b
    for value, other in ((a, b), (b, a)):
        known = emit.known(value)
        if known is not None and known.ndim == 0:
            made = emit.constant(known.astype(storage_dtype(other.tensor.dtype)))
            return (made, b) if value is a else (a, made)
    return a, b


def _activation(fn: Callable[[Emitter, Value], Value]) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (x,) = emit.tensors(args, 1)
        return cast(emit, fn(emit, held(emit, x)), x.tensor.dtype)

    return rule


def _times(emit: Emitter, x: Value, factor: float) -> Value:
    return emit.value("multiply", x, scalar(emit, factor, x))


def _gelu(emit: Emitter, x: Value) -> Value:
    """x (1 + erf(x / sqrt 2)) / 2."""
    bell = emit.value("erf", _times(emit, x, sqrt(0.5)))
    return emit.value("multiply", _times(emit, x, 0.5), emit.value("add", bell, scalar(emit, 1, x)))


def _gelu_tanh(emit: Emitter, x: Value) -> Value:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    cube = emit.value("multiply", emit.value("multiply", x, x), x)
    inner = emit.value("add", x, _times(emit, cube, GELU_CUBIC))
    bell = emit.value("tanh", _times(emit, inner, sqrt(2 / np.pi)))
    return emit.value("multiply", _times(emit, x, 0.5), emit.value("add", bell, scalar(emit, 1, x)))


def _selu(emit: Emitter, x: Value) -> Value:
    """scale * (x where positive, else alpha (exp x - 1))."""
    below = emit.value(
        "subtract", emit.value("exp", emit.value("minimum", x, scalar(emit, 0, x))), scalar(emit, 1, x)
    )
    positive = emit.value("greater", x, scalar(emit, 0, x))
    return _times(emit, emit.value("where", positive, x, _times(emit, below, SELU_ALPHA)), SELU_SCALE)


def _silu(emit: Emitter, x: Value) -> Value:
    return emit.value("multiply", x, emit.value("sigmoid", x))


def _softplus(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    return emit.value("softplus", x, beta=attrs.real("beta", 1.0), threshold=attrs.real("threshold", 20.0))


def _log_add_exp(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """log(exp a + exp b) as max + log(1 + exp(-|a - b|)); equal infinities differ by nothing."""
    first, second = alike(emit, *emit.tensors(args, 2))
    a, b = held(emit, first), held(emit, second)
    apart = emit.value("negative", emit.value("abs", emit.value("subtract", a, b)))
    same = emit.value("equal", a, b)
    small = emit.value("exp", emit.value("where", same, scalar(emit, 0, a), apart))
    rest = emit.value("log", emit.value("add", small, scalar(emit, 1, a)))
    return cast(emit, emit.value("add", emit.value("maximum", a, b), rest), first.tensor.dtype)


def _square(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    return emit.value("multiply", x, x)


def _fma(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    a, b, c = emit.tensors(args, 3)
    return emit.value("add", emit.value("multiply", a, b), c)


def _clip(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    x = emit.tensor(args, 0)
    low, high = number(emit, args, 1, "the lower bound"), number(emit, args, 2, "the upper bound")
    return emit.value("clip", x, a_min=low, a_max=high)


def _leaky_relu(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("leaky_relu", *emit.tensors(args, 1), alpha=attrs.real("alpha", 0.01))


def _prelu(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """One alpha for all, or one per index of an axis."""
    x, alpha = emit.tensors(args, 2)
    axis = attrs.integer("axis", 1)
    if x.tensor.rank == 1 or alpha.tensor.size == 1:
        slope = emit.value("multiply", x, alpha)
        return emit.value("where", emit.value("greater", x, scalar(emit, 0, x)), x, slope)
    return emit.value("prelu", x, alpha, axis=axis_in(x, axis))


def _astype(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    return cast(emit, x, attrs.dtype("dtype"))


def _where(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    condition, a, b = emit.tensors(args, 3)
    return emit.value("where", condition, *alike(emit, a, b))


def _identity(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    attrs.drop("device_type", "index", "memory_scope", "dst_vdevice", "dtype")
    return emit.tensor(args, 0)


def _along(emit: Emitter, x: Value, parameter: Value, axis: int) -> Value:
    """A scale or zero point per index of `axis`, shaped to broadcast to `x`."""
    if parameter.tensor.rank == 0:
        return parameter
    shape = [parameter.tensor.size if d == axis else 1 for d in range(x.tensor.rank)]
    return emit.value("reshape", parameter, newshape=tuple(shape))


def _quantize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """clip(round(x / scale) + zero point) in the range of the result's dtype."""
    x, scale, zero = emit.tensors(args, 3)
    dtype, axis = attrs.dtype("out_dtype", "int8"), axis_in(x, attrs.integer("axis", -1))
    limits = np.iinfo(storage_dtype(dtype))
    x, scale = held(emit, x), held(emit, scale)
    steps = emit.value("round", emit.value("divide", x, _along(emit, x, scale, axis)))
    shifted = emit.value("add", steps, cast(emit, _along(emit, x, zero, axis), x.tensor.dtype))
    return cast(emit, emit.value("clip", shifted, a_min=int(limits.min), a_max=int(limits.max)), dtype)


def _dequantize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """(x - zero point) * scale; differences of integers are taken in 32 bits."""
    x, scale, zero = emit.tensors(args, 3)
    dtype, axis = attrs.dtype("out_dtype", "float32"), axis_in(x, attrs.integer("axis", -1))
    wide = "i32" if "i" in x.tensor.dtype or "u" in x.tensor.dtype else "f32"
    centred = emit.value("subtract", cast(emit, x, wide), cast(emit, _along(emit, x, zero, axis), wide))
    scale = _along(emit, x, held(emit, scale), axis)
    return cast(emit, emit.value("multiply", cast(emit, centred, scale.tensor.dtype), scale), dtype)


def _tensor_number(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Shapes are constants here, as tensors are: nothing changes."""
    array_of(emit, args, 0, "a shape")
    return args[0]


RULES: Mapping[str, Rule] = {
    **{name: _plain(name) for name in _ONE_OPERAND.split()},
    **{name: _binary(name) for name in _TWO_OPERANDS.split()},
    **dict.fromkeys(_IDENTITIES.split(), _identity),
    "wrap_param": _astype,
    "square": _square,
    "ewise_fma": _fma,
    "log_add_exp": _log_add_exp,
    "clip": _clip,
    "astype": _astype,
    "where": _where,
    "nn.relu": _plain("relu"),
    "nn.relu6": lambda emit, args, attrs: emit.value("clip", *emit.tensors(args, 1), a_min=0.0, a_max=6.0),
    "nn.leakyrelu": _leaky_relu,
    "nn.prelu": _prelu,
    "nn.gelu": _activation(_gelu),
    "nn.gelu_tanh": _activation(_gelu_tanh),
    "nn.selu": _activation(_selu),
    "nn.silu": _activation(_silu),
    "nn.softplus": _softplus,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "shape_to_tensor": _tensor_number,
    "tensor_to_shape": _tensor_number,
}
