"""Op definitions: what the IR knows about an op name (schema, inference, effects, reference semantics)."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, ParamSpec

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.expr import BinOp, Sym
from tilewright.ir.extents import dims_of
from tilewright.ir.facts import Facts, WorkClass
from tilewright.ir.nodes import Attr, Op, Pairs, Ref
from tilewright.ir.types import DTYPES, Type

#: attribute values by name, defaults filled in
Attrs = Mapping[str, Any]
Infer = Callable[[Sequence[Type], Attrs], Sequence[Type]]
_P = ParamSpec("_P")
Evaluate = Callable[[Sequence[np.ndarray], Attrs], Sequence[np.ndarray]]
#: per operand of a scalar op the function (operands, result, g) -> g times the derivative by it, on scalar
#: code; none where that is zero wherever it exists
Partials = tuple[Callable[[Sequence[Any], Any, Any], Any] | None, ...]


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED: Any = _Required()

#: kind of attributes that name the ops of the network that an op comes from, as `loc` does where it is one
ORIGINS = "origins"

#: a tuple, as `isinstance` takes twice as long with a union that is made for each call
_SYMBOLIC = (Sym, BinOp)
_KINDS: dict[str, Callable[[Attr], bool]] = {
    "int": lambda a: type(a) is int,
    "float": lambda a: type(a) is float,
    "number": lambda a: type(a) in (int, float, bool),
    "bool": lambda a: type(a) is bool,
    "str": lambda a: type(a) is str,
    "strs": lambda a: isinstance(a, tuple) and all(type(x) is str for x in a),
    ORIGINS: lambda a: _KINDS["strs"](a),
    "dtype": lambda a: type(a) is str and a in DTYPES,
    "ints": lambda a: isinstance(a, tuple) and all(type(x) is int for x in a),
    "expr": lambda a: type(a) is int or isinstance(a, _SYMBOLIC),
    "exprs": lambda a: isinstance(a, tuple) and all(map(_KINDS["expr"], a)),
    "accesses": lambda a: isinstance(a, tuple) and all(_KINDS["exprs"](x) for x in a),
    "mask": lambda a: (
        isinstance(a, tuple) and all(isinstance(x, tuple) and len(x) == 3 and _KINDS["exprs"](x) for x in a)
    ),
    "dims": lambda a: (
        isinstance(a, Pairs)
        and all(type(v) is int and v >= 0 for _, v in a.items)
        and len({k for k, _ in a.items}) == len(a.items)
    ),
    "pairs": lambda a: isinstance(a, Pairs),
    "sym": lambda a: isinstance(a, Sym),
    "ref": lambda a: isinstance(a, Ref),
    "list": lambda a: isinstance(a, tuple),
}


@dataclass(frozen=True, slots=True)
class AttrDef:
    """One attribute: its kind (a key of the kinds table; `kind?` also admits none) and default."""

    kind: str
    default: Any = REQUIRED
    doc: str = ""


@dataclass(frozen=True)
class Transport:
    """How what a thread-level op writes to shared memory arrives there.

    destination: the operand that is written. arrival: `transaction` for bytes that the copy engine counts on
    a barrier, `copies` for asynchronous copies of threads, `stores` for stores of threads.
    nbytes: of a transaction, the bytes that arrive in this block's slot by one such op.
    """

    destination: int
    arrival: Literal["transaction", "copies", "stores"]
    nbytes: Callable[[Op], int] | None = None

    def __post_init__(self) -> None:
        if (self.arrival == "transaction") != (self.nbytes is not None):
            raise ValueError(f"expected nbytes of transactions alone, got {self}")


@dataclass(frozen=True)
class OpDef:
    """Everything specific to one op name.

    operands: names; a trailing `*` on the last admits any number, a `?` marks an optional one.
    infer: result types from operand types and attributes, raising InputError on bad operands, to which
      `define` adds the name of the op; None where
      result types are part of the text (constants, ops with bodies) and are checked by `verify`.
    evaluate: NumPy reference semantics on arrays; None for structural ops.
    verify: further checks of the whole op, returning messages.
    effects: what the op does besides giving results; an op without effects may be dropped or merged.
      read, write: memory; alloc: a buffer; barrier, async, warp, channel: waits for or works with others;
      control: runs its body when and as often as it says; terminator: ends its block;
      communicate: meets other devices, in program order.
    elementwise: a scalar op that computes each lane by itself.
    facts: of a graph op; `define` demands them all.
    partials: of a scalar op, its derivatives (`scalar_derivatives`); `define` demands them.
    work: of a tensor op that computes or moves elements, its class; `define` demands it of ops with bodies.
    transport: of a thread-level op that fills shared memory, how that arrives.
    issued_once: one thread of a role gives out the work of all, as it does for the copy engine.
    """

    name: str
    operands: tuple[str, ...]
    doc: str
    attrs: Mapping[str, AttrDef] = field(default_factory=dict)
    results: int | None = 1
    infer: Infer | None = None
    evaluate: Evaluate | None = None
    verify: Callable[[Op], Sequence[str]] | None = None
    effects: frozenset[str] = frozenset()
    body: bool = False
    elementwise: bool = False
    facts: Facts | None = None
    partials: Partials | None = None
    work: WorkClass | Callable[[Op], WorkClass] | None = None
    transport: Transport | None = None
    issued_once: bool = False

    @property
    def operand_range(self) -> tuple[int, int | None]:
        """Fewest and most operands (None: no limit)."""
        low = sum(1 for n in self.operands if n[-1] not in "*?")
        return low, None if self.operands and self.operands[-1].endswith("*") else len(self.operands)

    @cached_property
    def _checks(self) -> tuple[tuple[str, Attr, str, bool, Callable[[Attr], bool]], ...]:
        """Per attribute its name, default, kind, whether it may be none, and what tells its kind."""
        return tuple(
            (name, d.default, d.kind, d.kind.endswith("?"), _KINDS[d.kind.removesuffix("?")])
            for name, d in self.attrs.items()
        )

    @cached_property
    def index_depths(self) -> tuple[tuple[str, int], ...]:
        """Return the attributes that hold index expressions, each with the number of tuples around these."""
        depths = {"expr": 0, "exprs": 1, "mask": 2, "accesses": 2}
        return tuple((name, depths[d.kind]) for name, d in self.attrs.items() if d.kind in depths)

    def complete(self, attrs: Mapping[str, Attr]) -> tuple[tuple[str, Attr], ...]:
        """Attributes in schema order with defaults filled in; raises InputError naming every bad one."""
        if not attrs and not self.attrs:
            return ()
        faults = [f"unknown attribute '{k}'{_hint(k, self.attrs)}" for k in attrs if k not in self.attrs]
        out: list[tuple[str, Attr]] = []
        for name, default, kind, optional, is_of_kind in self._checks:
            value = attrs.get(name, default)
            if value is REQUIRED:
                faults.append(f"missing attribute '{name}' ({kind})")
            elif not (optional if value is None else is_of_kind(value)):
                faults.append(f"attribute '{name}' expects {kind}, got {value!r}")
            else:
                out.append((name, value))
        if faults:
            raise InputError(f"{self.name}: {'; '.join(faults)}")
        return tuple(out)


_DEFS: dict[str, OpDef] = {}


def no_results(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    """The result types of an op that has none, whatever its operands."""
    return []


def _named(name: str, infer: Infer) -> Infer:
    """Inference whose errors begin with the name of the op."""

    def infer_named(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
        try:
            return infer(types, attrs)
        except InputError as e:
            raise type(e)(f"{name}: {e}") from None

    return infer_named


def _defining(make: Callable[_P, OpDef]) -> Callable[_P, OpDef]:
    def define(*args: _P.args, **kwargs: _P.kwargs) -> OpDef:
        """Register an op: takes what OpDef takes. Raises ValueError for a second one of the same name."""
        d = make(*args, **kwargs)
        if d.name in _DEFS:
            raise ValueError(f"op '{d.name}' is already defined")
        if not d.doc:
            raise ValueError(f"op '{d.name}' needs a doc")
        for a in d.attrs.values():
            if a.kind.removesuffix("?") not in _KINDS:
                raise ValueError(f"op '{d.name}': unknown attribute kind '{a.kind}'")
        if d.name.startswith("graph."):
            for fact, meaning in (d.facts or Facts()).unstated():
                raise ValueError(f"op '{d.name}' must state the fact '{fact}' ({meaning})")
        if d.name.startswith("scalar.") and d.partials is None:
            raise ValueError(f"op '{d.name}' must state its partial derivatives, one per operand")
        if d.name.startswith("tensor.") and d.body and d.work is None:
            raise ValueError(f"op '{d.name}' must state the class of its work")
        _DEFS[d.name] = d if d.infer is None else replace(d, infer=_named(d.name, d.infer))
        return _DEFS[d.name]

    return define


#: `define("graph.relu", ("x",), doc, ...)` registers an op; its arguments are the fields of `OpDef`
define = _defining(OpDef)


def op_def(name: str) -> OpDef:
    """The definition of `name`; raises InputError with a hint for an unknown op."""
    try:
        return _DEFS[name]
    except KeyError:
        raise InputError(f"unknown op '{name}'{_hint(name, _DEFS)}") from None


def compute(name: str, *inputs: np.ndarray, **attrs: Any) -> np.ndarray:
    """The only result of the op `name` by its reference semantics: `compute("scalar.add", a, b)`."""
    evaluate = op_def(name).evaluate
    if evaluate is None:
        raise InputError(f"expected an op that computes arrays from arrays, got '{name}'")
    (result,) = evaluate(inputs, attrs)
    return result


def facts_of(name: str) -> Facts:
    """The facts of the graph op `name`; raises InputError for an unknown op and for one of another level."""
    facts = op_def(name).facts
    if facts is None:
        raise InputError(f"expected a graph op, which states facts, got '{name}'")
    return facts


def work_class_of(op: Op) -> WorkClass | None:
    """The class of a tensor op's work; None for ops that neither compute nor move elements."""
    work = op_def(op.name).work
    return work(op) if callable(work) else work


def attributes_at(op: Op, shapes: Sequence[Sequence[int]]) -> dict[str, Attr]:
    """The attributes of a graph op whose operands have other extents; raises UnsupportedError where the op
    does not say what they are then.
    """
    dims = [dims_of(v.tensor.shape, shape) for v, shape in zip(op.operands, shapes, strict=True)]
    attrs = op.attributes
    return attrs | dict(facts_of(op.name).extents(dims, attrs))


def is_defined(name: str) -> bool:
    """True when an op of this name exists."""
    return name in _DEFS


def op_defs() -> tuple[OpDef, ...]:
    """All definitions, by name."""
    return tuple(_DEFS[k] for k in sorted(_DEFS))


def _hint(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
