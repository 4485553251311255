"""IR nodes of all levels: frozen, compared by identity, holding only tuples; "unchanged" is `new is old`.

Attributes, types and index expressions compare structurally; `equal` (`compare.py`) compares whole modules.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from operator import is_
from typing import Any, ClassVar, TypeVar

import numpy as np

from tilewright.ir.constants import Constants
from tilewright.ir.errors import InputError
from tilewright.ir.expr import BinOp, Expr, Sym
from tilewright.ir.slot_setters import slot_setters
from tilewright.ir.types import ArrayType, TensorType, Type, array_type


class Level(Enum):
    """The levels of the IR, from the network to what runs; `Level.GRAPH.value` is the prefix of its ops."""

    GRAPH = "graph"
    TENSOR = "tensor"
    THREAD = "thread"
    PLAN = "plan"


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a function of the same module, printed `@name`."""

    name: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """An ordered mapping from names to attributes, printed `(n: 1, k: 64)`."""

    items: tuple[tuple[str, Attr], ...] = ()

    @classmethod
    def of(cls, mapping: Mapping[str, Attr]) -> Pairs:
        """Pairs in the mapping's order."""
        return cls(tuple(mapping.items()))

    def as_dict(self) -> dict[str, Attr]:
        """A new dict in the same order."""
        return dict(self.items)

    def __getitem__(self, key: str) -> Attr:
        for k, v in self.items:
            if k == key:
                return v
        raise KeyError(key)

    def __contains__(self, key: str) -> bool:
        return any(k == key for k, _ in self.items)


class TypedAttr(ABC):
    """An attribute of a class of its own, printed `name<key: value, ...>` (see `typed_attributes`)."""

    attribute: ClassVar[str]

    @abstractmethod
    def pairs(self) -> Pairs:
        """Return the keys and values that are printed between the angle brackets."""


Attr = None | bool | int | float | str | tuple["Attr", ...] | Sym | BinOp | Pairs | Ref | TypedAttr


_Attrs = tuple[tuple[str, Attr], ...]
_ABSENT: Any = object()


def _found(attrs: _Attrs, key: str, default: Any) -> Any:
    """The attribute called `key`, or `default`."""
    for k, v in attrs:
        if k == key:
            return v
    return default


def _changed(attrs: _Attrs, changes: Mapping[str, Attr]) -> _Attrs:
    """Attributes with changes applied in place, new ones at the end."""
    left = dict(changes)
    replaced = [(k, left.pop(k, v)) for k, v in attrs]
    return (*replaced, *left.items())


def _same(new: tuple[object, ...], old: tuple[object, ...]) -> bool:
    """Return whether two tuples hold the same nodes."""
    return len(new) == len(old) and all(map(is_, new, old))


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Value:
    """One SSA value; `hint` only affects printing."""

    type: Type
    hint: str = ""

    def __init__(self, type: Type, hint: str = "") -> None:
        _set_type(self, type)
        _set_hint(self, hint)

    @property
    def tensor(self) -> TensorType:
        """The type, known to be a tensor; raises InputError otherwise."""
        if isinstance(self.type, TensorType):
            return self.type
        raise InputError(f"expected a tensor value, got one of type {self.type}")


_set_type, _set_hint = slot_setters(Value)


