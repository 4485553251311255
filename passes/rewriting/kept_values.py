"""Registers that keep a value of each iteration of unrolled loops, for another nest of the same extents."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.expr import Expr, Sym
from tilewright.ir.nodes import Op, Value
from tilewright.ir.types import ScalarType, TensorType


def kept_buffer(value: Value, dtype: str, extents: Iterable[int], hint: str) -> Value:
    """Registers for a value of the body of loops: an element of `dtype` per iteration and lane."""
    assert isinstance(value.type, ScalarType)
    return Value(TensorType(dtype, (*extents, value.type.lanes), "reg"), hint)


def kept_at(variables: Iterable[str]) -> tuple[Expr, ...]:
    """The place of an iteration's value among those that are kept, by the variables of the loops."""
    return (*map(Sym, variables), 0)


def alloc_kept(buffer: Value, loc: str = "") -> Op:
    """The op that makes the registers."""
    return Op("thread.alloc", results=(buffer,), attrs=(("align", 16), ("swizzled", False)), loc=loc)


def keep(value: Value, buffer: Value, at: tuple[Expr, ...], loc: str) -> Op:
    """The op that keeps a value."""
    return Op("thread.store", (value, buffer), attrs=(("at", at), ("mask", ())), loc=loc)


def read_kept(value: Value, buffer: Value, at: tuple[Expr, ...], loc: str) -> Op:
    """The op that reads what was kept as `value`."""
    assert isinstance(value.type, ScalarType)
    attrs = (("at", at), ("lanes", value.type.lanes), ("mask", ()), ("other", 0.0))
    return Op("thread.load", (buffer,), results=(value,), attrs=attrs, loc=loc)
