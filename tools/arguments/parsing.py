"""The argument parser of the command line: one-line errors, bounded numbers, options with a scope."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

from tilewright.runtime.errors import InputError
from tilewright.tools.arguments.scope import OptionScope, check_scope

#: what `add_subparsers` gives
Sub: TypeAlias = "argparse._SubParsersAction[CommandParser]"

_PLACE = re.compile(r"argument (-[^:]*|[^:]*): ")


class CommandParser(argparse.ArgumentParser):
    """Reports bad arguments as `InputError`, in one sentence, and checks the scope of every option given.

    After parsing, the namespace has every option; what of it was given stands in `given`, by name. A value
    may begin with a minus sign and a digit: no option does.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")
        self._scopes: dict[str, OptionScope] = {}

    def add_scoped(
        self, place: argparse._ActionsContainer, scope: OptionScope, *flags: str, **options: Any
    ) -> None:
        """Add an option to this parser or to one of its groups (`place`), which has a meaning in `scope`."""
        action = place.add_argument(*flags, **options)
        self._scopes[action.dest] = scope

    def error(self, message: str) -> NoReturn:
        """Raise `InputError` with the option first, as all errors name their place."""
        place = _PLACE.match(message)
        text = f"{place[1]}: {message[place.end() :]}" if place else message
        raise InputError(f"{text} (see {self.prog} --help)")

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse with all defaults left out first: what is there then was given."""
        options = [a for a in self._actions if a.option_strings and a.default is not argparse.SUPPRESS]
        defaults = [a.default for a in options]
        for action in options:
            action.default = argparse.SUPPRESS
        try:
            space, rest = super().parse_known_args(args, namespace)
        finally:
            for action, value in zip(options, defaults, strict=True):
                action.default = value
        given = {a.option_strings[-1]: a.dest for a in options if hasattr(space, a.dest)}
        for action in options:
            if not hasattr(space, action.dest):
                setattr(space, action.dest, action.default)
        space.given = frozenset(given.values()) | getattr(space, "given", frozenset())
        for flag, dest in given.items():
            if dest in self._scopes:
                check_scope(flag, self._scopes[dest], space)
        return space, rest


def whole(least: int, most: int) -> Callable[[str], int]:
    """A type of arguments: an integer between the two, both included."""

    def read(text: str) -> int:
        number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,30}", text.strip()) else None
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"expected an integer from {least} to {most}, got '{text:.60}'")
        return number

    return read


def seconds(text: str) -> float:
    """A type of arguments: a positive number of seconds."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not number > 0:
        raise argparse.ArgumentTypeError(f"expected a positive number of seconds, got '{text:.60}'")
    return number


def real(least: float, below: float = float("inf")) -> Callable[[str], float]:
    """A type of arguments: a number from `least` to less than `below`."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number < below:
            upper = "" if below == float("inf") else f" to less than {below:g}"
            more = "" if upper else " or more"
            raise argparse.ArgumentTypeError(f"expected a number of {least:g}{upper}{more}, got '{text:.60}'")
        return number

    return read
