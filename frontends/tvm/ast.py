"""Abstract syntax of a Relay module: frozen nodes shared by the text, JSON and live readers.

Expressions form a directed acyclic graph compared by identity: a value printed once as `%3` is one node,
however often it is used. Types compare structurally.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.ir.errors import InputError

#: Types deeper or larger than this are refused: they are compared recursively.
MAX_TYPE_DEPTH = 64
MAX_TYPE_SIZE = 100_000


@dataclass(frozen=True, slots=True)
class Span:
    """The origin of a node: a place in a text, or a node number in a JSON graph.

    `origin` is the source name that an importer of TVM recorded (`aten::embedding_0:0:0`), or empty.
    """

    file: str
    line: int = 0
    column: int = 0
    node: int = -1
    origin: str = ""

    def __str__(self) -> str:
        if self.line:
            return f"{self.file}:{self.line}:{self.column}"
        return f"{self.file}, node {self.node}" if self.node >= 0 else self.file


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor; `None` in `shape` is a dimension that is not a constant. dtype is TVM's name (`float32`)."""

    shape: tuple[int | None, ...]
    dtype: str
    depth: int = field(default=1, init=False, compare=False, repr=False)
    size: int = field(default=1, init=False, compare=False, repr=False)

    def __str__(self) -> str:
        dims = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"Tensor[({dims}), {self.dtype}]"


@dataclass(frozen=True, slots=True)
class NamedType:
    """A data type, a type variable or `_` (not known): anything that is only a name here."""

    name: str
    args: tuple[Type, ...] = ()
    depth: int = field(default=1, init=False, compare=False, repr=False)
    size: int = field(default=1, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _bound(self, self.args)

    def __str__(self) -> str:
        return self.name + (f"[{', '.join(map(str, self.args))}]" if self.args else "")


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple of types."""

    fields: tuple[Type, ...]
    depth: int = field(default=1, init=False, compare=False, repr=False)
    size: int = field(default=1, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _bound(self, self.fields)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.fields))}{',' if len(self.fields) == 1 else ''})"


@dataclass(frozen=True, slots=True)
class FunctionType:
    """Parameter types and the result type of a function."""

    params: tuple[Type, ...]
    result: Type
    depth: int = field(default=1, init=False, compare=False, repr=False)
    size: int = field(default=1, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        _bound(self, (*self.params, self.result))

    def __str__(self) -> str:
        return f"fn ({', '.join(map(str, self.params))}) -> {self.result}"


Type = TensorType | NamedType | TupleType | FunctionType


def _bound(node: NamedType | TupleType | FunctionType, parts: tuple[Type, ...]) -> None:
    depth = 1 + max((p.depth for p in parts), default=0)
    size = 1 + sum(p.size for p in parts)
    if depth > MAX_TYPE_DEPTH:
        raise InputError(f"expected types nested at most {MAX_TYPE_DEPTH} deep, got {depth}")
    if size > MAX_TYPE_SIZE:
        raise InputError(f"expected types of at most {MAX_TYPE_SIZE} parts, got {size}")
    object.__setattr__(node, "depth", depth)
    object.__setattr__(node, "size", size)


@dataclass(frozen=True, slots=True, eq=False)
class Var:
    """A parameter or a let-bound variable; identity is the variable, the name is only a name."""

    name: str
    type: Type | None
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class GlobalVar:
    """A use of `@name`."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class OpRef:
    """A use of an operator by its name, such as `nn.conv2d`."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor literal."""

    value: np.ndarray
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """`callee(args, attrs)`; `checked` is the type TVM inferred, where it was recorded."""

    callee: Expr
    args: tuple[Expr, ...]
    attrs: Mapping[str, Attr]
    span: Span
    checked: Type | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Tuple:
    """`(a, b)`."""

    fields: tuple[Expr, ...]
    span: Span
    checked: Type | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """`tuple.index`."""

    tuple: Expr
    index: int
    span: Span
    checked: Type | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Let:
    """`let v0 = e0; let v1 = e1; ... body`: consecutive bindings are one node."""

    bindings: tuple[tuple[Var, Expr], ...]
    body: Expr
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """`if (condition) {then} else {otherwise}`."""

    condition: Expr
    then: Expr
    otherwise: Expr
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function literal or the definition of a global function."""

    params: tuple[Var, ...]
    body: Expr
    result: Type | None
    attrs: Mapping[str, Attr]
    span: Span


@dataclass(frozen=True, slots=True, eq=False)
class Foreign:
    """A construct that exists in Relay and that no importer here reads: match, constructors, references."""

    kind: str
    span: Span


Expr = Var | GlobalVar | OpRef | Constant | Call | Tuple | Projection | Let | If | Function | Foreign
#: Attribute values; a list is a tuple, a dtype is its TVM name, a tensor is a Constant.
Attr = None | bool | int | float | str | tuple["Attr", ...] | Constant


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """Global functions by name, in file order. `file` names the source in messages."""

    file: str
    functions: Mapping[str, Function]
