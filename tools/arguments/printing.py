"""Output of commands: errors and warnings on one line each, without control characters, and tables."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import PurePath

from tilewright.runtime.errors import InputError, TilewrightError

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


def exit_code_of(error: BaseException, program: str = "", words: Sequence[str] | None = None) -> int:
    """Print an error on one line of stderr, behind the name of a program if one is given; its exit code.

    words: the arguments; an error of the system about a file is about the input where one of them names it,
    and always where they are not given. Errors that are not ours come with their place.
    """
    text, code = str(error), 1
    if isinstance(error, TilewrightError):
        code = 2 if isinstance(error, InputError) else 1
    elif isinstance(error, KeyboardInterrupt):
        text, code = text or "interrupted", 130
    elif isinstance(error, MemoryError):
        text = f"out of memory: {text}" if text else "out of memory"
    elif isinstance(error, OSError) and error.strerror and isinstance(error.filename, str) and error.filename:
        text = f"{error.filename}: {error.strerror}"
        code = 2 if words is None or any(error.filename in word for word in words) else 1
    else:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{PurePath(place.filename).name}:{place.lineno}"
        text = f"internal fault at {where}: {type(error).__name__}: {error}"
    print(f"{program}{': ' if program else ''}error: {one_line(text)}", file=sys.stderr)
    return code


def error_line(error: BaseException, most: int = 400) -> str:
    """The text of an error on one line, cut after `most` characters."""
    return " ".join(str(error).split())[:most]


def aligned(rows: Sequence[Sequence[object]]) -> str:
    """A table whose columns begin at the same place in every line; all rows have as many cells."""
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in texts)
    return "\n".join(line.rstrip() for line in lines)


def markdown_row(cells: Sequence[object]) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(map(str, cells)) + " |"


def markdown_head(cells: Sequence[object]) -> list[str]:
    """The two lines that a Markdown table begins with."""
    return [markdown_row(cells), "|" + "---|" * len(cells)]
