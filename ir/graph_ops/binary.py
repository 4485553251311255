"""Elementwise graph ops of several tensors under NumPy's broadcasting: a table of scalar ops, and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from tilewright.ir.division import SummandRule, elementwise, linear
from tilewright.ir.extents import broadcasts_as_before
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element, no_flops
from tilewright.ir.graph_ops.operands import alike, broadcast_shapes, tensors
from tilewright.ir.nodes import Op, Value
from tilewright.ir.opdef import Attrs, compute, define, op_def
from tilewright.ir.types import FLOATS, ScalarType, TensorType, Type

#: graph op -> (scalar op for floats, scalar op for integers and bools, what it computes, precision class,
#: whether its floating results are exact)
BINARY: Mapping[str, tuple[str, str, str, Precision, bool]] = {
    "add": ("add", "add", "a + b", Precision.FOLLOWS, False),
    "subtract": ("sub", "sub", "a - b", Precision.FOLLOWS, False),
    "multiply": ("mul", "mul", "a * b", Precision.FOLLOWS, False),
    "divide": ("div", "truncdiv", "a / b; integers round towards zero", Precision.FOLLOWS, False),
    "floor_divide": ("div", "div", "a / b rounded down", Precision.WIDE, False),
    "mod": ("truncmod", "truncmod", "remainder with the sign of a", Precision.WIDE, False),
    "floor_mod": ("mod", "mod", "a - b * floor(a / b)", Precision.WIDE, False),
    "power": ("pow", "pow", "a ** b", Precision.WIDE, False),
    "maximum": ("max", "max", "the larger, nan where either is nan", Precision.FOLLOWS, True),
    "minimum": ("min", "min", "the smaller, nan where either is nan", Precision.FOLLOWS, True),
    "atan2": ("atan2", "atan2", "angle of the point (b, a)", Precision.WIDE, False),
    "equal": ("eq", "eq", "a == b", Precision.FOLLOWS, False),
    "not_equal": ("ne", "ne", "a != b", Precision.FOLLOWS, False),
    "less": ("lt", "lt", "a < b", Precision.FOLLOWS, False),
    "less_equal": ("le", "le", "a <= b", Precision.FOLLOWS, False),
    "greater": ("gt", "gt", "a > b", Precision.FOLLOWS, False),
    "greater_equal": ("ge", "ge", "a >= b", Precision.FOLLOWS, False),
    "logical_and": ("and", "and", "a and b", Precision.FOLLOWS, False),
    "logical_or": ("or", "or", "a or b", Precision.FOLLOWS, False),
    "logical_xor": ("xor", "xor", "either a or b", Precision.FOLLOWS, False),
    "bitwise_and": ("bit_and", "bit_and", "bits set in both", Precision.FOLLOWS, False),
    "bitwise_or": ("bit_or", "bit_or", "bits set in one at least", Precision.FOLLOWS, False),
    "bitwise_xor": ("bit_xor", "bit_xor", "bits set in exactly one", Precision.FOLLOWS, False),
    "left_shift": ("shl", "shl", "a * 2**b", Precision.FOLLOWS, False),
    "right_shift": ("shr", "shr", "a / 2**b rounded down", Precision.FOLLOWS, False),
}
#: results that are booleans, bits, or piecewise constant in both operands
_WITHOUT_GRADIENT = frozenset(
    {"floor_divide", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
    | {"logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"}
    | {"left_shift", "right_shift"}
)
#: a quotient of floats that is rounded down afterwards
ROUNDED_DOWN = "floor_divide"


def scalar_of(name: str, dtype: str) -> str:
    """The scalar op that a binary graph op (named without prefix) applies to elements of `dtype`."""
    floating, other, *_ = BINARY[name]
    return floating if dtype in FLOATS else other


def _in_both(op: Op, summands: Sequence[Value]) -> Literal["each"] | None:
    both = len(summands) == len(op.operands) and all(v.tensor == op.result.tensor for v in summands)
    return "each" if both else None


def _in_both_or_a_number(op: Op, summands: Sequence[Value]) -> Literal["each", "once"] | None:
    """A whole number that is added to a sum counts once."""
    if not op.result.tensor.shape and len(summands) == 1:
        return "once"
    return _in_both(op, summands)


def _in_one(op: Op, summands: Sequence[Value]) -> Literal["each"] | None:
    return "each" if len(summands) == 1 and summands[0].tensor == op.result.tensor else None


def _in_the_first(op: Op, summands: Sequence[Value]) -> Literal["each"] | None:
    return _in_one(op, summands) if list(summands) == [op.operands[0]] else None


#: of the ops that are linear, in which operands
_LINEAR: Mapping[str, SummandRule] = {
    "add": _in_both_or_a_number,
    "subtract": _in_both,
    "multiply": _in_one,
    "divide": _in_the_first,
}


#: facts that ops below share; each replaces those that differ
_MAP = Facts(
    elements=Elements.MAPS,
    flops=flops_per_element,
    precision=Precision.FOLLOWS,
    exact=True,
    division=elementwise,
    extents=broadcasts_as_before,
    report=ReportClass.OF_KERNEL,
    gradient=Gradient.RULE,
)


def _table_op(name: str, doc: str, precision: Precision, exact: bool) -> None:
    def infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
        a, b = alike(types)
        shape = broadcast_shapes([a.shape, b.shape])
        scalar = op_def(f"scalar.{scalar_of(name, a.dtype)}").infer
        assert scalar is not None
        (r,) = scalar([ScalarType(a.dtype)] * 2, {})
        return [TensorType(r.dtype, shape)]

    def run(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
        floating = not np.issubdtype(inputs[0].dtype, np.integer) and inputs[0].dtype != np.bool_
        out = compute(f"scalar.{BINARY[name][0 if floating else 1]}", *inputs)
        return [np.floor(out)] if floating and name == ROUNDED_DOWN else [out]

    gradient = Gradient.NONE if name in _WITHOUT_GRADIENT else Gradient.RULE
    division = linear(elementwise, _LINEAR[name]) if name in _LINEAR else elementwise
    define(
        f"graph.{name}",
        ("a", "b"),
        f"{doc}, with broadcasting.",
        infer=infer,
        evaluate=run,
        facts=replace(_MAP, precision=precision, exact=exact, gradient=gradient, division=division),
    )


for _name, (_, _, _doc, _precision, _exact) in BINARY.items():
    _table_op(_name, _doc, _precision, _exact)


def _infer_where(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    condition, *_ = tensors(types)
    a, b = alike(types[1:])
    return [TensorType(a.dtype, broadcast_shapes([condition.shape, a.shape, b.shape]))]


define(
    "graph.where",
    ("condition", "a", "b"),
    "a where the condition is true (not zero), else b, with broadcasting.",
    infer=_infer_where,
    evaluate=lambda x, _: [np.where(x[0] != 0, x[1], x[2]).astype(x[1].dtype)],
    facts=replace(_MAP, flops=no_flops),
)
