"""ONNX operators on quantised integers, composed of integer products and elementwise ops."""

from __future__ import annotations

from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.importing.products import matrix_product
from tilewright.frontends.importing.quantisation import (
    centred,
    dequantised,
    exact_factors,
    quantised,
    spread,
    without_offset,
)
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rules, wrapped
from tilewright.frontends.onnx.rules.layers import biased, convolved
from tilewright.frontends.onnx.tensors import Narrow, dtype_of_element
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import BYTES, FLOAT8, FLOATS


def _blocked(emit: FoldingEmitter, parameter: Value | None, x: Value, axis: int, block: int) -> Value | None:
    """A scale or zero point with one number per element of x where it comes with one per block of an axis."""
    if parameter is None or parameter.tensor.rank <= 1 or parameter.tensor.shape == x.tensor.shape:
        return parameter
    if parameter.tensor.rank != x.tensor.rank:
        raise InputError(f"expected a scale for {x.type}, got {parameter.type}")
    if block:
        parameter = emit.value("repeat", parameter, repeats=block, axis=axis)
        parameter = emit.cut(parameter, axis, 0, x.tensor.shape[axis])
    return emit.broadcast(parameter, x.tensor.shape)


def _as_integers(
    emit: FoldingEmitter,
    x: Value,
    scale: Value,
    zero: Value | None,
    dtype: str,
    axis: int = 0,
    wide: str = "",
    *,
    saturate: bool = True,
) -> Value:
    """saturate(round(x / scale) + zero), rounding halves to even; computed in float32 at least.

    To floats of one byte x / scale is rounded as such, and becomes nan beyond the largest unless `saturate`.
    """
    if dtype in FLOATS or dtype == "bool":
        raise UnsupportedError(f"expected to quantise to integers or floats of one byte, got {dtype}")
    x = emit.cast(x, wide or ("f64" if x.tensor.dtype == "f64" else "f32"))
    return quantised(emit, x, scale, zero, axis, dtype, saturate=saturate)


def _dynamically_quantised(emit: FoldingEmitter, x: Value) -> tuple[Value, Value, Value]:
    """x as u8, the scale and the zero point, under which zero and all elements are in range.

    Where all elements are zero, the standard divides by zero; the scale is 1 then, as in ONNX Runtime.
    """
    axes, zero = tuple(range(x.tensor.rank)), emit.full(0, x.tensor.dtype)
    low = emit.value("minimum", emit.value("min", x, axis=axes), zero)
    high = emit.value("maximum", emit.value("max", x, axis=axes), zero)
    step = emit.value("divide", emit.value("subtract", high, low), emit.full(255, x.tensor.dtype))
    scale = emit.value("where", emit.value("equal", step, zero), emit.full(1, x.tensor.dtype), step)
    start = quantised(emit, emit.value("negative", low), scale, None, 0, "u8")
    return quantised(emit, x, scale, start, 0, "u8"), scale, start


def _dynamic_quantize_linear(emit: FoldingEmitter, node: Node) -> Result:
    return _dynamically_quantised(emit, node.tensor(0))


def dynamic_product(emit: FoldingEmitter, x: Value, weight: Value, scale: Value, zero: Value | None) -> Value:
    """x [m, k] times weights [k, n] of integers: x is quantised by the range of all rows, the product is f32.

    scale, zero: of all weights (one element) or one per column.
    """
    whole, x_scale, x_zero = _dynamically_quantised(emit, x)
    product = _integer_product(emit, whole, x_zero, weight, _flat(emit, zero))
    flat = _flat(emit, scale)
    assert flat is not None
    both = emit.value("multiply", x_scale, spread(emit, flat, 2))
    return emit.value("multiply", emit.cast(product, "f32"), both)


def _flat(emit: FoldingEmitter, parameter: Value | None) -> Value | None:
    """A parameter of all weights, or one per column, as a vector."""
    return None if parameter is None else emit.reshape(parameter, (parameter.tensor.size,))


def _axis_and_block(node: Node, x: Value) -> tuple[int, int]:
    """The axis of scales, which does not matter to a scale of all elements, and the extent of its blocks."""
    axis, block = node.integer("axis", 1), node.integer("block_size", 0)
    plain = node.tensor(1).tensor.size == 1 and node.tensor(1).tensor.rank <= 1
    return (0 if plain else wrapped(axis, x.tensor.rank)), block


