"""Elementwise graph ops of one tensor: a table of scalar ops, and the activations with attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from tilewright.ir.division import elementwise, in_its_operand, linear, per_channel
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element, no_flops
from tilewright.ir.graph_ops.operands import alike, axis_of, dtype_of, require, require_float, tensors, wide
from tilewright.ir.nodes import Op, Value
from tilewright.ir.opdef import AttrDef, Attrs, compute, define, op_def
from tilewright.ir.types import FLOATS, ScalarType, TensorType, Type, converted, itemsize

#: graph op -> the scalar op it applies to every element (which says what it accepts), its precision class,
#: and whether its floating results are exact
UNARY: Mapping[str, tuple[str, Precision, bool]] = {
    "negative": ("neg", Precision.FOLLOWS, True),
    "abs": ("abs", Precision.FOLLOWS, True),
    "exp": ("exp", Precision.WIDE, False),
    "exp2": ("exp2", Precision.WIDE, False),
    "log": ("log", Precision.WIDE, False),
    "log2": ("log2", Precision.WIDE, False),
    "log10": ("log10", Precision.WIDE, False),
    "sqrt": ("sqrt", Precision.FOLLOWS, False),
    "rsqrt": ("rsqrt", Precision.WIDE, False),
    "sin": ("sin", Precision.FOLLOWS, False),
    "cos": ("cos", Precision.FOLLOWS, False),
    "tan": ("tan", Precision.WIDE, False),
    "sinh": ("sinh", Precision.WIDE, False),
    "cosh": ("cosh", Precision.WIDE, False),
    "tanh": ("tanh", Precision.FOLLOWS, False),
    "asin": ("asin", Precision.WIDE, False),
    "acos": ("acos", Precision.WIDE, False),
    "atan": ("atan", Precision.WIDE, False),
    "asinh": ("asinh", Precision.WIDE, False),
    "acosh": ("acosh", Precision.WIDE, False),
    "atanh": ("atanh", Precision.WIDE, False),
    "erf": ("erf", Precision.WIDE, False),
    "floor": ("floor", Precision.FOLLOWS, False),
    "ceil": ("ceil", Precision.FOLLOWS, False),
    "trunc": ("trunc", Precision.FOLLOWS, False),
    "round": ("round", Precision.FOLLOWS, False),
    "sign": ("sign", Precision.FOLLOWS, False),
    "bitwise_not": ("bit_not", Precision.FOLLOWS, False),
    "logical_not": ("not", Precision.FOLLOWS, False),
    "isnan": ("isnan", Precision.FOLLOWS, False),
    "isinf": ("isinf", Precision.FOLLOWS, False),
    "isfinite": ("isfinite", Precision.FOLLOWS, False),
}
#: the linear one of them
LINEAR = "negative"
#: roundings leave integers as they are
ROUNDINGS = frozenset({"floor", "ceil", "trunc", "round"})
#: results that are booleans, bits, or piecewise constant
_WITHOUT_GRADIENT = ROUNDINGS | {"sign", "bitwise_not", "logical_not", "isnan", "isinf", "isfinite"}


#: facts that ops below share; each replaces those that differ
_MAP = Facts(
    elements=Elements.MAPS,
    flops=flops_per_element,
    precision=Precision.FOLLOWS,
    exact=False,
    division=elementwise,
    extents=attributes_stay,
    report=ReportClass.OF_KERNEL,
    gradient=Gradient.RULE,
)


def _table_op(name: str, scalar: str, precision: Precision, exact: bool) -> None:
    definition = op_def(f"scalar.{scalar}")

    def infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
        (t,) = tensors(types)
        if name in ROUNDINGS and t.dtype not in FLOATS:
            return [t]
        assert definition.infer is not None
        (r,) = definition.infer([ScalarType(t.dtype)], {})
        return [TensorType(r.dtype, t.shape)]

    def run(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
        if name in ROUNDINGS and np.issubdtype(inputs[0].dtype, np.integer):
            return inputs
        return [compute(definition.name, *inputs)]

    gradient = Gradient.NONE if name in _WITHOUT_GRADIENT else Gradient.RULE
    division = linear(elementwise, in_its_operand) if name == LINEAR else elementwise
    define(
        f"graph.{name}",
        ("x",),
        f"{definition.doc}, for every a of x.",
        infer=infer,
        evaluate=run,
        facts=replace(_MAP, precision=precision, exact=exact, gradient=gradient, division=division),
    )


for _name, (_scalar, _precision, _exact) in UNARY.items():
    _table_op(_name, _scalar, _precision, _exact)


def _activation(
    name: str,
    fn: Callable[[np.ndarray, Attrs], np.ndarray],
    doc: str,
    attrs: Mapping[str, AttrDef] | None = None,
    *,
    floats: bool = True,
    facts: Facts,
) -> None:
    def infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
        (t,) = tensors(types)
        require(t.dtype != "bool", f"expected numbers, got {t}")
        if floats:
            require_float(t)
        return [t]

    def run(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
        with np.errstate(all="ignore"):
            return [np.asarray(fn(inputs[0], attrs), dtype=inputs[0].dtype)]

    define(f"graph.{name}", ("x",), doc, attrs=attrs or {}, infer=infer, evaluate=run, facts=facts)


def typed(value: Any, x: np.ndarray) -> np.ndarray:
    """A scalar of the array's dtype."""
    return np.asarray(value).astype(x.dtype)


