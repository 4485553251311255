"""Scalar ops: the bodies of tensor ops and the arithmetic of the thread level, with NumPy semantics.

Integer division and remainder are floor division; `index` turns an index expression into a value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.ir import scalar_derivatives as by
from tilewright.ir.errors import InputError
from tilewright.ir.float_pieces import PIECES, joined, piece_of
from tilewright.ir.opdef import AttrDef, Attrs, Partials, define, no_results
from tilewright.ir.types import FLOAT8, FLOATS, ScalarType, Type, converted


def _scalars(types: Sequence[Type]) -> list[ScalarType]:
    out = []
    for t in types:
        if not isinstance(t, ScalarType):
            raise InputError(f"expected scalar operands, got {t}")
        out.append(t)
    return out


def _same(types: Sequence[Type]) -> ScalarType:
    """All operands of one dtype; one lane broadcasts against several."""
    scalars = _scalars(types)
    lanes = max(t.lanes for t in scalars)
    if any(t.dtype != scalars[0].dtype or t.lanes not in (1, lanes) for t in scalars):
        raise InputError(f"expected operands of one dtype, got {', '.join(map(str, types))}")
    return ScalarType(scalars[0].dtype, lanes)


def _erf(x: np.ndarray) -> np.ndarray:
    from scipy.special import erf  # takes a third of a second to load, and few runs evaluate it

    return erf(x)


def _erfc(x: np.ndarray) -> np.ndarray:
    from scipy.special import erfc

    return erfc(x)


def _gelu(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a * (0.5 * _erfc(a * b * -(0.5**0.5)))


def _require(condition: bool, kind: str, got: ScalarType) -> None:
    if not condition:
        raise InputError(f"expected {kind} operands, got {got}")


def _elementwise(
    name: str,
    arity: int,
    fn: Callable[..., np.ndarray],
    doc: str,
    partials: Partials,
    *,
    kinds: str = "any",
    result: str = "same",
) -> None:
    def infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
        t = _same(types)
        _require(t.dtype not in FLOAT8, "operands converted to f32 as", t)
        _require(kinds != "float" or t.dtype in FLOATS, "floating", t)
        _require(kinds != "bool" or t.dtype == "bool", "bool", t)
        _require(kinds != "int" or t.dtype not in FLOATS, "integer", t)
        return [ScalarType("bool", t.lanes) if result == "bool" else t]

    def run(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
        with np.errstate(all="ignore"):
            out = fn(*inputs)
        return [out if result == "bool" else np.asarray(out, dtype=np.result_type(inputs[0]))]

    define(
        f"scalar.{name}",
        ("a", "b", "c")[:arity],
        doc,
        infer=infer,
        evaluate=run,
        elementwise=True,
        partials=partials,
    )


def _divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (
        np.true_divide(a, b)
        if np.issubdtype(np.result_type(a), np.inexact) or a.dtype.name == "bfloat16"
        else a // b
    )


_UNARY: dict[str, tuple[Callable[..., np.ndarray], str, str, Partials]] = {
    "neg": (np.negative, "any", "-a", by.NEG),
    "abs": (np.abs, "any", "|a|", by.ABS),
    "exp": (np.exp, "float", "e**a", by.EXP),
    "exp2": (np.exp2, "float", "2**a", by.EXP2),
    "log": (np.log, "float", "natural logarithm", by.LOG),
    "log2": (np.log2, "float", "logarithm of base 2", by.LOG2),
    "log10": (np.log10, "float", "logarithm of base 10", by.LOG10),
    "sqrt": (np.sqrt, "float", "square root", by.SQRT),
    "rsqrt": (lambda a: 1 / np.sqrt(a), "float", "1 / sqrt(a)", by.RSQRT),
    "sin": (np.sin, "float", "sine", by.SIN),
    "cos": (np.cos, "float", "cosine", by.COS),
    "tan": (np.tan, "float", "tangent", by.TAN),
    "sinh": (np.sinh, "float", "hyperbolic sine", by.SINH),
    "cosh": (np.cosh, "float", "hyperbolic cosine", by.COSH),
    "tanh": (np.tanh, "float", "hyperbolic tangent", by.TANH),
    "asin": (np.arcsin, "float", "inverse sine", by.ASIN),
    "acos": (np.arccos, "float", "inverse cosine", by.ACOS),
    "atan": (np.arctan, "float", "inverse tangent", by.ATAN),
    "asinh": (np.arcsinh, "float", "inverse hyperbolic sine", by.ASINH),
    "acosh": (np.arccosh, "float", "inverse hyperbolic cosine", by.ACOSH),
    "atanh": (np.arctanh, "float", "inverse hyperbolic tangent", by.ATANH),
    "erf": (_erf, "float", "error function", by.ERF),
    "erfc": (_erfc, "float", "1 - erf(a)", by.ERFC),
    "sigmoid": (lambda a: 1 / (1 + np.exp(-a)), "float", "1 / (1 + e**-a)", by.SIGMOID),
    "floor": (np.floor, "float", "round down", by.PIECEWISE_CONSTANT),
    "ceil": (np.ceil, "float", "round up", by.PIECEWISE_CONSTANT),
    "trunc": (np.trunc, "float", "round towards zero", by.PIECEWISE_CONSTANT),
    "round": (np.round, "float", "round to nearest, ties to even", by.PIECEWISE_CONSTANT),
    "sign": (np.sign, "any", "-1, 0 or 1", by.PIECEWISE_CONSTANT),
    "bit_not": (np.invert, "int", "bitwise complement", by.PIECEWISE_CONSTANT),
}
_BINARY: dict[str, tuple[Callable[..., np.ndarray], str, str, Partials]] = {
    "narrow_gelu": (
        _gelu,
        "float",
        "a times the normal distribution function of a * b, b above 0, near enough to be rounded to 16 bits",
        by.NARROW_GELU,
    ),
    "add": (np.add, "any", "a + b", by.ADD),
    "sub": (np.subtract, "any", "a - b", by.SUB),
    "mul": (np.multiply, "any", "a * b", by.MUL),
    "div": (_divide, "any", "a / b; floor division for integers", by.DIV),
    "mod": (np.mod, "any", "a - b * floor(a / b)", by.MOD),
    "truncdiv": (
        lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)),
        "int",
        "a / b rounded towards zero",
        by.PIECEWISE_CONSTANT_OF_TWO,
    ),
    "truncmod": (np.fmod, "any", "remainder with the sign of a", by.TRUNCMOD),
    "pow": (np.power, "any", "a ** b", by.POW),
    "atan2": (np.arctan2, "float", "angle of (b, a)", by.ATAN2),
    "min": (np.minimum, "any", "smaller; nan where either is nan", by.MIN),
    "max": (np.maximum, "any", "larger; nan where either is nan", by.MAX),
    "bit_and": (np.bitwise_and, "int", "bitwise and", by.PIECEWISE_CONSTANT_OF_TWO),
    "bit_or": (np.bitwise_or, "int", "bitwise or", by.PIECEWISE_CONSTANT_OF_TWO),
    "bit_xor": (np.bitwise_xor, "int", "bitwise exclusive or", by.PIECEWISE_CONSTANT_OF_TWO),
    "shl": (np.left_shift, "int", "a << b", by.PIECEWISE_CONSTANT_OF_TWO),
    "shr": (np.right_shift, "int", "a >> b", by.PIECEWISE_CONSTANT_OF_TWO),
}
_COMPARE: dict[str, tuple[Callable[..., np.ndarray], str]] = {
    "eq": (np.equal, "a == b"),
    "ne": (np.not_equal, "a != b"),
    "lt": (np.less, "a < b"),
    "le": (np.less_equal, "a <= b"),
    "gt": (np.greater, "a > b"),
    "ge": (np.greater_equal, "a >= b"),
}
for _name, (_fn, _kinds, _doc, _partials) in _UNARY.items():
    _elementwise(_name, 1, _fn, _doc, _partials, kinds=_kinds)
for _name, (_fn, _kinds, _doc, _partials) in _BINARY.items():
    _elementwise(_name, 2, _fn, _doc, _partials, kinds=_kinds)
_NONE_OF_TWO = by.PIECEWISE_CONSTANT_OF_TWO
for _name, (_fn, _doc) in _COMPARE.items():
    _elementwise(_name, 2, _fn, _doc, _NONE_OF_TWO, result="bool")
for _name, _fn in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
    _elementwise(_name, 2, _fn, f"logical {_name}", _NONE_OF_TWO, kinds="bool", result="bool")
for _name, _fn, _kinds, _doc in (
    ("not", np.logical_not, "bool", "logical not"),
    ("isnan", np.isnan, "float", "true for nan"),
    ("isinf", np.isinf, "float", "true for +-inf"),
    ("isfinite", np.isfinite, "float", "true for neither nan nor inf"),
):
    _elementwise(_name, 1, _fn, _doc, by.PIECEWISE_CONSTANT, kinds=_kinds, result="bool")
_elementwise("fma", 3, lambda a, b, c: a * b + c, "a * b + c, rounded once where the target can", by.FMA)


def _infer_select(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    c, a, b = _scalars(types)
    _require(c.dtype == "bool", "a bool first among its", c)
    t = _same((a, b))
    return [ScalarType(t.dtype, max(t.lanes, c.lanes))]


define(
    "scalar.select",
    ("condition", "a", "b"),
    "a where condition, else b",
    infer=_infer_select,
    evaluate=lambda x, _: [np.where(x[0], x[1], x[2]).astype(np.result_type(x[1]))],
    elementwise=True,
    partials=by.SELECT,
)
define(
    "scalar.cast",
    ("a",),
    "Convert to `dtype`; float to integer truncates towards zero, to a float of one byte saturates.",
    attrs={"dtype": AttrDef("dtype")},
    infer=lambda t, a: [ScalarType(a["dtype"], _scalars(t)[0].lanes)],
    evaluate=lambda x, a: [converted(x[0], a["dtype"])],
    elementwise=True,
    partials=by.CAST,
)


def _infer_piece(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (t,) = _scalars(types)
    _require(t.dtype == "f32", "f32", t)
    if not 0 <= attrs["number"] < PIECES:
        raise InputError(f"expected a piece below {PIECES}, got {attrs['number']}")
    return [ScalarType("bf16", t.lanes)]


def _infer_joined(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    t = _same(types)
    _require(t.dtype == "bf16", "bf16", t)
    return [ScalarType("f32", t.lanes)]


define(
    "scalar.piece",
    ("a",),
    "One of the three pieces of bfloat16 that hold a float32 number times 2 ** 16, 0 is the largest.",
    attrs={"number": AttrDef("int")},
    infer=_infer_piece,
    evaluate=lambda x, a: [piece_of(x[0], a["number"])],
    elementwise=True,
    partials=by.PIECES,
)
define(
    "scalar.join_pieces",
    ("a", "b", "c"),
    "The float32 number whose pieces these are, the largest first, exactly.",
    infer=_infer_joined,
    evaluate=lambda x, _: [joined(*x)],
    elementwise=True,
    partials=by.JOINED_PIECES,
)
define(
    "scalar.const",
    (),
    "A constant of `dtype`.",
    attrs={"value": AttrDef("number"), "dtype": AttrDef("dtype")},
    infer=lambda t, a: [ScalarType(a["dtype"])],
    evaluate=lambda x, a: [converted(np.asarray(a["value"]), a["dtype"])],
    elementwise=True,
    partials=by.CONSTANT,
)
define(
    "scalar.index",
    (),
    "The value of an index expression over the symbols in scope, as `dtype`.",
    attrs={"at": AttrDef("expr"), "dtype": AttrDef("dtype", "i32")},
    infer=lambda t, a: [ScalarType(a["dtype"])],
    partials=by.CONSTANT,
)
define(
    "scalar.broadcast",
    ("a",),
    "One value in every lane.",
    attrs={"lanes": AttrDef("int")},
    infer=lambda t, a: [ScalarType(_scalars(t)[0].dtype, a["lanes"])],
    partials=by.LANES,
)
define(
    "scalar.extract",
    ("a",),
    "One lane of a short vector.",
    attrs={"lane": AttrDef("int")},
    infer=lambda t, a: [ScalarType(_scalars(t)[0].dtype)],
    partials=by.LANES,
)
define(
    "scalar.yield",
    ("values*",),
    "Values of the body that ends here.",
    results=0,
    infer=no_results,
    effects=frozenset({"terminator"}),
    partials=by.CONSTANT,
)
