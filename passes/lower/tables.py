"""Tables of coefficients as maps without operands, which `fold-constant-tensors` turns into constants."""

from __future__ import annotations

from collections.abc import Mapping
from math import pi

import numpy as np

from tilewright.ir import Builder, Expr, Sym, TensorType, Value
from tilewright.passes.lower.lowering import mapped
from tilewright.passes.lower.scalars import Body, Scalar, Scalars

#: elements of a tensor that is computed at compile time, at most
LARGEST_CONSTANT = 1 << 26


def number_table(b: Builder, values: np.ndarray, dtype: str) -> Value:
    """A small matrix [rows, columns] of the given numbers."""
    rows, columns = values.shape

    def body(i: Scalars, p: object) -> Scalar:
        where = i.index(Sym("row") * columns + Sym("column"))
        flat = [float(v) for v in values.reshape(-1)]
        out = i.const(flat[-1], dtype)
        for place in reversed(range(len(flat) - 1)):
            here = where <= place
            out = here.select(flat[place], out)
        return out

    return _table(b, {"row": rows, "column": columns}, dtype, body)


def wave_table(
    b: Builder, par: Mapping[str, int], dtype: str, turns: Expr, period: int, quarters: Expr, scale: Body
) -> Value:
    """cos(2 pi turns / period - quarters pi / 2) * scale over the domain `par`.

    turns, quarters: index expressions, reduced modulo the period before the cosine is taken in float64.
    scale: builds a float64 factor.
    """
    angle = turns * 4 + quarters * (3 * period)
    angle = angle % (4 * period)

    def body(i: Scalars, p: object) -> Scalar:
        radians = i.cast(i.index(angle), "f64") * (pi / (2 * period))
        wave = radians.apply("cos")
        return i.cast(wave * scale(i, ()), dtype)

    return _table(b, par, dtype, body)


def _table(b: Builder, par: Mapping[str, int], dtype: str, body: Body) -> Value:
    return mapped(b, (), TensorType(dtype, tuple(par.values())), par, (), body)
