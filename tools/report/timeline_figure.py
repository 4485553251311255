"""One replay over time: a lane per stream, the kernels on it, the critical path, and how many kernels run."""

from __future__ import annotations

from typing import Any

from tilewright.profiling.profile import Profile
from tilewright.profiling.replay_record import LaunchSpan
from tilewright.profiling.timeline import lanes
from tilewright.tools.report.facts import ReportFacts
from tilewright.tools.report.figures import FAINT, INK, Picture, class_colours, drawing
from tilewright.tools.report.wording import counted, seconds_text

#: waits across streams that are drawn at most; more would hide the kernels
SHOWN_WAITS = 150
_HEIGHT = 0.62


@drawing
def timeline_svg(facts: ReportFacts) -> str:
    """Every launch from start to end, coloured by operator class; a bar below marks the critical path."""
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import MaxNLocator

    replay = facts.replay
    rows, names = _rows(replay)
    picture = Picture(
        "timeline", 10.0, 1.9 + 0.34 * len(names), rows=2, ratios=(0.34 * len(names) + 0.5, 0.8)
    )
    axes, running = picture.rows
    colours = class_colours(facts.classes)
    unit, scale = ("milliseconds", 1e-3) if replay.span_s >= 10e-3 else ("microseconds", 1e-6)
    critical = set(replay.critical_path)
    first_s = min((x.start_s for x in replay.launches), default=0.0)
    for x, launch, row in zip(replay.launches, facts.launches, rows, strict=True):
        left, width = (x.start_s - first_s) / scale, x.seconds / scale
        kernel = facts.kernels[launch.kernel]
        bar = Rectangle(
            (left, row - _HEIGHT / 2), width, _HEIGHT, facecolor=colours[kernel.operator_class],
            edgecolor=FAINT, linewidth=0.3,
        )  # fmt: skip
        axes.add_patch(bar)
        picture.tag(bar, f"launch-{x.index}", _title(facts, x), f"kernel-{launch.kernel + 1}")
        if x.index in critical:
            axes.add_patch(Rectangle((left, row + 0.36), width, 0.09, facecolor=INK, linewidth=0))
    _draw_waits(axes, replay, rows, first_s, scale)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, max(replay.span_s / scale, 1e-9))
    edges, counts = _running(replay)
    running.stairs(counts, [(t - first_s) / scale for t in edges], fill=True, color=FAINT, alpha=0.55)
    running.set_ylim(0, max(counts, default=1) + 0.4)
    running.set_ylabel("running")
    running.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    source = "measured" if replay.measured else "modelled"
    running.set_xlabel(f"{unit} ({source}); the critical path is underlined")
    for ax in picture.rows:
        ax.tick_params(length=3, color=FAINT)
    axes.tick_params(axis="y", length=0)
    return picture.svg()


def _rows(replay: Profile) -> tuple[list[int], list[str]]:
    """The row of every launch and the names of the rows; a stream has several where its kernels overlap."""
    rows, names = [0] * len(replay.launches), list[str]()
    for stream in sorted({x.stream for x in replay.launches}):
        own = [x for x in replay.launches if x.stream == stream]
        lane_of = lanes([(x.start_s, x.end_s) for x in own])
        for x, lane in zip(own, lane_of, strict=True):
            rows[x.index] = len(names) + lane
        names += [f"stream {stream}", *[""] * max(lane_of)]
    return rows, names


def _title(facts: ReportFacts, x: LaunchSpan) -> str:
    critical = ", on the critical path" if x.index in facts.replay.critical_path else ""
    where = f" on {counted(len(x.processors), 'multiprocessor')}" if x.processors else ""
    ops = ", ".join(facts.launches[x.index].ops)
    return (
        f"{x.index} {x.kernel}\n{ops}\nstream {x.stream}, {seconds_text(x.seconds)} from "
        f"{seconds_text(x.start_s)}{critical}\n{counted(x.blocks, 'block')}{where}"
    )


def waits_across(replay: Profile) -> list[tuple[LaunchSpan, LaunchSpan]]:
    """Pairs of launches on different streams of which the second waits for the first."""
    pairs = ((replay.launches[d], x) for x in replay.launches for d in x.deps)
    return [(before, x) for before, x in pairs if before.stream != x.stream]


def _draw_waits(axes: Any, replay: Profile, rows: list[int], first_s: float, scale: float) -> None:
    across = waits_across(replay)
    for before, x in across if len(across) <= SHOWN_WAITS else ():
        axes.plot(
            [(before.end_s - first_s) / scale, (x.start_s - first_s) / scale],
            [rows[before.index], rows[x.index]], color=INK, lw=0.6, alpha=0.55, zorder=3,
        )  # fmt: skip


def _running(replay: Profile) -> tuple[list[float], list[int]]:
    """Times at which the number of running kernels changes, and the number between each two of them."""
    changes: dict[float, int] = {}
    for x in replay.launches:
        changes[x.start_s] = changes.get(x.start_s, 0) + 1
        changes[x.end_s] = changes.get(x.end_s, 0) - 1
    edges = sorted(changes)
    counts, now = [], 0
    for t in edges[:-1]:
        now += changes[t]
        counts.append(now)
    return edges or [0.0], counts
