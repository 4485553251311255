"""Warnings of commands: one line each on stderr, without the place in our code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_line_warnings(program: str = "") -> Iterator[None]:
    """Within, warnings are printed as `warning: TEXT` behind the name of a program, if one is given."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"{program}{': ' if program else ''}warning: {' '.join(str(message).split())}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
