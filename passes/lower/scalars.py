"""Scalar bodies of tensor ops, written with Python's operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import Block, Builder, scalar_body
from tilewright.ir.scalar_code import Number, Operand, Scalar, Scalars

__all__ = ["Body", "Number", "Operand", "Scalar", "Scalars", "written"]

#: builds the scalar result of a body from its parameters
Body = Callable[[Scalars, Sequence[Scalar]], Scalar]


def written(b: Builder, dtypes: Sequence[str], body: Body) -> Block:
    """The block of a tensor op's body with one parameter per dtype; ops have the location of `b`."""
    inner, params = scalar_body(dtypes)
    inner.loc = b.loc
    inner.do("scalar.yield", body(Scalars(inner), [Scalar(inner, p) for p in params]).value)
    return inner.block(params)
