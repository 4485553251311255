"""Tables of import rules: gathered from the modules of a package, or stated for ops that map one to one."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from tilewright.frontends.importing.call import REQUIRED, Call, Rule, repeated
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.ir.graph_ops.operands import axis_of
from tilewright.ir.nodes import Attr

#: Reads the value of an attribute of a graph op from a call; it is told the attribute's name.
Reader = Callable[[Call, str], Attr]


def gathered(*packages: ModuleType) -> dict[str, Any]:
    """The tables `RULES` of all modules of the packages, each of one family.

    Raises ValueError where two of them hold the same operator.
    """
    merged: dict[str, Any] = {}
    for module in (m for p in packages for m in pkgutil.iter_modules(p.__path__, f"{p.__name__}.")):
        table = import_module(module.name).RULES
        if twice := sorted(merged.keys() & table.keys()):
            raise ValueError(f"operators with two rules: {', '.join(twice)}, again in {module.name}")
        merged |= table
    return merged


def direct(op: str, operands: int = 1, /, **attrs: Reader | Attr) -> Rule:
    """The rule of an operator that is the graph op `op` on so many tensors.

    attrs: attributes of the graph op, each a value or a reader, such as `integer(1)`.
    """

    def rule(emit: Emitter, call: Call) -> Result:
        values = {name: read(call, name) if callable(read) else read for name, read in attrs.items()}
        results = emit.values(op, call.tensors(operands), **values)
        return results[0] if len(results) == 1 else results

    return rule


def directs(names: str, operands: int, **renamed: str) -> dict[str, Rule]:
    """Rules of operators without attributes, called as their graph ops; `renamed`: operator -> graph op."""
    return {name: direct(op, operands) for name, op in [*((n, n) for n in names.split()), *renamed.items()]}


def integer(default: Any = REQUIRED, name: str = "") -> Reader:
    """An integer, under `name` where the operator calls it otherwise than the graph op."""
    return lambda call, own: call.integer(name or own, default)


def real(default: Any = REQUIRED, name: str = "") -> Reader:
    """A number."""
    return lambda call, own: call.real(name or own, default)


def flag(default: Any = REQUIRED, name: str = "") -> Reader:
    """A truth value."""
    return lambda call, own: call.flag(name or own, default)


def text(default: Any = REQUIRED, name: str = "") -> Reader:
    """A string."""
    return lambda call, own: call.text(name or own, default)


def integers(default: Any = REQUIRED, name: str = "") -> Reader:
    """A list of integers."""
    return lambda call, own: call.integers(name or own, default)


def entries(count: int, default: Any = REQUIRED, name: str = "") -> Reader:
    """So many integers; one stands for all."""
    return lambda call, own: repeated(call.integers(name or own, default), count, name or own)


def dtype(default: str | None = None, name: str = "") -> Reader:
    """A dtype; `default` where the operator leaves it out."""
    return lambda call, own: call.dtype(name or own) or default


def axis(default: Any = REQUIRED, name: str = "") -> Reader:
    """An axis of the first operand, counted from the front."""
    return lambda call, own: axis_of(
        call.integer(name or own, default), call.tensor(0).tensor.rank, name or own
    )
