"""Invariants: named, executable statements about a module that passes require and establish."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir.errors import InputError
from tilewright.ir.modules.verifier import faults_of
from tilewright.ir.nodes import Func, Level, Module, walk
from tilewright.ir.types import TensorType
from tilewright.passes.framework.registry import load_own
from tilewright.passes.rewriting.names import did_you_mean

#: returns the faults of a module, one sentence each; none when the invariant holds
Invariant = Callable[[Module], list[str]]
_INVARIANTS: dict[str, Invariant] = {}


def register_invariant(name: str) -> Callable[[Invariant], Invariant]:
    """Give an invariant its name; a second one of the same name is an error naming both modules."""

    def decorate(fn: Invariant) -> Invariant:
        other = _INVARIANTS.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (fn.__module__, fn.__qualname__):
            raise InputError(
                f"invariant '{name}' is defined twice: by {other.__module__} and by {fn.__module__}"
            )
        _INVARIANTS[name] = fn
        return fn

    return decorate


def find_invariant(name: str) -> Invariant:
    """The invariant of this name; raises InputError with a hint."""
    if name not in _INVARIANTS:
        load_own()
    if name not in _INVARIANTS:
        raise InputError(f"unknown invariant '{name}'{did_you_mean(name, _INVARIANTS)}")
    return _INVARIANTS[name]


def invariant_names() -> tuple[str, ...]:
    """Names of all invariants."""
    load_own()
    return tuple(sorted(_INVARIANTS))


@register_invariant("verified")
def verified(module: Module) -> list[str]:
    """The module keeps the rules of its levels."""
    return [str(f) for f in faults_of(module)]


@register_invariant("shapes-known")
def shapes_known(module: Module) -> list[str]:
    """Every value of a graph function is a tensor (types hold no unknown dimension)."""
    return [
        f"@{f.name}: {op.name} gives a value of type {r.type}"
        for f in _of(module, Level.GRAPH)
        for op in walk(f.body)
        for r in op.results
        if not isinstance(r.type, TensorType)
    ]


@register_invariant("no-graph-ops")
def no_graph_ops(module: Module) -> list[str]:
    """No function is left at the graph level."""
    return [f"@{f.name} is still at the graph level" for f in _of(module, Level.GRAPH)]


@register_invariant("kernels-outlined")
def kernels_outlined(module: Module) -> list[str]:
    """@main only calls kernels: it holds calls, communications, constants, joins, parts, and the return."""
    names = ("call", "communicate", "constant", "join", "part", "return")
    allowed = {f"tensor.{name}" for name in names}
    mains = [f for f in module.funcs if f.name == "main"]
    return [f"@main holds {op.name}" for f in mains for op in f.body.ops if op.name not in allowed]


def _of(module: Module, level: Level) -> list[Func]:
    return [f for f in module.funcs if f.level is level]
