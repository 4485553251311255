"""The exact selection: by elimination, or by integer programming where the graph is too wide for it."""

from __future__ import annotations

from dataclasses import replace

from tilewright.costmodel.selection.elimination import MOST_ENTRIES, TooWide, eliminate
from tilewright.costmodel.selection.integer import LIMIT_S, NoChoiceFound, integer
from tilewright.costmodel.selection.problem import Problem, Selection
from tilewright.costmodel.selection.shortest_path import shortest_path


def exact(problem: Problem, most_entries: int = MOST_ENTRIES, limit_s: float = LIMIT_S) -> Selection:
    """The choice of least seconds; where the search was stopped, the best one found, and its note says so.

    Elimination needs tables of at most `most_entries` entries; wider problems go to the integer program,
    which may take `limit_s` seconds. The shortest path is taken where that has nothing better by then.
    """
    try:
        return eliminate(problem, most_entries)
    except TooWide as wide:
        why = str(wide)
    baseline = shortest_path(problem)
    try:
        best = integer(problem, limit_s)
    except NoChoiceFound as e:
        return replace(baseline, note=f"{why}; {e}; not proven to be the best")
    if baseline.seconds < best.seconds:
        best = replace(best, labels=baseline.labels, seconds=baseline.seconds)
    end = "" if best.optimal else f", not proven to be the best: up to {100 * best.gap:.2g} % may be missing"
    note = "; ".join(part for part in (why, best.note) if part)
    return replace(best, note=note + end)