def _quantize_linear(emit: FoldingEmitter, node: Node) -> Result:
    x, scale, zero = node.tensor(0), node.tensor(1), node.optional(2)
    axis, block = _axis_and_block(node, x)
    element, computed = node.integer("output_dtype", 0), node.integer("precision", 0)
    saturate = node.flag("saturate", True)
    dtype = zero.tensor.dtype if zero is not None else dtype_of_element(element) if element else "u8"
    factor, zero = (_blocked(emit, v, x, axis, block) for v in (scale, zero))
    assert factor is not None
    wide = dtype_of_element(computed) if computed else ""
    return _as_integers(emit, x, factor, zero, dtype, axis, wide, saturate=saturate)


def _stored(emit: FoldingEmitter, node: Node, index: int) -> Value:
    """An operand that may be a constant of four or eight bits, of a type that only constants have."""
    value = node.inputs[index] if index < node.count else None
    return emit.constant(value.array) if isinstance(value, Narrow) else node.tensor(index)


def _dequantize_linear(emit: FoldingEmitter, node: Node) -> Result:
    x, scale = _stored(emit, node, 0), node.tensor(1)
    zero = _stored(emit, node, 2) if node.has(2) else None
    if x.tensor.rank > 1 and x.tensor.dtype in (*BYTES, *FLOAT8) and emit.known(x) is not None:
        emit.quantised.add(x)  # products may multiply the integers
    axis, block = _axis_and_block(node, x)
    element = node.integer("output_dtype", 0)
    dtype = dtype_of_element(element) if element else scale.tensor.dtype
    factor, zero = (_blocked(emit, v, x, axis, block) for v in (scale, zero))
    assert factor is not None
    return dequantised(emit, x, factor, zero, axis, dtype)


def _matmul_integer(emit: FoldingEmitter, node: Node) -> Result:
    return _integer_product(emit, node.tensor(0), node.optional(2), node.tensor(1), node.optional(3))


def _integer_product(
    emit: FoldingEmitter, a: Value, a_zero: Value | None, b: Value, b_zero: Value | None
) -> Value:
    """The product of integers less their zero points: one or one per row of a, one or one per column of b."""
    if min(a.tensor.rank, b.tensor.rank) < 2 or (a_zero is not None and a_zero.tensor.size > 1):
        return matrix_product(emit, centred(emit, a, a_zero, -2), centred(emit, b, b_zero, -1))
    left, right, offset = exact_factors(emit, a, a_zero, b, b_zero, -1)
    product = matrix_product(emit, left, right, "i32")
    if offset is None:
        return product
    sums = emit.value("sum", emit.cast(right, "i32"), axis=(-2,), keepdims=True)
    return without_offset(emit, product, offset, sums)


def _conv_integer(emit: FoldingEmitter, node: Node) -> Result:
    return _integer_convolution(
        emit, node, node.tensor(0), node.optional(2), node.tensor(1), node.optional(3)
    )


def _integer_convolution(
    emit: FoldingEmitter, node: Node, x: Value, x_zero: Value | None, weight: Value, zero: Value | None
) -> Value:
    """The convolution of integers less their zero points, of which padding consists."""
    data, kernel, offset = exact_factors(emit, x, x_zero, weight, zero, 0)
    if offset is None:
        return convolved(emit, node, data, kernel, out_dtype="i32")
    out = convolved(emit, node, data, kernel, out_dtype="i32", around=emit.cast(offset, data.tensor.dtype))
    rank = weight.tensor.rank
    sums = emit.value("sum", emit.cast(kernel, "i32"), axis=tuple(range(1, rank)), keepdims=False)
    return without_offset(emit, out, offset, emit.along(sums, 1, rank))


def _qlinear_matmul(emit: FoldingEmitter, node: Node) -> Result:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = node.tensors(8)
    product = emit.cast(_integer_product(emit, a, a_zero, b, b_zero), "f32")
    for scale, x, axis in ((a_scale, a, -2), (b_scale, b, -1)):
        factor = emit.cast(spread(emit, scale, x.tensor.rank, axis), "f32")
        product = emit.value("multiply", product, factor)
    return _as_integers(emit, product, y_scale, y_zero, y_zero.tensor.dtype)


def _qlinear_conv(emit: FoldingEmitter, node: Node) -> Result:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = node.tensors(8)
    out = biased(emit, node, _integer_convolution(emit, node, x, x_zero, w, w_zero), 8)
    scale = emit.value("multiply", x_scale, spread(emit, w_scale, out.tensor.rank, 1))
    real = emit.value("multiply", emit.cast(out, "f32"), scale)
    return _as_integers(emit, real, y_scale, y_zero, y_zero.tensor.dtype)


RULES: Rules = {
    "ConvInteger": _conv_integer,
    "DequantizeLinear": _dequantize_linear,
    "DynamicQuantizeLinear": _dynamic_quantize_linear,
    "MatMulInteger": _matmul_integer,
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
    "QuantizeLinear": _quantize_linear,
}
