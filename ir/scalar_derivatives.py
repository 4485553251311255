"""Partial derivatives of scalar ops as scalar code; every scalar op states its own (`OpDef.partials`).

A partial derivative is a function (operands, result, g) -> g times the derivative of the result by one
operand: the step of the reverse mode with g the cotangent of the result, and of the forward mode with g the
tangent of the operand. All are of one dtype of floats. Forms in the result are taken where they exist, so
that a kernel may keep it instead of the operands. At kinks: abs'(0) = 0, min and max of equal operands give
half to each, as PyTorch has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, pi, sqrt

from tilewright.ir.errors import UnsupportedError
from tilewright.ir.opdef import Partials
from tilewright.ir.scalar_code import Scalar


def _zero_where(condition: Scalar, x: Scalar) -> Scalar:
    return condition.select(0, x)


def _larger(g: Scalar, mine: Scalar, other: Scalar) -> Scalar:
    """g where `mine` is larger, half of it where both are equal."""
    return (mine > other).select(g, mine.equals(other).select(g * 0.5, 0))


def _density(x: Sequence[Scalar]) -> Scalar:
    """The density of the normal distribution at the product of two scalars."""
    at = x[0] * x[1]
    return (at * at * -0.5).apply("exp") * (1 / sqrt(2 * pi))


def _of_lanes(*_: object) -> Scalar:
    raise UnsupportedError("ops on lanes of short vectors belong to kernels, which are not differentiated")


def _of_pieces(*_: object) -> Scalar:
    raise UnsupportedError("pieces of numbers belong to kernels, which are not differentiated")


#: one operand, and no derivative but zero
PIECEWISE_CONSTANT: Partials = (None,)
#: the same of two operands
PIECEWISE_CONSTANT_OF_TWO: Partials = (None, None)
#: no operands at all
CONSTANT: Partials = ()
LANES: Partials = (_of_lanes,)
PIECES: Partials = (_of_pieces,)
JOINED_PIECES: Partials = (_of_pieces, _of_pieces, _of_pieces)

NEG: Partials = (lambda x, y, g: -g,)
ABS: Partials = (lambda x, y, g: g * x[0].apply("sign"),)
EXP: Partials = (lambda x, y, g: g * y,)
EXP2: Partials = (lambda x, y, g: g * y * log(2),)
LOG: Partials = (lambda x, y, g: g / x[0],)
LOG2: Partials = (lambda x, y, g: g / (x[0] * log(2)),)
LOG10: Partials = (lambda x, y, g: g / (x[0] * log(10)),)
SQRT: Partials = (lambda x, y, g: g * 0.5 / y,)
RSQRT: Partials = (lambda x, y, g: g * -0.5 * (y * y * y),)
SIN: Partials = (lambda x, y, g: g * x[0].apply("cos"),)
COS: Partials = (lambda x, y, g: -(g * x[0].apply("sin")),)
TAN: Partials = (lambda x, y, g: y.fma(y, 1) * g,)
SINH: Partials = (lambda x, y, g: g * x[0].apply("cosh"),)
COSH: Partials = (lambda x, y, g: g * x[0].apply("sinh"),)
TANH: Partials = (lambda x, y, g: g * (1 - y * y),)
ASIN: Partials = (lambda x, y, g: g * ((1 - x[0]) * (1 + x[0])).apply("rsqrt"),)
ACOS: Partials = (lambda x, y, g: -(g * ((1 - x[0]) * (1 + x[0])).apply("rsqrt")),)
ATAN: Partials = (lambda x, y, g: g / x[0].fma(x[0], 1),)
ASINH: Partials = (lambda x, y, g: g * x[0].fma(x[0], 1).apply("rsqrt"),)
ACOSH: Partials = (lambda x, y, g: g * ((x[0] - 1) * (x[0] + 1)).apply("rsqrt"),)
ATANH: Partials = (lambda x, y, g: g / ((1 - x[0]) * (1 + x[0])),)
ERF: Partials = (lambda x, y, g: g * (-(x[0] * x[0])).apply("exp") * (2 / sqrt(pi)),)
ERFC: Partials = (lambda x, y, g: g * (-(x[0] * x[0])).apply("exp") * (-2 / sqrt(pi)),)
NARROW_GELU: Partials = (
    lambda x, y, g: g * (((x[0] * x[1] * sqrt(0.5)).apply("erf") + 1) * 0.5 + x[0] * x[1] * _density(x)),
    lambda x, y, g: g * x[0] * x[0] * _density(x),
)
SIGMOID: Partials = (lambda x, y, g: g * (y * (1 - y)),)

ADD: Partials = (lambda x, y, g: g, lambda x, y, g: g)
SUB: Partials = (lambda x, y, g: g, lambda x, y, g: -g)
MUL: Partials = (lambda x, y, g: g * x[1], lambda x, y, g: g * x[0])
DIV: Partials = (lambda x, y, g: g / x[1], lambda x, y, g: -(g * y / x[1]))
MOD: Partials = (lambda x, y, g: g, lambda x, y, g: -(g * (x[0] / x[1]).floor()))
TRUNCMOD: Partials = (lambda x, y, g: g, lambda x, y, g: -(g * (x[0] / x[1]).apply("trunc")))
# By its exponent a power has no slope where the base is 0, as PyTorch has it.
POW: Partials = (
    lambda x, y, g: _zero_where(x[1].equals(0), g * x[1] * x[0].apply("pow", x[1] - 1)),
    lambda x, y, g: _zero_where(x[0].equals(0), g * y * x[0].equals(0).select(1, x[0]).apply("log")),
)
ATAN2: Partials = (
    lambda x, y, g: g * x[1] / x[0].fma(x[0], x[1] * x[1]),
    lambda x, y, g: -(g * x[0] / x[0].fma(x[0], x[1] * x[1])),
)
MIN: Partials = (lambda x, y, g: _larger(g, x[1], x[0]), lambda x, y, g: _larger(g, x[0], x[1]))
MAX: Partials = (lambda x, y, g: _larger(g, x[0], x[1]), lambda x, y, g: _larger(g, x[1], x[0]))
FMA: Partials = (lambda x, y, g: g * x[1], lambda x, y, g: g * x[0], lambda x, y, g: g)
SELECT: Partials = (None, lambda x, y, g: x[0].select(g, 0), lambda x, y, g: x[0].select(0, g))
CAST: Partials = (lambda x, y, g: g,)
