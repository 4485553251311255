"""Pass form-gelu: GELU whose result is rounded to 16 bits is computed as exactly as that needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import sqrt

from tilewright.ir.nodes import Func, Level, Op, Value
from tilewright.ir.types import ScalarType
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_func

#: types to which results are rounded that need no more
NARROW = ("f16", "bf16")


@register_pass(Level.THREAD)
def form_gelu(func: Func, ctx: PassContext) -> Func:
    """Compute a number times the normal distribution function of it as its result of 16 bits needs it.

    rewrite: %e = scalar.erfc(scalar.neg(scalar.mul(%x, k)))
             scalar.cast(scalar.mul(%x, scalar.mul(%e, 0.5)), dtype = "f16")
        -->  scalar.cast(scalar.narrow_gelu(%x, k * sqrt(2)), dtype = "f16")

    In whatever order the factors are multiplied, for a positive number k. Nothing else may read what lies
    between. Nine instructions take the place of fourteen, and the result is within a fifth of its rounding.

    The form by a hyperbolic tangent is one by a sigmoid, which is two powers and does not cancel:

    rewrite: scalar.cast(scalar.mul(scalar.mul(%x, 0.5), scalar.add(scalar.tanh(%u), 1)), dtype = "f16")
        -->  scalar.cast(scalar.mul(%x, scalar.sigmoid(scalar.mul(%u, 2))), dtype = "f16")
    """
    cast = frozenset({"scalar.cast"})
    return rewrite_func(func, [Pattern("by-erfc", cast, _gelu), Pattern("by-tanh", cast, _by_tanh)])


def _gelu(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    number, others = _product(op, rewriter)
    if len(others) != 2 or number != 0.5:
        return None
    for x, power in (others, others[::-1]):
        scale = _scale(x, power, rewriter)
        if scale is not None:
            by = rewriter.value("scalar.const", value=scale * sqrt(2.0), dtype="f32")
            gelu = rewriter.value("scalar.narrow_gelu", x, by)
            return [rewriter.value("scalar.cast", gelu, dtype=op["dtype"])]
    return None


def _by_tanh(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    number, others = _product(op, rewriter)
    if len(others) != 2:
        return None
    for x, factor in (others, others[::-1]):
        u = _below_one_plus_tanh(factor, rewriter)
        if u is not None and number == 0.5:
            two = rewriter.value("scalar.const", value=2.0, dtype="f32")
            share = rewriter.value("scalar.sigmoid", rewriter.value("scalar.mul", u, two))
            gelu = rewriter.value("scalar.mul", x, share)
            return [rewriter.value("scalar.cast", gelu, dtype=op["dtype"])]
    return None


def _below_one_plus_tanh(value: Value, rewriter: Rewriter) -> Value | None:
    """The number u where a value is 1 + tanh(u), and nothing else reads it; None for others."""
    total = rewriter.producer(value)
    if total is None or total.name != "scalar.add" or rewriter.uses(value) != 1:
        return None
    for tangent, one in (total.operands, total.operands[::-1]):
        op = rewriter.producer(tangent)
        if _constant(one, rewriter) == 1.0 and op is not None and op.name == "scalar.tanh":
            return op.operands[0] if rewriter.uses(tangent) == 1 else None
    return None


def _product(op: Op, rewriter: Rewriter) -> tuple[float, list[Value]]:
    """The numbers and other factors of what a cast rounds from float32 to 16 bits; none of other casts."""
    (value,) = op.operands
    number = 1.0
    others: list[Value] = []
    if op["dtype"] not in NARROW or not isinstance(value.type, ScalarType) or value.type.dtype != "f32":
        return number, others
    for factor in _factors(value, rewriter):
        constant = _constant(factor, rewriter)
        if constant is None:
            others.append(factor)
        else:
            number *= constant
    return number, others


def _factors(value: Value, rewriter: Rewriter) -> Iterator[Value]:
    """What is multiplied to a value, through products that nothing else reads."""
    op = rewriter.producer(value)
    if op is None or op.name != "scalar.mul" or rewriter.uses(value) != 1:
        yield value
        return
    for v in op.operands:
        yield from _factors(v, rewriter)


def _scale(x: Value, power: Value, rewriter: Rewriter) -> float | None:
    """The positive number k where a value is erfc(-k x), and nothing else reads it; None for others."""
    erfc = rewriter.producer(power)
    if erfc is None or erfc.name != "scalar.erfc" or rewriter.uses(power) != 1:
        return None
    negative = rewriter.producer(erfc.operands[0])
    if negative is None or negative.name != "scalar.neg":
        return None
    if negative.operands[0] is x:
        return 1.0
    product = rewriter.producer(negative.operands[0])
    if product is None or product.name != "scalar.mul":
        return None
    for a, b in (product.operands, product.operands[::-1]):
        number = _constant(b, rewriter)
        if a is x and number is not None and number > 0:
            return number
    return None


def _constant(value: Value, rewriter: Rewriter) -> float | None:
    op = rewriter.producer(value)
    return float(op["value"]) if op is not None and op.name == "scalar.const" else None  # type: ignore[arg-type]
