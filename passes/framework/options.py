"""Options of passes: their types as data, their text in pipelines, the checks of values given from Python."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from tilewright.ir.errors import InputError
from tilewright.passes.rewriting.names import did_you_mean

Option = int | float | bool | str
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")
_RESERVED = {"true", "false", "inf", "nan"}


@dataclass(frozen=True, slots=True)
class OptionDef:
    """One option of a pass: its type, its default and, for a `Literal`, the strings it may be."""

    name: str
    type: type
    default: Option
    choices: tuple[str, ...] = ()

    def check(self, value: Any) -> Option:
        """`value` as this option's type (an int is also a float); raises InputError."""
        if self.type is float and type(value) is int:
            value = float(value)
        fits = type(value) is self.type and (not self.choices or value in self.choices)
        fits = fits and value == value  # NaN is equal to nothing, so no two pipelines with it would be
        if not fits:
            raise InputError(f"option '{self.name}' expects {self.expected}, got {show_option(value)}")
        checked: Option = value
        return checked

    def read(self, text: str) -> Option:
        """The value that `text` stands for in a pipeline; raises InputError."""
        try:
            if self.type is bool and text in ("true", "false"):
                return text == "true"
            if self.type is int and len(text) <= 20:
                return int(text)
            if self.type is float:
                return self.check(float(text))
            if self.type is str:
                return self.check(str(json.loads(text)) if text.startswith('"') else text)
        except ValueError:
            pass
        raise InputError(f"option '{self.name}' expects {self.expected}, got {text}")

    @property
    def expected(self) -> str:
        """The values that it takes, in words."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        return {int: "an integer", float: "a number", bool: "true or false", str: "a string"}[self.type]

    def __str__(self) -> str:
        kind = "|".join(self.choices) if self.choices else self.type.__name__
        return f"{self.name}: {kind} = {show_option(self.default)}"


def show_option(value: object) -> str:
    """Text of an option value as pipelines write it; a string stays bare where it reads back as itself."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value if _WORD.fullmatch(value) and value not in _RESERVED else json.dumps(value)
    return repr(value)


def option_of(parameter: inspect.Parameter, annotation: object) -> OptionDef:
    """The option that a parameter of a pass declares; raises InputError where it is no valid option."""
    name, default = parameter.name, parameter.default
    if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or default is inspect.Parameter.empty:
        raise InputError(f"expected option '{name}' to be keyword-only with a default")
    if get_origin(annotation) is Literal:
        choices = get_args(annotation)
        if all(type(c) is str for c in choices):
            option = OptionDef(name, str, default, choices)
            option.check(default)
            return option
    elif annotation in (int, float, bool, str) and isinstance(annotation, type):
        value = OptionDef(name, annotation, default).check(default)
        return OptionDef(name, annotation, value)
    raise InputError(
        f"expected option '{name}' to be annotated int, float, bool, str or Literal[...] of strings, "
        f"got {annotation}"
    )


def check_options(
    defs: tuple[OptionDef, ...], values: Mapping[str, object]
) -> tuple[tuple[str, Option], ...]:
    """The given options in declared order, without those equal to their default; raises InputError."""
    known = {d.name: d for d in defs}
    for name in values:
        if name not in known:
            raise InputError(unknown_option(name, known))
    checked = {name: known[name].check(value) for name, value in values.items()}
    return tuple(
        (d.name, checked[d.name]) for d in defs if d.name in checked and not _same(checked[d.name], d.default)
    )


def _same(a: Option, b: Option) -> bool:
    return show_option(a) == show_option(b)


def unknown_option(name: str, known: Mapping[str, object]) -> str:
    """The sentence about an option that a pass does not have."""
    return f"unknown option '{name}'{did_you_mean(name, known)}; it has {', '.join(known) or 'no options'}"
