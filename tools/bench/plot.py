"""The benchmark as one picture: per network the ratio to the better peer, a panel per batch and precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewright.ir import InputError
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.bench.rows import Row
from tilewright.tools.report.figures import CYCLE, FAINT, INK, Picture, drawing, require_matplotlib

#: a page's own colours, which a picture of its own has to bring
_STYLE = "<style>svg{color:#1d2430;background:#fff;--faint:#8a93a0}</style>"
_NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'


def require_plot(path: str) -> None:
    """Raises InputError for another suffix than .svg, UnsupportedError without matplotlib."""
    if Path(path).suffix != ".svg":
        raise InputError("expected a file name that ends in .svg", where="--plot")
    require_matplotlib()


def write_plot(data: Mapping[str, Any], path: str) -> None:
    """Draw the rows of a document into a file; raises InputError where it cannot be written."""
    svg = ratios_svg(data["rows"]).replace("<svg ", f"<svg {_NAMESPACES} ", 1)
    head, mark, rest = svg.partition(">")
    write_atomically(path, f"{head}{mark}{_STYLE}{rest}\n", "the plot")


@drawing
def ratios_svg(rows: Sequence[Row]) -> str:
    """Bars of how much faster than the better peer, one group per network; a line at 1."""
    groups = list(dict.fromkeys((r["batch"], r["precision"]) for r in rows))
    networks = list(dict.fromkeys(r["network"] for r in rows))
    by_case = {(r["network"], r["batch"], r["precision"]): r for r in rows}
    picture = Picture("bench", 10.0, 1.2 + 0.26 * max(3, len(networks) * (len(groups) + 1)))
    ax = picture.axes
    place, ticks = 0.0, []
    for network in networks:
        begin = place
        for number, (batch, precision) in enumerate(groups):
            ratio = by_case.get((network, batch, precision), {}).get("ratio")
            label = f"batch {batch}, {precision}"
            (bar,) = ax.barh(place, ratio or 0.0, 0.8, color=CYCLE[number % len(CYCLE)])
            if network == networks[0]:
                bar.set_label(label)
            text = "no ratio" if ratio is None else f"{ratio:.2f}"
            picture.tag(bar, f"bar-{int(begin)}-{number}", f"{network}, {label}: {text}")
            ax.annotate(
                text, (ratio or 0.0, place), (4, 0), textcoords="offset points", va="center", color=INK
            )
            place += 1.0
        ticks.append((begin + place - 1.0) / 2)
        place += 1.0
    ax.axvline(1.0, color=INK, lw=1.2)
    ax.set_yticks(ticks, networks)
    ax.set_ylim(max(place, 1.0) - 1.2, -0.8)
    ax.set_xlim(left=0)
    ax.margins(x=0.12)
    ax.set_xlabel("time of the better peer over that of Tilewright: beyond the line Tilewright is faster")
    ax.grid(True, axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=3, color=FAINT)
    ax.tick_params(axis="y", length=0)
    if rows:
        ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(4, len(groups)))
    return picture.svg()
