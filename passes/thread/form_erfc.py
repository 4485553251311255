"""Pass form-erfc: one plus the error function of a value is what its complement is of the negative value."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.nodes import Func, Level, Op, Value
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_func


@register_pass(Level.THREAD)
def form_erfc(func: Func, ctx: PassContext) -> Func:
    """Compute one plus an error function, as GELU does, as its complement, which is a single power.

    rewrite: scalar.add(scalar.erf(%x), 1)   -->   scalar.erfc(scalar.neg(%x))
             scalar.add(scalar.mul(scalar.erf(%x), c), c)   -->   scalar.mul(scalar.erfc(scalar.neg(%x)), c)

    The sum also cancels for values below zero, where the complement does not. The error function must have no
    other use.
    """
    return rewrite_func(func, [Pattern("complement", frozenset({"scalar.add"}), _complement)])


def _complement(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    for value, addend in (op.operands, op.operands[::-1]):
        added = _constant(addend, rewriter)
        if added == 1 and (x := _of_erf(value, rewriter)) is not None:
            return rewriter.emit("scalar.erfc", (rewriter.value("scalar.neg", x),))
        product = rewriter.producer(value)
        if product is None or product.name != "scalar.mul" or rewriter.uses(value) != 1:
            continue
        for factor, scale in (product.operands, product.operands[::-1]):
            if (
                _constant(scale, rewriter) == added is not None
                and (x := _of_erf(factor, rewriter)) is not None
            ):
                erfc = rewriter.value("scalar.erfc", rewriter.value("scalar.neg", x))
                return rewriter.emit("scalar.mul", (erfc, scale))
    return None


def _of_erf(value: Value, rewriter: Rewriter) -> Value | None:
    """The operand of the error function that `value` is, where nothing else reads it."""
    op = rewriter.producer(value)
    return (
        op.operands[0] if op is not None and op.name == "scalar.erf" and rewriter.uses(value) == 1 else None
    )


def _constant(value: Value, rewriter: Rewriter) -> object:
    op = rewriter.producer(value)
    return op["value"] if op is not None and op.name == "scalar.const" else None