@dataclass(frozen=True, slots=True, eq=False, init=False)
class Op:
    """`results = name(operands, attrs) body`. Everything specific to `name` hangs on its OpDef.

    `loc` names the origin (`relay:nn.conv2d#3`) and survives rewrites; `line` is the line of the text
    that the op was parsed from, 0 where there is none. Neither takes part in equality.
    """

    name: str
    operands: tuple[Value, ...] = ()
    attrs: tuple[tuple[str, Attr], ...] = ()
    results: tuple[Value, ...] = ()
    body: Block | None = None
    loc: str = ""
    line: int = 0

    def __init__(
        self,
        name: str,
        operands: tuple[Value, ...] = (),
        attrs: tuple[tuple[str, Attr], ...] = (),
        results: tuple[Value, ...] = (),
        body: Block | None = None,
        loc: str = "",
        line: int = 0,
    ) -> None:
        _set_name(self, name)
        _set_operands(self, operands)
        _set_attrs(self, attrs)
        _set_results(self, results)
        _set_body(self, body)
        _set_loc(self, loc)
        _set_line(self, line)

    def __getitem__(self, key: str) -> Attr:
        value = _found(self.attrs, key, _ABSENT)
        if value is _ABSENT:
            raise KeyError(f"{self.name} has no attribute '{key}'")
        return value

    def get(self, key: str, default: Attr = None) -> Attr:
        """Attribute `key`, or `default` where the op does not carry it."""
        return _found(self.attrs, key, default)

    def integer(self, key: str) -> int:
        """Attribute `key`, known to be an integer; raises InputError otherwise."""
        value = self[key]
        if type(value) is not int:
            raise InputError(f"{self.name}: expected attribute '{key}' to be an integer, got {value!r}")
        return value

    def number(self, key: str) -> float | int | bool:
        """Attribute `key`, known to be a number or a bool; raises InputError otherwise."""
        value = self[key]
        if not isinstance(value, float | int):
            raise InputError(f"{self.name}: expected attribute '{key}' to be a number, got {value!r}")
        return value

    def expr(self, key: str) -> Expr:
        """Attribute `key`, known to be an index expression; raises InputError otherwise."""
        value = self[key]
        if type(value) is not int and not isinstance(value, Sym | BinOp):
            raise InputError(f"{self.name}: expected attribute '{key}' to be an expression, got {value!r}")
        return value

    def exprs(self, key: str) -> tuple[Expr, ...]:
        """Attribute `key`, known to be index expressions; raises InputError otherwise."""
        value = self[key]
        if not (
            isinstance(value, tuple) and all(type(x) is int or isinstance(x, Sym | BinOp) for x in value)
        ):
            raise InputError(f"{self.name}: expected attribute '{key}' to be expressions, got {value!r}")
        return value  # type: ignore[return-value]

    @property
    def attributes(self) -> dict[str, Any]:
        """A new dict of the attributes by name; the schema of the op says their types."""
        return dict(self.attrs)

    def integers(self, key: str) -> tuple[int, ...]:
        """Attribute `key`, known to be integers; raises InputError otherwise."""
        value = self[key]
        if not isinstance(value, tuple) or not all(type(x) is int for x in value):
            raise InputError(f"{self.name}: expected attribute '{key}' to be integers, got {value!r}")
        return value  # type: ignore[return-value]

    @property
    def level(self) -> str:
        """Prefix of the name: `graph`, `tensor`, `thread`, `plan` or `scalar`."""
        return self.name.partition(".")[0]

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value

    def with_attrs(self, **changes: Attr) -> Op:
        """A copy with attributes replaced or appended; results keep their identity."""
        attrs = _changed(self.attrs, changes)
        return Op(self.name, self.operands, attrs, self.results, self.body, self.loc, self.line)

    def with_operands(self, operands: tuple[Value, ...]) -> Op:
        """Self when nothing changed."""
        if _same(operands, self.operands):
            return self
        return Op(self.name, operands, self.attrs, self.results, self.body, self.loc, self.line)