_activation(
    "relu",
    lambda x, a: np.maximum(x, typed(0, x)),
    "max(x, 0).",
    floats=False,
    facts=replace(_MAP, exact=True),
)
_activation(
    "sigmoid",
    lambda x, a: typed(1, x) / (typed(1, x) + np.exp(-x)),
    "1 / (1 + exp(-x)).",
    facts=_MAP,
)
_activation(
    "leaky_relu",
    lambda x, a: np.where(x > 0, x, x * typed(a["alpha"], x)),
    "x where positive, else alpha * x.",
    {"alpha": AttrDef("float", 0.25)},
    facts=_MAP,
)
_activation(
    "clip",
    lambda x, a: np.minimum(np.maximum(x, typed(a["a_min"], x)), typed(a["a_max"], x)),
    "min(max(x, a_min), a_max); the bounds are converted to the dtype of x.",
    {"a_min": AttrDef("number"), "a_max": AttrDef("number")},
    floats=False,
    facts=replace(_MAP, exact=True),
)


def _softplus(x: np.ndarray, attrs: Attrs) -> np.ndarray:
    v = wide(x, dtype_of(x))
    beta, threshold = typed(attrs["beta"], v), attrs["threshold"]
    scaled = v * beta
    smooth = (np.maximum(scaled, typed(0, v)) + np.log(typed(1, v) + np.exp(-np.abs(scaled)))) / beta
    return smooth if threshold is None else np.where(scaled > typed(threshold, v), v, smooth)


_activation(
    "softplus",
    _softplus,
    "log(1 + exp(beta * x)) / beta, and x itself where beta * x is above the threshold, if there is one.",
    {
        "beta": AttrDef("float", 1.0),
        "threshold": AttrDef("float?", None, "where beta * x is above it the result is x; none: nowhere"),
    },
    facts=replace(_MAP, precision=Precision.WIDE),
)


def _hard_swish(x: np.ndarray, attrs: Attrs) -> np.ndarray:
    v = wide(x, dtype_of(x))
    gate = np.minimum(np.maximum(v + typed(3, v), typed(0, v)), typed(6, v))
    return v * gate / typed(6, v)


_activation(
    "hard_swish",
    _hard_swish,
    "x * min(max(x + 3, 0), 6) / 6: x times a gate that opens between -3 and 3.",
    facts=_MAP,
)


def _infer_prelu(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, alpha = alike(types)
    require_float(x)
    axis = axis_of(attrs["axis"], x.rank)
    require(alpha.shape == x.shape[axis : axis + 1], f"expected alpha along axis {axis} of {x}, got {alpha}")
    return [x]


def along(vector: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """A 1-d array as a view that broadcasts along `axis` of a tensor of `rank`."""
    return vector.reshape([-1 if d == axis % rank else 1 for d in range(rank)])


define(
    "graph.prelu",
    ("x", "alpha"),
    "x where positive, else alpha * x with one alpha per index of `axis`.",
    attrs={"axis": AttrDef("int", 1)},
    infer=_infer_prelu,
    evaluate=lambda x, a: [
        np.where(x[0] > 0, x[0], x[0] * along(x[1], a["axis"], x[0].ndim)).astype(x[0].dtype)
    ],
    facts=Facts(
        elements=Elements.MAPS_PER_CHANNEL,
        flops=flops_per_element,
        precision=Precision.FOLLOWS,
        division=per_channel,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.RULE,
        exact=False,
    ),
)


def _evaluate_cast(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    with np.errstate(all="ignore"):
        return [converted(inputs[0], attrs["dtype"])]


def _widens(op: Op, summands: Sequence[Value]) -> Literal["each"] | None:
    """Sums of what is not rounded are those of the operands."""
    given, kept = op.operands[0].tensor.dtype, op.result.tensor.dtype
    return "each" if FLOATS.issuperset((given, kept)) and itemsize(given) <= itemsize(kept) else None


define(
    "graph.cast",
    ("x",),
    "x converted to `dtype`; float to integer truncates towards zero, anything but zero is true, and what is "
    "beyond the largest float of one byte becomes that one.",
    attrs={"dtype": AttrDef("dtype")},
    infer=lambda t, a: [TensorType(a["dtype"], tensors(t)[0].shape)],
    evaluate=_evaluate_cast,
    facts=replace(_MAP, flops=no_flops, precision=Precision.ANY, division=linear(elementwise, _widens)),
)
