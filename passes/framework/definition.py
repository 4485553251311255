"""`@register_pass` turns a function into a `PassDef`: its signature and docstring say what the pass is."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, get_type_hints

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Level, Module
from tilewright.passes.framework.context import PassContext, PassDef
from tilewright.passes.framework.options import OptionDef, option_of
from tilewright.passes.framework.registry import add_pass

P = ParamSpec("P")
S = TypeVar("S", Func, Module)
_ARROW = "-->"


class _Decorator(Protocol):
    def __call__(self, fn: Callable[Concatenate[S, PassContext, P], S], /) -> PassDef[P]: ...


def register_pass(
    *levels: Level,
    to: Level | None = None,
    requires: Iterable[str] = (),
    establishes: Iterable[str] = (),
    breaks: Iterable[str] = (),
) -> _Decorator:
    """Register `fn(func: Func, ctx, *, option: type = default, ...) -> Func`, or Module to Module.

    The annotation of the first parameter decides whether the pass runs on each function of `levels` or on the
    module. The pass is named as the function, in kebab case. Its docstring must hold a line
    `rewrite: before --> after`.
    to: the level of the functions afterwards, for a lowering.
    requires, establishes, breaks: names of invariants that hold before, after, and no longer after the pass.
    Raises InputError when the function does not have this form or the name is taken.
    """

    def decorate(fn: Callable[Concatenate[S, PassContext, P], S], /) -> PassDef[P]:
        name = fn.__name__.replace("_", "-")
        try:
            scope, options = _signature(fn)
            doc = _documentation(fn)
            if not levels:
                raise InputError("expected at least one level, as in @register_pass(Level.GRAPH)")
        except InputError as e:
            raise InputError(f"pass '{name}' of {fn.__module__}: {e}") from None
        definition: PassDef[P] = PassDef(
            name,
            levels,
            to,
            frozenset(requires),
            frozenset(establishes),
            frozenset(breaks),
            scope,
            options,
            doc,
            fn.__module__,
            fn,
        )
        add_pass(definition)
        return definition

    return decorate


def _documentation(fn: Callable[..., Any]) -> str:
    doc = inspect.getdoc(fn) or ""
    if "rewrite:" not in doc or _ARROW not in doc:
        raise InputError(f"expected a docstring with a line 'rewrite: before {_ARROW} after'")
    return doc


def _signature(fn: Callable[..., Any]) -> tuple[Literal["function", "module"], tuple[OptionDef, ...]]:
    """Scope and options that the signature of a pass declares."""
    try:
        hints = get_type_hints(fn)
    except (NameError, TypeError) as e:
        raise InputError(f"cannot read its annotations: {e}") from None
    subject, *rest = inspect.signature(fn).parameters.values()
    kind = hints.get(subject.name)
    if kind not in (Func, Module) or hints.get("return") is not kind or not rest:
        raise InputError("expected fn(func: Func, ctx: PassContext, ...) -> Func, or the same with Module")
    scope: Literal["function", "module"] = "function" if kind is Func else "module"
    return scope, tuple(option_of(p, hints.get(p.name)) for p in rest[1:])
