"""The self-contained HTML page that steps through the passes with changes side by side."""

from __future__ import annotations

import html
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from tilewright.ir import Module, show
from tilewright.tools.irdump.record import Recorder, op_count
from tilewright.tools.report.page_template import filled, json_text, resource

_HERE = "tilewright.tools.irdump"
#: lines of one state that the page holds; the rest is counted
MAX_LINES = 40_000


@dataclass(frozen=True)
class _State:
    label: str
    summary: str
    seconds: float
    changed: bool
    ops: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class LastStep:
    """The step behind the passes: the plan, or the text of the kernels."""

    label: str
    summary: str
    text: str
    ops: int


def page(name: str, target: str, recorder: Recorder, last: LastStep | None = None) -> str:
    """HTML of one page: the input, every pass, and what follows the passes where it is given.

    Holds all data, styles and scripts itself and loads nothing.
    """
    data = {"file": name, "target": target, **_compact(_states(recorder, last))}
    return filled(
        resource("page.html", _HERE),
        title=html.escape(name),
        style=resource("page_palette.css") + resource("page.css", _HERE),
        script=resource("page.js", _HERE),
        data=json_text(data),
    )


def _states(recorder: Recorder, last: LastStep | None) -> list[_State]:
    lines = _lines(recorder.start)
    states = [_State("input", "The module as it was read", 0.0, False, op_count(recorder.start), lines)]
    for r in recorder.passes:
        if r.changed:
            lines = _lines(r.after)
        states.append(_State(r.name, r.summary, r.seconds, r.changed, op_count(r.after), lines))
    if last is not None:
        states.append(_State(last.label, last.summary, 0.0, True, last.ops, _cut(last.text.splitlines())))
    return states


def _lines(module: Module) -> tuple[str, ...]:
    return _cut(show(module, locations=False).splitlines())


def _cut(lines: list[str]) -> tuple[str, ...]:
    rest = len(lines) - MAX_LINES
    return (*lines[:MAX_LINES], f"... {rest} more lines") if rest > 0 else tuple(lines)


def _compact(states: list[_State]) -> dict[str, Any]:
    """States over one table of distinct lines; an unchanged state repeats the lines of the one before."""
    table: dict[str, int] = {}
    out = []
    before: tuple[str, ...] = ()
    for i, s in enumerate(states):
        record: dict[str, Any] = {"label": s.label, "summary": s.summary, "seconds": s.seconds, "ops": s.ops}
        record["changed"] = s.changed and s.lines != before
        if i == 0 or record["changed"]:
            record["lines"] = [table.setdefault(line, len(table)) for line in s.lines]
        if record["changed"]:
            record["edits"] = edits(before, s.lines)
        out.append(record)
        before = s.lines
    return {"table": list(table), "steps": out}


def edits(a: tuple[str, ...], b: tuple[str, ...]) -> list[tuple[int, int, int, int]]:
    """Ranges `a[i:j]` replaced by `b[k:l]`, in order; everything between is equal."""
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    middle = SequenceMatcher(None, a[head : len(a) - tail], b[head : len(b) - tail])
    return [
        (head + i, head + j, head + k, head + n) for tag, i, j, k, n in middle.get_opcodes() if tag != "equal"
    ]
