"""`@register_pass` turns a function into a `PassDef`; called with options that gives a `Pass`, which runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Protocol, TypeVar, get_type_hints

from tilewright.ir.errors import InputError, WorkError
from tilewright.ir.nodes import Func, Level, Module
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.options import Option, OptionDef, check_options, option_of, show_option

P = ParamSpec("P")
S = TypeVar("S", Func, Module)
_ARROW = "-->"
#: where the modules of our passes are
OWN_PACKAGE = "tilewright.passes."


@dataclass(frozen=True, eq=False)
class PassDef(Generic[P]):
    """A registered pass: a frozen record that is called with options to get a configured `Pass`.

    levels: the pass runs on functions of these levels (a module-scoped pass decides itself what it touches).
    to: the level its functions have afterwards, for a lowering.
    requires, establishes, breaks: names of invariants before, after, and no longer after it.
    scope: what `run` maps: each function, or the module.
    """

    name: str
    levels: tuple[Level, ...]
    to: Level | None
    requires: frozenset[str]
    establishes: frozenset[str]
    breaks: frozenset[str]
    scope: Literal["function", "module"]
    options: tuple[OptionDef, ...]
    doc: str
    origin: str
    run: Callable[..., Any]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Pass:
        """The pass with these options, which are keyword-only; raises InputError on a bad one."""
        if args:
            raise InputError(f"expected options of pass '{self.name}' by keyword, got {args[0]!r}")
        return self.configure(dict(kwargs))

    def configure(self, options: Mapping[str, object]) -> Pass:
        """The pass with options given as a mapping."""
        try:
            return Pass(self, check_options(self.options, options))
        except InputError as e:
            raise InputError(f"pass '{self.name}': {e}") from None

    @property
    def file(self) -> str:
        """The file that defines it, as Python names it."""
        return str(self.run.__code__.co_filename)

    @property
    def own(self) -> bool:
        """Whether it comes with Tilewright."""
        return self.origin.startswith(OWN_PACKAGE)

    @property
    def importable(self) -> str:
        """What `--import` takes to register it: a module of a package or a file; else empty."""
        if "." in self.origin:
            return self.origin
        return self.file if Path(self.file).is_file() else ""

    @property
    def place(self) -> str:
        """The module that defines it, and of a foreign one its file."""
        return self.origin if self.own else f"{self.origin} ({self.file})"

    @property
    def summary(self) -> str:
        """First line of the documentation."""
        return self.doc.splitlines()[0]

    @property
    def rewrite(self) -> str:
        """What the documentation says after `rewrite:`, lines joined: `before --> after`."""
        _, _, text = self.doc.partition("rewrite:")
        return " ".join(text.split("\n\n")[0].split())

    def __repr__(self) -> str:
        return f"<pass {self.name}>"


@dataclass(frozen=True, slots=True)
class Pass:
    """One configured pass: equal and hashable by name and options, printed as pipelines write it."""

    definition: PassDef[Any]
    options: tuple[tuple[str, Option], ...] = ()

    @property
    def name(self) -> str:
        return self.definition.name

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={show_option(v)}" for k, v in self.options)
        return f"{self.name}{{{inside}}}" if inside else self.name

    def spelled_out(self) -> str:
        """The text with defaults too, so that a changed default changes it."""
        given = dict(self.options)
        inside = ", ".join(
            f"{d.name}={show_option(given.get(d.name, d.default))}" for d in self.definition.options
        )
        return f"{self.name}{{{inside}}}"

    def apply(self, module: Module, ctx: PassContext) -> Module:
        """Run the function itself, without instruments; the same module when nothing changed.

        Raises WrongResult where it returns anything but what it takes.
        """
        d, options = self.definition, dict(self.options)
        if d.scope == "module":
            return _returned(d.run(module, ctx, **options), Module)
        return module.with_funcs(
            tuple(
                _returned(d.run(f, ctx, **options), Func) if f.level in d.levels else f for f in module.funcs
            )
        )

    def __call__(self, module: Module, ctx: PassContext | None = None) -> Module:
        """Run this pass with checks and instruments, as a pipeline of one."""
        from tilewright.passes.framework.pipeline import Pipeline
        from tilewright.passes.framework.runner import run_pipeline

        return run_pipeline(module, Pipeline((self,)), ctx or PassContext())


class WrongResult(WorkError):
    """What a pass returned is no IR; most often it has no `return`."""


def _returned(result: object, kind: type[S]) -> S:
    if not isinstance(result, kind):
        raise WrongResult(f"returned {type(result).__name__}, expected a {kind.__name__}")
    return result


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
        from tilewright.passes.framework.registry import add_pass

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
