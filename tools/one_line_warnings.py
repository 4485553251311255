"""What commands say on stderr: one line each, without control characters; warnings without our code."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

#: of longer lines the middle is left out
MAX_CHARS = 4000


def one_line(text: str) -> str:
    """The text on one line, with escapes for what a terminal would obey or not show: files may hold it."""
    words = " ".join(text.split())
    shown = words if len(words) <= MAX_CHARS else f"{words[: MAX_CHARS // 2]} ... {words[-MAX_CHARS // 2 :]}"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)


@contextmanager
def one_line_warnings(program: str = "") -> Iterator[None]:
    """Within, warnings are printed as `warning: TEXT` behind the name of a program, if one is given."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        print(f"{program}{': ' if program else ''}warning: {one_line(str(message))}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
