"""Arithmetic with torch's promotion of dtypes: whole numbers and numbers from Python among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax

from tilewright.frontends.torch.corrections.nodes import Correction, TorchCall, promoted
from tilewright.ir.errors import UnsupportedError

_op = relax.op


def _binary(make: Callable[[Any, Any], Any], *, floating: bool = False, swapped: bool = False) -> Correction:
    """Two operands, tensors or numbers; `floating`: whole numbers become float first, as for a quotient."""

    def convert(call: TorchCall) -> Any:
        a, b = call.args[:2]
        dtype = promoted(a, b)
        if floating and not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        left, right = call.as_type(a, dtype), call.as_type(b, dtype)
        alpha = call.kwargs.get("alpha", 1)
        if alpha != 1:
            scale = relax.const(alpha, call.dtype_name(dtype))
            left, right = (
                (call.emit(_op.multiply(left, scale)), right)
                if swapped
                else (left, call.emit(_op.multiply(right, scale)))
            )
        return call.emit(make(right, left) if swapped else make(left, right))

    return convert


def _truth(make: Callable[[Any, Any], Any]) -> Correction:
    """Two operands that count as true where they are not zero."""

    def convert(call: TorchCall) -> Any:
        return call.emit(make(*(call.as_type(item, torch.bool) for item in call.args[:2])))

    return convert


def _not(call: TorchCall) -> Any:
    return call.emit(_op.logical_not(call.as_type(call.args[0], torch.bool)))


def _add(a: Any, b: Any) -> Any:
    # A sum of truths is their disjunction; Relax adds numbers only.
    return _op.logical_or(a, b) if str(a.ty.dtype) == "bool" else _op.add(a, b)


def _multiply(a: Any, b: Any) -> Any:
    return _op.logical_and(a, b) if str(a.ty.dtype) == "bool" else _op.multiply(a, b)


def _bitwise(numbers: Callable[[Any, Any], Any], truths: Callable[[Any, Any], Any]) -> Correction:
    return _binary(lambda a, b: truths(a, b) if str(a.ty.dtype) == "bool" else numbers(a, b))


def _bitwise_not(call: TorchCall) -> Any:
    x = call.env[call.args[0]]
    truth = call.value.dtype == torch.bool
    return call.emit(_op.logical_not(x) if truth else _op.bitwise_not(x))


def _rounded_quotient(call: TorchCall) -> Any:
    """A quotient rounded down, towards zero, or not at all."""
    mode = call.kwargs.get("rounding_mode")
    if mode is None:
        return _binary(_op.divide, floating=True)(call)
    whole = not promoted(*call.args[:2]).is_floating_point
    if mode == "floor":
        return _binary(_op.floor_divide)(call)
    quotient = _binary(_op.divide)(call)
    return quotient if whole else call.emit(_op.trunc(quotient))


def _power(call: TorchCall) -> Any:
    """Squares, roots and reciprocals by name: they are exact, and cheaper than a power."""
    base, exponent = call.args[:2]
    dtype = promoted(base, exponent)
    if isinstance(exponent, torch.fx.Node) or exponent not in (0.5, -1, -0.5, 0, 1, 2, 3):
        return _binary(_op.power)(call)
    x = call.as_type(base, dtype)
    one = relax.const(1, call.dtype_name(dtype))
    match exponent:
        case 0:
            return call.emit(_op.ones_like(x))
        case 1:
            return x
        case 0.5:
            return call.emit(_op.sqrt(x))
        case -0.5:
            return call.emit(_op.divide(one, call.emit(_op.sqrt(x))))
        case -1:
            return call.emit(_op.divide(one, x))
    square = call.emit(_op.multiply(x, x))
    return square if exponent == 2 else call.emit(_op.multiply(square, x))


def _unary(make: Callable[[Any], Any]) -> Correction:
    """One operand in the dtype of the result: whole numbers become float first where torch says so."""

    def convert(call: TorchCall) -> Any:
        return call.emit(make(call.as_type(call.args[0], call.value.dtype)))

    return convert


def _clamp(call: TorchCall) -> Any:
    """max(min(x, high), low); a bound is a number, a tensor, or left out."""
    dtype = call.value.dtype
    x = call.as_type(call.args[0], dtype)
    bounds = (call.argument(1, "min"), call.argument(2, "max"))
    if call.name == "clamp_max.default":
        bounds = (None, call.args[1])
    for bound, make in zip(bounds, (_op.maximum, _op.minimum), strict=True):
        if bound is not None:
            x = call.emit(make(x, call.as_type(bound, dtype)))
    return x


def _where(call: TorchCall) -> Any:
    condition, a, b = call.args
    dtype = call.value.dtype
    return call.emit(_op.where(call.env[condition], call.as_type(a, dtype), call.as_type(b, dtype)))


def _masked_fill(call: TorchCall) -> Any:
    x, mask, value = call.args
    dtype = call.value.dtype
    return call.emit(_op.where(call.env[mask], call.as_type(value, dtype), call.as_type(x, dtype)))


def _elu(call: TorchCall) -> Any:
    """scale * x where positive, else scale * alpha * (exp(input_scale * x) - 1)."""
    x, dtype = call.env[call.args[0]], call.dtype
    alpha, scale, inner = (call.argument(i, n, 1) for i, n in enumerate(("alpha", "scale", "input_scale"), 1))

    def times(a: Any, factor: float) -> Any:
        return call.emit(_op.multiply(a, relax.const(factor, dtype)))

    zero = relax.const(0, dtype)
    bent = call.emit(_op.exp(times(call.emit(_op.minimum(x, zero)), inner)))
    bent = times(call.emit(_op.subtract(bent, relax.const(1, dtype))), alpha * scale)
    return call.emit(_op.where(call.emit(_op.greater(x, zero)), times(x, scale), bent))


def _erfc(x: Any) -> Any:
    return _op.subtract(relax.const(1, str(x.ty.dtype)), _op.erf(x))


def _hypot(a: Any, b: Any) -> Any:
    return _op.sqrt(_op.add(_op.multiply(a, a), _op.multiply(b, b)))


def _number_of(make: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """An extreme of two for which what is no number does not count."""
    return lambda a, b: _op.where(_op.isnan(a), b, _op.where(_op.isnan(b), a, make(a, b)))


def _gelu(call: TorchCall) -> Any:
    x = call.env[call.args[0]]
    tanh = call.argument(1, "approximate", "none") == "tanh"
    return call.emit(_op.nn.gelu_tanh(x) if tanh else _op.nn.gelu(x))


def _matmul(call: TorchCall) -> Any:
    return call.emit(_op.matmul(*(call.env[item] for item in call.args[:2])))


def _linear(call: TorchCall) -> Any:
    x, weight = (call.env[item] for item in call.args[:2])
    out = call.emit(_op.matmul(x, call.emit(_op.permute_dims(weight))))
    bias = call.argument(2, "bias")
    return out if bias is None else call.emit(_op.add(out, call.env[bias]))


def _added_product(call: TorchCall) -> Any:
    """beta * x + alpha * (a @ b); without beta, x does not count, whatever it holds."""
    dtype = call.dtype
    x, a, b = (call.env[item] for item in call.args[:3])
    alpha, beta = call.kwargs.get("alpha", 1), call.kwargs.get("beta", 1)
    product = call.emit(_op.matmul(a, b))
    if alpha != 1:
        product = call.emit(_op.multiply(product, relax.const(alpha, dtype)))
    if beta == 0:
        return product
    return call.emit(
        _op.add(x if beta == 1 else call.emit(_op.multiply(x, relax.const(beta, dtype))), product)
    )


def _copied(call: TorchCall) -> Any:
    """A conversion of dtype; a device or a memory format is none."""
    return call.as_type(call.args[0], call.value.dtype)


def _refuse_override(call: TorchCall) -> Any:
    if call.argument(6, "divisor_override") is not None:
        raise UnsupportedError("expected an average pool that divides by its size, got divisor_override")
    return call.by_tvm()


def _named(names: str, correction: Correction) -> dict[str, Correction]:
    return dict.fromkeys(names.split(), correction)


_FLOAT_UNARY = "acos acosh asin asinh atan atanh cos cosh erf exp log rsqrt sigmoid sin sinh sqrt tan tanh"
_LEFT_SHIFTS = (
    "bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar __lshift__.Scalar __lshift__.Tensor"
)
ARITHMETIC: Mapping[str, Correction] = {
    **_named("add.Tensor add.Scalar add_.Tensor", _binary(_add)),
    **_named("sub.Tensor sub.Scalar", _binary(_op.subtract)),
    **_named("rsub.Tensor rsub.Scalar", _binary(_op.subtract, swapped=True)),
    **_named("mul.Tensor mul.Scalar mul_.Tensor", _binary(_multiply)),
    **_named("div.Tensor div.Scalar", _binary(_op.divide, floating=True)),
    **_named("div.Tensor_mode div.Scalar_mode", _rounded_quotient),
    **_named("floor_divide.default floor_divide.Scalar", _binary(_op.floor_divide)),
    **_named("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor", _binary(_op.floor_mod)),
    **_named("fmod.Tensor fmod.Scalar", _binary(_op.mod)),
    **_named("pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar", _power),
    **_named("eq.Tensor eq.Scalar", _binary(_op.equal)),
    **_named("ne.Tensor ne.Scalar", _binary(_op.not_equal)),
    **_named("lt.Tensor lt.Scalar", _binary(_op.less)),
    **_named("le.Tensor le.Scalar", _binary(_op.less_equal)),
    **_named("gt.Tensor gt.Scalar", _binary(_op.greater)),
    **_named("ge.Tensor ge.Scalar", _binary(_op.greater_equal)),
    **_named("maximum.default max.other", _binary(_op.maximum)),
    **_named("minimum.default min.other", _binary(_op.minimum)),
    **_named("atan2.default", _binary(_op.atan2, floating=True)),
    **_named("logaddexp.default", _binary(_op.log_add_exp)),
    **_named("logical_and.default", _truth(_op.logical_and)),
    **_named("logical_or.default", _truth(_op.logical_or)),
    **_named("logical_xor.default", _truth(_op.logical_xor)),
    "logical_not.default": _not,
    "bitwise_not.default": _bitwise_not,
    **_named("bitwise_and.Tensor bitwise_and.Scalar __and__.Tensor __and__.Scalar",
             _bitwise(_op.bitwise_and, _op.logical_and)),
    **_named("bitwise_or.Tensor bitwise_or.Scalar __or__.Tensor __or__.Scalar",
             _bitwise(_op.bitwise_or, _op.logical_or)),
    **_named("bitwise_xor.Tensor bitwise_xor.Scalar __xor__.Tensor __xor__.Scalar",
             _bitwise(_op.bitwise_xor, _op.logical_xor)),
    **_named(_LEFT_SHIFTS, _binary(_op.left_shift)),
    **_named(_LEFT_SHIFTS.replace("left", "right").replace("_l", "_r"), _binary(_op.right_shift)),
    **{f"{name}.default": _unary(getattr(_op, name)) for name in _FLOAT_UNARY.split()},
    **_named("clamp.default clamp.Tensor clamp_min.default clamp_max.default", _clamp),
    "where.self": _where,
    **_named("masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar", _masked_fill),
    "gelu.default": _gelu,
    "elu.default": _elu,
    "erfc.default": _unary(_erfc),
    "hypot.default": _binary(_hypot),
    "fmax.default": _binary(_number_of(_op.maximum)),
    "fmin.default": _binary(_number_of(_op.minimum)),
    **_named("matmul.default mm.default bmm.default mv.default dot.default", _matmul),
    "linear.default": _linear,
    **_named("addmm.default baddbmm.default addmv.default", _added_product),
    **_named("_to_copy.default to.dtype", _copied),
    **_named("avg_pool2d.default avg_pool3d.default", _refuse_override),
}  # fmt: skip
