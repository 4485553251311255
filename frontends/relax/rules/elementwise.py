"""Relax operators that compute element by element; activations are composed, 16-bit floats in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import sqrt

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.quantisation import dequantised, quantised
from tilewright.frontends.importing.rules import direct, directs, real
from tilewright.frontends.relax.operands import array_of, axis_in, number
from tilewright.frontends.tvm.rules import elementwise
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype

#: operators that leave their operand as it is at inference
_IDENTITIES = """
    builtin.stop_lift_params grad.end_checkpoint grad.no_grad grad.start_checkpoint hint_on_device to_vdevice
"""
#: Klambauer et al., Self-Normalizing Neural Networks, 2017
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805
#: Hendrycks and Gimpel, Gaussian Error Linear Units, 2016: the cubic coefficient of the tanh form
GELU_CUBIC = 0.044715


def _binary(graph_op: str) -> Rule:
    return lambda emit, call: emit.value(graph_op, *_alike(emit, *call.tensors(2)))


def _alike(emit: Emitter, a: Value, b: Value) -> tuple[Value, Value]:
    """Both operands in one dtype: one of them may be a plain number."""
    if a.tensor.dtype == b.tensor.dtype:
        return a, b
    for value, other in ((a, b), (b, a)):
        known = emit.known(value)
        if known is not None and known.ndim == 0:
            same = emit.constant(known.astype(storage_dtype(other.tensor.dtype)))
            return (same, b) if value is a else (a, same)
    return a, b


def _activation(fn: Callable[[Emitter, Value], Value]) -> Rule:
    def rule(emit: Emitter, call: Call) -> Result:
        x = call.single()
        return emit.cast(fn(emit, emit.widened(x)), x.tensor.dtype)

    return rule


def _gelu(emit: Emitter, x: Value) -> Value:
    """x (1 + erf(x / sqrt 2)) / 2."""
    bell = emit.value("erf", emit.op("multiply", x, sqrt(0.5)))
    return emit.value("multiply", emit.op("multiply", x, 0.5), emit.op("add", bell, 1))


def _gelu_tanh(emit: Emitter, x: Value) -> Value:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    cube = emit.value("multiply", emit.value("multiply", x, x), x)
    inner = emit.value("add", x, emit.op("multiply", cube, GELU_CUBIC))
    bell = emit.value("tanh", emit.op("multiply", inner, sqrt(2 / np.pi)))
    return emit.value("multiply", emit.op("multiply", x, 0.5), emit.op("add", bell, 1))


def _selu(emit: Emitter, x: Value) -> Value:
    """scale * (x where positive, else alpha (exp x - 1))."""
    below = emit.op("subtract", emit.value("exp", emit.op("minimum", x, 0)), 1)
    bent = emit.where(emit.op("greater", x, 0), x, emit.op("multiply", below, SELU_ALPHA))
    return emit.op("multiply", bent, SELU_SCALE)


def _silu(emit: Emitter, x: Value) -> Value:
    return emit.value("multiply", x, emit.value("sigmoid", x))


def _log_add_exp(emit: Emitter, call: Call) -> Result:
    """log(exp a + exp b) as max + log(1 + exp(-|a - b|)); equal infinities differ by nothing."""
    first, second = _alike(emit, *call.tensors(2))
    a, b = emit.widened(first), emit.widened(second)
    distance = emit.value("negative", emit.value("abs", emit.value("subtract", a, b)))
    small = emit.value(
        "exp", emit.value("where", emit.value("equal", a, b), emit.full(0, a.tensor.dtype), distance)
    )
    rest = emit.value("log", emit.op("add", small, 1))
    return emit.cast(emit.value("add", emit.value("maximum", a, b), rest), first.tensor.dtype)


def _square(emit: Emitter, call: Call) -> Result:
    x = call.single()
    return emit.value("multiply", x, x)


def _fma(emit: Emitter, call: Call) -> Result:
    a, b, c = call.tensors(3)
    return emit.value("add", emit.value("multiply", a, b), c)


def _clip(emit: Emitter, call: Call) -> Result:
    x = call.tensor(0)
    low, high = number(emit, call, 1, "the lower bound"), number(emit, call, 2, "the upper bound")
    return emit.value("clip", x, a_min=low, a_max=high)


def _prelu(emit: Emitter, call: Call) -> Result:
    """One alpha for all, or one per index of an axis."""
    x, alpha = call.tensors(2)
    axis = call.integer("axis", 1)
    if x.tensor.rank == 1 or alpha.tensor.size == 1:
        slope = emit.value("multiply", x, alpha)
        return emit.value("where", emit.op("greater", x, 0), x, slope)
    return emit.value("prelu", x, alpha, axis=axis_in(x, axis))


def _astype(emit: Emitter, call: Call) -> Result:
    x = call.single()
    return emit.cast(x, call.dtype("dtype"))


def _where(emit: Emitter, call: Call) -> Result:
    condition, a, b = call.tensors(3)
    return emit.value("where", condition, *_alike(emit, a, b))


def _identity(emit: Emitter, call: Call) -> Result:
    call.drop("device_type", "index", "memory_scope", "dst_vdevice", "dtype")
    return call.tensor(0)


def _quantize(emit: Emitter, call: Call) -> Result:
    x, scale, zero = call.tensors(3)
    dtype, axis = call.dtype("out_dtype", "int8"), axis_in(x, call.integer("axis", -1))
    return quantised(emit, emit.widened(x), scale, zero, axis, dtype)


def _dequantize(emit: Emitter, call: Call) -> Result:
    x, scale, zero = call.tensors(3)
    dtype, axis = call.dtype("out_dtype", "float32"), axis_in(x, call.integer("axis", -1))
    return dequantised(emit, x, scale, zero, axis, dtype)


def _shape(emit: Emitter, call: Call) -> Result:
    """Shapes are constants here, as tensors are: nothing changes."""
    array_of(emit, call, 0, "a shape")
    return call.inputs[0]


RULES: Mapping[str, Rule] = {
    **elementwise.RULES,
    **directs("round", 1),
    **{name: _binary(name) for name in (*elementwise.BINARY.split(), "atan2")},
    **dict.fromkeys(_IDENTITIES.split(), _identity),
    "wrap_param": _astype,
    "square": _square,
    "ewise_fma": _fma,
    "log_add_exp": _log_add_exp,
    "clip": _clip,
    "astype": _astype,
    "where": _where,
    "nn.relu6": direct("clip", a_min=0.0, a_max=6.0),
    "nn.leakyrelu": direct("leaky_relu", alpha=real(0.01)),
    "nn.prelu": _prelu,
    "nn.gelu": _activation(_gelu),
    "nn.gelu_tanh": _activation(_gelu_tanh),
    "nn.selu": _activation(_selu),
    "nn.silu": _activation(_silu),
    "nn.softplus": direct("softplus", beta=real(1.0), threshold=real(20.0)),
    "quantize": _quantize,
    "dequantize": _dequantize,
    "shape_to_tensor": _shape,
    "tensor_to_shape": _shape,
}
