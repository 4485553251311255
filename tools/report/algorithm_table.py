"""HTML of the convolutions: the algorithms that competed for each, with expected and measured times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from tilewright.tools.report.operator_class import op_title
from tilewright.tools.report.wording import seconds_text

#: ops that one row names
NAMED = 6


def algorithm_table(convolutions: Sequence[Mapping[str, Any]]) -> str:
    """A row for all convolutions alike that had a choice, a column per algorithm, the chosen one marked.

    convolutions: as `Executable.report()["convolutions"]` has them.
    """
    open_rows = [row for row in convolutions if len(row["considered"]) > 1]
    if not open_rows:
        return ""
    names = list(dict.fromkeys(c["algorithm"] for row in open_rows for c in row["considered"]))
    head = "".join(f"<th>{escape(h)}</th>" for h in ("convolutions", "data", "kernel", *names))
    body = "".join(_row(row, names) for row in open_rows)
    return (
        '<h3>Algorithms of convolutions</h3><div class="scroll"><table class="algorithms">'
        f"<tr>{head}</tr>{body}</table></div>"
    )


def _row(row: Mapping[str, Any], names: Sequence[str]) -> str:
    titles = [op_title(at) for at in row["origins"]]
    more = f" and {len(titles) - NAMED} more" if len(titles) > NAMED else ""
    cells = [", ".join(titles[:NAMED]) + more, _shape(row["data"]), _shape(row["kernel"])]
    by_name = {c["algorithm"]: c for c in row["considered"]}
    times = []
    for name in names:
        chosen = ' class="chosen"' if name == row["algorithm"] else ""
        times.append(f"<td{chosen}>{_times(by_name.get(name))}</td>")
    return f"<tr>{''.join(f'<td>{escape(c)}</td>' for c in cells)}{''.join(times)}</tr>"


def _times(c: Mapping[str, Any] | None) -> str:
    if c is None:
        return ""
    expected = f"{seconds_text(c['estimate_s'])} expected"
    if "measured_s" not in c:
        return expected
    measured = c["measured_s"]
    if measured is None:
        return f"bound {seconds_text(c['bound_s'])}: not measured"
    return f"{seconds_text(measured)} measured, {expected}"


def _shape(extents: Sequence[int]) -> str:
    return "x".join(map(str, extents))
