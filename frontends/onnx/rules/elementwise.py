"""ONNX operators that compute element by element."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.importing.quantisation import narrowed
from tilewright.frontends.importing.rules import direct, directs, real
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rule, Rules
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import broadcast_shapes
from tilewright.ir.types import FLOATS, itemsize, storage_dtype

_SAME_NAME = """
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor Log Relu Round Sigmoid Sign Sin Sinh
    Softplus Sqrt Tan Tanh
"""
_INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def _folded(name: str) -> Rule:
    """The rule of an op of two operands over any number of them."""

    def rule(emit: FoldingEmitter, node: Node) -> Result:
        first, *others = node.tensors() or (node.tensor(0),)
        for other in others:
            first = emit.value(name, first, other)
        return first

    return rule


def _mean(emit: FoldingEmitter, node: Node) -> Result:
    return emit.op("divide", _folded("add")(emit, node), node.count)


def _reciprocal(emit: FoldingEmitter, node: Node) -> Result:
    x = node.tensor(0)
    return emit.value("divide", emit.full(1, x.tensor.dtype), x)


def _power(emit: FoldingEmitter, node: Node) -> Result:
    """The result has the type of the base; a floating exponent of an integer base computes in floats."""
    base, exponent = node.tensor(0), node.tensor(1)
    known = emit.known(exponent)
    if known is not None and known.size == 1 and known.ndim <= base.tensor.rank and known.item() in (1, 2):
        # exported normalisations square that way
        return base if known.item() == 1 else emit.value("multiply", base, base)
    dtype, other = base.tensor.dtype, exponent.tensor.dtype
    floating = other if other in FLOATS and dtype not in FLOATS else dtype
    raised = emit.value("power", emit.cast(base, floating), emit.cast(exponent, floating))
    return emit.cast(raised, dtype)


def _mod(emit: FoldingEmitter, node: Node) -> Result:
    """The remainder has the sign of the divisor, with fmod that of the dividend."""
    name = "mod" if node.flag("fmod", False) else "floor_mod"
    return emit.value(name, node.tensor(0), node.tensor(1))


def _shift(emit: FoldingEmitter, node: Node) -> Result:
    direction = node.choice("direction", ("LEFT", "RIGHT"))
    return emit.value(f"{direction.lower()}_shift", node.tensor(0), node.tensor(1))


def _clip(emit: FoldingEmitter, node: Node) -> Result:
    """Bounds are attributes before version 11 and operands since, either of which may be left out."""
    x = node.tensor(0)
    dtype = x.tensor.dtype
    if node.opset < 11:
        limit = float(np.finfo(np.float32).max)
        low, high = node.real("min", -limit), node.real("max", limit)
        return emit.value("clip", x, a_min=low, a_max=high)
    bounds = [node.optional(i) for i in (1, 2)]
    known = [emit.known(b) if b is not None else None for b in bounds]
    if all(k is not None and k.size == 1 for k in known) and dtype not in ("u64", "i64"):
        low, high = (k.reshape(()).item() for k in known if k is not None)
        return emit.value("clip", x, a_min=low, a_max=high)
    for bound, name in zip(bounds, ("maximum", "minimum"), strict=True):
        if bound is not None:
            x = emit.value(name, x, emit.reshape(bound, ()))
    return x


def _prelu(emit: FoldingEmitter, node: Node) -> Result:
    """The slope broadcasts to x in one direction only."""
    x, slope = node.tensor(0), node.tensor(1)
    shape = x.tensor.shape
    if broadcast_shapes([shape, slope.tensor.shape], "slope") != shape:
        raise InputError(f"expected a slope that broadcasts to {x.type}, got {slope.type}")
    along = (1,) * (len(shape) - slope.tensor.rank) + slope.tensor.shape
    if x.tensor.rank > 1 and along == tuple(n if d == 1 else 1 for d, n in enumerate(shape)):
        return emit.value("prelu", x, emit.reshape(slope, (shape[1],)), axis=1)
    return emit.value("where", emit.op("less", x, 0), emit.value("multiply", x, slope), x)


def _cast(emit: FoldingEmitter, node: Node) -> Result:
    node.drop("round_mode")
    return narrowed(emit, node.tensor(0), node.element("to"), saturate=node.flag("saturate", True))


def _cast_like(emit: FoldingEmitter, node: Node) -> Result:
    node.drop("round_mode")
    dtype = node.tensor(1).tensor.dtype
    return narrowed(emit, node.tensor(0), dtype, saturate=node.flag("saturate", True))


def _bit_cast(emit: FoldingEmitter, node: Node) -> Result:
    """The same bits as another type: of constants, and between integers, where it is a conversion."""
    x, dtype = node.tensor(0), node.element("to")
    before = x.tensor.dtype
    if itemsize(before) != itemsize(dtype):
        raise InputError(f"expected a type of {itemsize(before)} bytes for {x.type}, got {dtype}")
    known = emit.known(x)
    if known is not None:
        return emit.constant(np.ascontiguousarray(known).view(storage_dtype(dtype)).reshape(known.shape))
    if before in ("bool", *_INTEGERS) and dtype in _INTEGERS:
        return emit.cast(x, dtype)
    raise UnsupportedError(f"expected integers or a constant to reinterpret as {dtype}, got {x.type}")


def _identity(emit: FoldingEmitter, node: Node) -> Result:
    """Of sequences as well, which are one output."""
    return (node.inputs[0],) if node.count else node.tensor(0)


def _isinf(emit: FoldingEmitter, node: Node) -> Result:
    x = node.tensor(0)
    positive, negative = (node.flag(f"detect_{sign}", True) for sign in ("positive", "negative"))
    if positive and negative:
        return emit.value("isinf", x)
    if not positive and not negative:
        return emit.full(False, "bool", x.tensor.shape)
    return emit.op("equal", x, np.inf if positive else -np.inf)


def _dropout(emit: FoldingEmitter, node: Node) -> Result:
    """The identity at inference, with a mask that keeps everything; the ratio, where it is known, stays."""
    node.drop("seed", "is_test")
    x, rate = node.tensor(0), node.real("ratio", 0.5)
    if node.has(1):
        known = emit.known(node.tensor(1))
        rate = 0.0 if known is None else float(known.reshape(()))
    if node.has(2):
        ratio = node.optional(1)
        nothing = ratio is not None and not emit.static(ratio, "the ratio").any()
        if emit.static(node.tensor(2), "training_mode").any() and not nothing:
            raise UnsupportedError("expected training_mode to be false or the ratio zero: dropping is random")
    out = emit.value("dropout", x, rate=rate) if rate else x
    return out, emit.full(True, "bool", x.tensor.shape) if node.wants(1) else None


RULES: Rules = {
    **{name: direct(name.lower()) for name in _SAME_NAME.split()},
    **directs("", 1, BitwiseNot="bitwise_not", HardSwish="hard_swish", IsNaN="isnan"),
    **directs("", 1, Neg="negative", Not="logical_not"),
    **directs("", 2, Add="add", Div="divide", Mul="multiply", Sub="subtract"),
    **directs("", 2, And="logical_and", Or="logical_or", Xor="logical_xor", Equal="equal"),
    **directs("", 2, BitwiseAnd="bitwise_and", BitwiseOr="bitwise_or", BitwiseXor="bitwise_xor"),
    **directs("", 2, Greater="greater", GreaterOrEqual="greater_equal", Less="less"),
    **directs("", 2, LessOrEqual="less_equal"),
    **directs("", 3, Where="where"),
    "BitCast": _bit_cast,
    "BitShift": _shift,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clip,
    "Dropout": _dropout,
    "Identity": _identity,
    "IsInf": _isinf,
    "LeakyRelu": direct("leaky_relu", alpha=real(0.01)),
    "Max": _folded("maximum"),
    "Mean": _mean,
    "Min": _folded("minimum"),
    "Mod": _mod,
    "PRelu": _prelu,
    "Pow": _power,
    "Reciprocal": _reciprocal,
    "Sum": _folded("add"),
}
