"""Scalar code written with Python's operators: the bodies of tensor ops, and derivatives of scalar ops."""

from __future__ import annotations

from typing import Any

from tilewright.ir.builder import Builder
from tilewright.ir.expr import Expr
from tilewright.ir.nodes import Value
from tilewright.ir.types import Type

Number = float | int | bool


class Scalar:
    """A scalar of a body that is being written; an operator appends its scalar op to the body.

    A number beside a scalar is a constant of the scalar's dtype. `/` is scalar.div, which rounds integers
    down; `&`, `|` and `~` take bools. Operands are appended from left to right.
    """

    __slots__ = ("builder", "value")

    def __init__(self, builder: Builder, value: Value) -> None:
        self.builder, self.value = builder, value

    @property
    def type(self) -> Type:
        """The type of the value."""
        return self.value.type

    @property
    def dtype(self) -> str:
        """The dtype of the value."""
        return self.value.type.dtype

    def _number(self, x: Operand) -> Value:
        return x.value if isinstance(x, Scalar) else self.builder.const(x, self.dtype)

    def apply(self, name: str, *others: Operand) -> Scalar:
        """The scalar op of this name on this value and the others."""
        operands = (self.value, *map(self._number, others))
        return Scalar(self.builder, self.builder.value(f"scalar.{name}", *operands))

    def _after(self, name: str, first: Number) -> Scalar:
        return Scalar(self.builder, self.builder.const(first, self.dtype)).apply(name, self)

    def __add__(self, other: Operand) -> Scalar:
        return self.apply("add", other)

    def __radd__(self, other: Number) -> Scalar:
        return self._after("add", other)

    def __sub__(self, other: Operand) -> Scalar:
        return self.apply("sub", other)

    def __rsub__(self, other: Number) -> Scalar:
        return self._after("sub", other)

    def __mul__(self, other: Operand) -> Scalar:
        return self.apply("mul", other)

    def __rmul__(self, other: Number) -> Scalar:
        return self._after("mul", other)

    def __truediv__(self, other: Operand) -> Scalar:
        return self.apply("div", other)

    def __rtruediv__(self, other: Number) -> Scalar:
        return self._after("div", other)

    def __mod__(self, other: Operand) -> Scalar:
        return self.apply("mod", other)

    def __neg__(self) -> Scalar:
        return self.apply("neg")

    def __abs__(self) -> Scalar:
        return self.apply("abs")

    def __lt__(self, other: Operand) -> Scalar:
        return self.apply("lt", other)

    def __le__(self, other: Operand) -> Scalar:
        return self.apply("le", other)

    def __gt__(self, other: Operand) -> Scalar:
        return self.apply("gt", other)

    def __ge__(self, other: Operand) -> Scalar:
        return self.apply("ge", other)

    def __and__(self, other: Operand) -> Scalar:
        return self.apply("and", other)

    def __or__(self, other: Operand) -> Scalar:
        return self.apply("or", other)

    def __invert__(self) -> Scalar:
        return self.apply("not")

    def equals(self, other: Operand) -> Scalar:
        """Return whether both are equal (a bool); `==` would be Python's."""
        return self.apply("eq", other)

    def min(self, other: Operand) -> Scalar:
        """The smaller of both."""
        return self.apply("min", other)

    def max(self, other: Operand) -> Scalar:
        """The larger of both."""
        return self.apply("max", other)

    def fma(self, factor: Operand, addend: Operand) -> Scalar:
        """This times `factor` plus `addend`, rounded once where the target can."""
        return self.apply("fma", factor, addend)

    def floor(self) -> Scalar:
        """The largest whole number that is not larger."""
        return self.apply("floor")

    def ceil(self) -> Scalar:
        """The smallest whole number that is not smaller."""
        return self.apply("ceil")

    def select(self, a: Operand, b: Operand) -> Scalar:
        """`a` where this bool is true, else `b`; one of them at least is a scalar."""
        like = a if isinstance(a, Scalar) else b
        assert isinstance(like, Scalar)
        operands = (self.value, like._number(a), like._number(b))
        return Scalar(self.builder, self.builder.value("scalar.select", *operands))


Operand = Scalar | float | int | bool


class Scalars:
    """The source of scalars in a body besides its parameters: constants, indices, casts."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def value(self, name: str, *operands: Scalar, **attrs: Any) -> Scalar:
        """The op of this name on the operands."""
        return Scalar(self.builder, self.builder.value(name, *(x.value for x in operands), **attrs))

    def const(self, value: Number, dtype: str) -> Scalar:
        """A constant."""
        return Scalar(self.builder, self.builder.const(value, dtype))

    def index(self, at: Expr, dtype: str = "i32") -> Scalar:
        """The value of an index expression."""
        return Scalar(self.builder, self.builder.index(at, dtype))

    def cast(self, x: Scalar, dtype: str) -> Scalar:
        """`x` as `dtype`; itself when it already is."""
        return x if x.dtype == dtype else Scalar(self.builder, self.builder.cast(x.value, dtype))
