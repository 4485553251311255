"""Names: those that nothing has yet, and spelling hints for those of passes, options and invariants."""

from __future__ import annotations

import difflib
from collections.abc import Container, Iterable
from itertools import count


def unused(name: str, taken: Container[str]) -> str:
    """The name, with as many underscores behind it as make it one that nothing has."""
    while name in taken:
        name += "_"
    return name


def numbered(stem: str, taken: Container[str]) -> str:
    """The stem with the least number that makes it a name that nothing has: `stem_0`, `stem_1`, ..."""
    return next(name for n in count() if (name := f"{stem}_{n}") not in taken)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the closest known name, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""