(
    _set_name,
    _set_operands,
    _set_attrs,
    _set_results,
    _set_body,
    _set_loc,
    _set_line,
) = slot_setters(Op)


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Parameters and a sequence of ops; program order is the order of effects."""

    params: tuple[Value, ...] = ()
    ops: tuple[Op, ...] = ()

    def with_ops(self, ops: tuple[Op, ...]) -> Block:
        """Self when nothing changed: identity is the change flag."""
        return self if _same(ops, self.ops) else Block(self.params, ops)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Func:
    """A function of one level. Thread-level functions return nothing: results are trailing global buffers."""

    level: Level
    name: str
    body: Block
    result_types: tuple[Type, ...] = ()
    attrs: tuple[tuple[str, Attr], ...] = ()

    def __str__(self) -> str:
        return _TEXTS[Func](self)

    def __repr__(self) -> str:
        return f"<Func @{self.name} of level {self.level.value}: {len(self.body.ops)} ops>"

    def __getitem__(self, key: str) -> Attr:
        value = _found(self.attrs, key, _ABSENT)
        if value is _ABSENT:
            raise KeyError(f"@{self.name} has no attribute '{key}'")
        return value

    def get(self, key: str, default: Attr = None) -> Attr:
        """Attribute `key`, or `default` where the function does not carry it."""
        return _found(self.attrs, key, default)

    @property
    def params(self) -> tuple[Value, ...]:
        return self.body.params

    @property
    def updates(self) -> tuple[tuple[int, int], ...]:
        """Return the attribute `updates` of a function with state: pairs (parameter, result).

        Such a parameter is no input of a caller: it is kept between runs, starts as the constant of its name,
        and becomes that result when a run ends. `verify` checks the pairs.
        """
        pairs = self.get("updates", ())
        return pairs if isinstance(pairs, tuple) else ()  # type: ignore[return-value]

    def with_body(self, body: Block) -> Func:
        """Self when nothing changed."""
        return self if body is self.body else replace(self, body=body)

    def with_attrs(self, **changes: Attr) -> Func:
        """A copy with attributes replaced or appended."""
        return replace(self, attrs=_changed(self.attrs, changes))

    def without_attr(self, name: str) -> Func:
        """Self when it does not carry the attribute, else a copy that does not."""
        kept = tuple((key, value) for key, value in self.attrs if key != name)
        return self if len(kept) == len(self.attrs) else replace(self, attrs=kept)


#: the function of a training step that holds the network as inference runs it
INFERENCE = "inference"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Module:
    """Functions (`main` is the entry), attributes such as `target`, and the named constants."""

    name: str
    funcs: tuple[Func, ...] = ()
    attrs: tuple[tuple[str, Attr], ...] = ()
    constants: Constants = field(default_factory=Constants)
    _by_name: dict[str, Func] | None = field(default=None, init=False, repr=False, compare=False)

    def __str__(self) -> str:
        return _TEXTS[Module](self)

    def __repr__(self) -> str:
        names = ", ".join(f"@{f.name}" for f in self.funcs)
        ops = sum(len(f.body.ops) for f in self.funcs)
        return f"<Module @{self.name}: {names or 'no functions'}, {ops} ops, {len(self.constants)} constants>"

    def __getitem__(self, name: str) -> Func:
        found = self._named().get(name)
        if found is None:
            raise KeyError(f"module @{self.name} has no function @{name}")
        return found

    def _named(self) -> dict[str, Func]:
        """The first function of each name; made when one is asked for."""
        if self._by_name is None:
            object.__setattr__(self, "_by_name", {f.name: f for f in reversed(self.funcs)})
        return self._by_name  # type: ignore[return-value]

    def get(self, key: str, default: Attr = None) -> Attr:
        """Module attribute `key`."""
        return _found(self.attrs, key, default)

    @property
    def main(self) -> Func:
        """The entry function; raises InputError where there is none."""
        found = self._named().get("main")
        if found is None:
            raise InputError(f"module @{self.name} has no function @main")
        return found

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the attribute `parameters` of a graph-level module: the constants that training may change.

        Importers name the weights of a network so; literals, tables, masks, and the running statistics of
        normalisations are constants that nothing trains. Inference reads none of it.
        """
        names = self.get("parameters", ())
        return names if isinstance(names, tuple) else ()  # type: ignore[return-value]

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the parameters of @main, in order."""
        return tuple(p.hint or str(i) for i, p in enumerate(self.main.params))

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the parameters of @main that are state (see `Func.updates`), in their order."""
        updates = [f.updates for f in self.funcs if f.name == "main"]
        if not updates or not updates[0]:
            return ()
        names = self.input_names
        return tuple(names[p] for p, _ in sorted(updates[0]))

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each parameter of @main."""
        return tuple(array_type(p.tensor) for p in self.main.params)

    def inference(self, state: Mapping[str, Any] | None = None) -> Module:
        """Return the network of a training step, with its first weights or, by name, those of `state`.

        Raises InputError for a module without a function @inference.
        """
        network = next((f for f in self.funcs if f.name == INFERENCE), None)
        if network is None:
            raise InputError(
                f"expected a training step, which has a function @{INFERENCE}", where=f"@{self.name}"
            )
        named = {str(op["name"]) for op in network.body.ops if op.name.endswith(".constant")}
        weights = {n: a for n, a in (state or {}).items() if n in named}
        constants = self.constants.only(frozenset(named)).updated(weights)
        attrs = tuple((k, a) for k, a in self.attrs if k not in ("ranges", "loss_scale", "on_nan"))
        name = self.name.removesuffix("_step")
        return Module(name, (replace(network, name="main"),), attrs, constants)

    def with_funcs(self, funcs: tuple[Func, ...]) -> Module:
        """Self when nothing changed."""
        return self if _same(funcs, self.funcs) else replace(self, funcs=funcs)

    def with_constants(self, constants: Constants | Mapping[str, np.ndarray]) -> Module:
        """Self when nothing changed."""
        if constants is self.constants:
            return self
        held = constants if isinstance(constants, Constants) else Constants(constants)
        return replace(self, constants=held)

    def with_attrs(self, **changes: Attr) -> Module:
        """A copy with attributes replaced or appended."""
        return replace(self, attrs=_changed(self.attrs, changes))

    def without_attr(self, name: str) -> Module:
        """Self when it does not carry the attribute, else a copy that does not."""
        kept = tuple((key, value) for key, value in self.attrs if key != name)
        return self if len(kept) == len(self.attrs) else replace(self, attrs=kept)


def walk(block: Block) -> Iterator[Op]:
    """All ops of a block and of the bodies inside, in program order."""
    for op in block.ops:
        yield op
        if op.body is not None:
            yield from walk(op.body)


def backward_slice(ops: Sequence[Op], values: Iterable[Value]) -> list[Op]:
    """Those of some ops that values are computed by, directly or not, in their order."""
    needed = set(values)
    found: list[Op] = []
    for op in reversed(ops):
        if not needed.isdisjoint(op.results):
            found.append(op)
            needed.update(op.operands)
    return found[::-1]


_Printed = TypeVar("_Printed", Func, Module)
#: the functions that `str` calls, by kind of node
_TEXTS: dict[type, Callable[[Any], str]] = {}


def print_with(kind: type[_Printed], show: Callable[[_Printed], str]) -> None:
    """Make `show` what `str` calls; the printer, which stands above the nodes, hands over its functions."""
    _TEXTS[kind] = show
