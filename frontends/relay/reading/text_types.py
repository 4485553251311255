"""Types from the parse tree of a Relay text."""

from __future__ import annotations

from typing import cast

from lark import Token, Tree

from tilewright.frontends.relay.reading import literals
from tilewright.frontends.tvm.ast import (
    MAX_TYPE_DEPTH,
    FunctionType,
    NamedType,
    TensorType,
    TupleType,
    Type,
)
from tilewright.ir.errors import InputError


def read_type(tree: Tree[Token], depth: int = 1) -> Type:
    """The type a tree spells; raises InputError for too deep nesting or a bad dimension."""
    if depth > MAX_TYPE_DEPTH:
        raise InputError(f"expected types nested at most {MAX_TYPE_DEPTH} deep, got more")
    kind = tree.data
    if kind == "tensor_type":
        *dims, dtype = cast(list[Token], tree.children)
        return TensorType(tuple(_dim(d) for d in dims), str(dtype))
    if kind == "unknown_type":
        return NamedType("_")
    parts = tuple(
        read_type(t, depth + 1) for t in tree.children if isinstance(t, Tree) and t.data != "generics"
    )
    if kind == "tuple_type":
        return TupleType(parts)
    if kind == "function_type":
        return FunctionType(parts[:-1], parts[-1])
    if kind == "ref_type":
        return NamedType("ref", parts)
    name = str(tree.children[0])
    return NamedType(name, parts) if parts or not _is_dtype(name) else TensorType((), name)


def _is_dtype(name: str) -> bool:
    return name == "bool" or (
        name.rstrip("0123456789") in {"int", "uint", "float", "bfloat"} and name[-1].isdigit()
    )


def _dim(token: Token) -> int | None:
    if token.type != "NUMBER":
        return None
    try:
        value, _ = literals.number(str(token))
    except ValueError as error:
        raise InputError(str(error)) from None
    if type(value) is not int or value < 0:
        raise InputError(f"expected a dimension of at least 0, got {token}")
    return value
