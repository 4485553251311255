"""ONNX operators on quantised integers, composed of integer products and elementwise ops."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.emitter import Result
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rules, wrapped
from tilewright.frontends.onnx.rules.layers import convolved, matrix_product
from tilewright.frontends.onnx.tensors import Narrow, dtype_of_element
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import FLOATS, storage_dtype


def _along(emit: FoldingEmitter, parameter: Value, x: Value, axis: int, block: int) -> Value:
    """A scale or zero point as it broadcasts to x: one for all, per index of `axis`, or per block."""
    shape, rank = parameter.tensor.shape, x.tensor.rank
    if parameter.tensor.size == 1 and parameter.tensor.rank <= 1:
        return emit.reshape(parameter, ())
    if parameter.tensor.rank == 1 and block == 0:
        axis = wrapped(axis, rank)
        return emit.reshape(parameter, [shape[0] if d == axis else 1 for d in range(rank)])
    if parameter.tensor.rank != rank:
        raise InputError(f"expected a scale for {x.type}, got {parameter.type}")
    axis = wrapped(axis, rank)
    if block:
        parameter = emit.value("repeat", parameter, repeats=block, axis=axis)
        parameter = emit.cut(parameter, axis, 0, x.tensor.shape[axis])
    return parameter


def saturated(emit: FoldingEmitter, x: Value, dtype: str) -> Value:
    """Whole numbers held in floats as integers of `dtype`, the nearest one where they do not fit."""
    if dtype in FLOATS or dtype == "bool":
        raise UnsupportedError(f"expected to quantise to integers, got {dtype}")
    limits = np.iinfo(storage_dtype(dtype))
    return emit.cast(emit.value("clip", x, a_min=int(limits.min), a_max=int(limits.max)), dtype)


def quantised(
    emit: FoldingEmitter, x: Value, scale: Value, zero: Value | None, dtype: str, precision: str = ""
) -> Value:
    """saturate(round(x / scale) + zero), rounding halves to even; computed in float32 at least."""
    held = precision or ("f64" if x.tensor.dtype == "f64" else "f32")
    ratio = emit.value("divide", emit.cast(x, held), emit.cast(scale, held))
    whole = emit.value("round", ratio)
    if zero is not None:
        whole = emit.value("add", whole, emit.cast(zero, held))
    return saturated(emit, whole, dtype)


def dequantised(emit: FoldingEmitter, x: Value, scale: Value, zero: Value | None, dtype: str) -> Value:
    """(x - zero) * scale."""
    whole = emit.cast(x, "i32") if x.tensor.dtype not in FLOATS else x
    if zero is not None:
        whole = emit.value("subtract", whole, emit.cast(zero, whole.tensor.dtype))
    held = "f64" if dtype == "f64" else "f32"
    return emit.cast(emit.value("multiply", emit.cast(whole, held), emit.cast(scale, held)), dtype)


def _dynamically_quantised(emit: FoldingEmitter, x: Value) -> tuple[Value, Value, Value]:
    """x as u8, the scale and the zero point, under which zero and all elements are in range.

    Where all elements are zero, the standard divides by zero; the scale is 1 then, as in ONNX Runtime.
    """
    axes, zero = tuple(range(x.tensor.rank)), emit.full(0, x.tensor.dtype)
    low = emit.value("minimum", emit.value("min", x, axis=axes), zero)
    high = emit.value("maximum", emit.value("max", x, axis=axes), zero)
    step = emit.value("divide", emit.value("subtract", high, low), emit.full(255, x.tensor.dtype))
    scale = emit.value("where", emit.value("equal", step, zero), emit.full(1, x.tensor.dtype), step)
    start = emit.value("round", emit.value("divide", emit.value("negative", low), scale))
    start = saturated(emit, start, "u8")
    return quantised(emit, x, scale, start, "u8"), scale, start


def _dynamic_quantize_linear(emit: FoldingEmitter, node: Node) -> Result:
    return _dynamically_quantised(emit, node.tensor(0))


def dynamic_product(emit: FoldingEmitter, x: Value, weight: Value, scale: Value, zero: Value | None) -> Value:
    """x [m, k] times weights [k, n] of integers: x is quantised by the range of all rows, the product is f32.

    scale, zero: of all weights (one element) or one per column.
    """
    whole, x_scale, x_zero = _dynamically_quantised(emit, x)
    product = matrix_product(
        emit, _centred(emit, whole, x_zero), _centred(emit, weight, _columns(emit, zero))
    )
    spread = _columns(emit, scale)
    assert spread is not None
    both = emit.value("multiply", x_scale, spread)
    return emit.value("multiply", emit.cast(product, "f32"), both)


def _columns(emit: FoldingEmitter, parameter: Value | None) -> Value | None:
    """A parameter of all weights, or one per column, as it broadcasts to [k, n]."""
    if parameter is None:
        return None
    return emit.reshape(parameter, () if parameter.tensor.size == 1 else (1, parameter.tensor.size))


def _quantize_linear(emit: FoldingEmitter, node: Node) -> Result:
    x, scale, zero = node.tensor(0), node.tensor(1), node.optional(2)
    axis, block = node.attrs.integer("axis", 1), node.attrs.integer("block_size", 0)
    wanted, computed = node.attrs.integer("output_dtype", 0), node.attrs.integer("precision", 0)
    node.attrs.drop("saturate")
    dtype = zero.tensor.dtype if zero is not None else dtype_of_element(wanted) if wanted else "u8"
    scale = _along(emit, scale, x, axis, block)
    zero = None if zero is None else _along(emit, zero, x, axis, block)
    precision = dtype_of_element(computed) if computed else ""
    return quantised(emit, x, scale, zero, dtype, precision)


def _stored(emit: FoldingEmitter, node: Node, index: int) -> Value:
    """An operand that may be a constant of four or eight bits, of a type that only constants have."""
    value = node.inputs[index] if index < node.count else None
    return emit.constant(value.array) if isinstance(value, Narrow) else node.tensor(index)


def _dequantize_linear(emit: FoldingEmitter, node: Node) -> Result:
    x, scale = _stored(emit, node, 0), node.tensor(1)
    zero = _stored(emit, node, 2) if node.has(2) else None
    axis, block = node.attrs.integer("axis", 1), node.attrs.integer("block_size", 0)
    wanted = node.attrs.integer("output_dtype", 0)
    dtype = dtype_of_element(wanted) if wanted else scale.tensor.dtype
    scale = _along(emit, scale, x, axis, block)
    zero = None if zero is None else _along(emit, zero, x, axis, block)
    return dequantised(emit, x, scale, zero, dtype)


def _centred(emit: FoldingEmitter, x: Value, zero: Value | None) -> Value:
    """x less its zero point, as i32."""
    wide = emit.cast(x, "i32")
    return wide if zero is None else emit.value("subtract", wide, emit.cast(zero, "i32"))


def _rows(emit: FoldingEmitter, parameter: Value | None, x: Value, axis: int) -> Value | None:
    """A parameter of one value for all, or of one per index of the axis of x that a product keeps."""
    if parameter is None or parameter.tensor.rank != 1 or x.tensor.rank == 0:
        return parameter
    if parameter.tensor.size == 1:
        return emit.reshape(parameter, ())
    kept = axis % x.tensor.rank
    return emit.reshape(parameter, [parameter.tensor.size if d == kept else 1 for d in range(x.tensor.rank)])


def _matmul_integer(emit: FoldingEmitter, node: Node) -> Result:
    a, b = node.tensor(0), node.tensor(1)
    left = _centred(emit, a, _rows(emit, node.optional(2), a, -2))
    right = _centred(emit, b, _rows(emit, node.optional(3), b, -1))
    return matrix_product(emit, left, right)


def _conv_integer(emit: FoldingEmitter, node: Node) -> Result:
    x, weight, zero = node.tensor(0), node.tensor(1), node.optional(3)
    kernel = _centred(emit, weight, _rows(emit, zero, weight, 0))
    return convolved(emit, node, _centred(emit, x, node.optional(2)), kernel)


def _qlinear_matmul(emit: FoldingEmitter, node: Node) -> Result:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (node.tensor(i) for i in range(8))
    left = _centred(emit, a, _rows(emit, a_zero, a, -2))
    right = _centred(emit, b, _rows(emit, b_zero, b, -1))
    product = emit.cast(matrix_product(emit, left, right), "f32")
    for scale, x, axis in ((a_scale, a, -2), (b_scale, b, -1)):
        aligned = _rows(emit, scale, x, axis)
        assert aligned is not None
        product = emit.value("multiply", product, emit.cast(aligned, "f32"))
    return quantised(emit, product, y_scale, y_zero, y_zero.tensor.dtype)


def _qlinear_conv(emit: FoldingEmitter, node: Node) -> Result:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (node.tensor(i) for i in range(8))
    kernel = _centred(emit, w, _rows(emit, w_zero, w, 0))
    out = convolved(emit, node, _centred(emit, x, x_zero), kernel)
    bias = node.optional(8)
    if bias is not None:
        out = emit.value("bias_add", out, bias, axis=1)
    each = _rows(emit, w_scale, out, 1)
    assert each is not None
    scale = emit.value("multiply", x_scale, each)
    real = emit.value("multiply", emit.cast(out, "f32"), scale)
    return quantised(emit, real, y_scale, y_zero, y_zero.tensor.dtype)


RULES: Rules = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize_linear,
}
