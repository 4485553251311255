"""Pictures of the cluster model: a plan's seconds and memory, and predicted against measured step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.cluster.planning.prediction import COMPONENTS
from tilewright.cluster.report import WORDS
from tilewright.cluster.text import choices_text, components_overlap
from tilewright.costmodel.cluster.measured.in_memory import step_time
from tilewright.costmodel.cluster.measured.rows import measured_rows
from tilewright.costmodel.cluster.measured.validation import Stack
from tilewright.ir import InputError
from tilewright.runtime.atomic_file import output_file
from tilewright.tools.report.figures import CYCLE, require_matplotlib, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_INK, _FAINT = "#1d2430", "#8a93a0"
_STYLE = style(_INK, _FAINT)
_SUFFIXES = (".png", ".svg")
#: bars that a picture holds; a longer plan is cut there
MAX_BARS = 60


def require_plot(path: str) -> None:
    """Raises InputError for another suffix than .png and .svg, UnsupportedError without matplotlib."""
    if Path(path).suffix not in _SUFFIXES:
        raise InputError("expected a file name that ends in .png or .svg", where="--plot")
    require_matplotlib()


def write_plan_plot(plan: Mapping[str, Any], path: str) -> None:
    """Bars of seconds by component over a plan's first configurations, and of memory against capacity."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    rows = plan["best"][:MAX_BARS]
    labels = [choices_text(row, plan["mode"]) for row in rows]
    with rc_context(_STYLE):
        figure = Figure(figsize=(12.5, 1.9 + 0.34 * len(rows)), layout="constrained")
        if any(row["memory_bytes"] for row in rows):
            seconds, memory = figure.subplots(1, 2, sharey=True, width_ratios=(2.2, 1.0))
            _draw_memory(memory, rows)
        else:
            seconds = figure.subplots()  # the printed modes know no memory
        how = plan["stack"] or plan["mode"]
        figure.suptitle(f"{plan['model']} on {plan['cluster']} ({plan['devices']} devices), {how}")
        _draw_components(seconds, rows)
        seconds.set_yticks(range(len(rows)), labels)
        seconds.invert_yaxis()
        _write(figure, path)


def write_validation_plot(stacks: Sequence[Stack], path: str) -> None:
    """Predicted over measured seconds of every row, a colour per source, on logarithmic axes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 6.2), layout="constrained")
        axes = figure.subplots()
        pairs = [(stack, source) for stack in stacks for source in (*stack.fitted, *stack.transferred)]
        ends = []
        for place, (stack, source) in enumerate(pairs):
            rows = measured_rows(source)
            predicted = step_time(rows.runs, rows.machine, stack.knobs).total
            label = source if source in stack.fitted else f"{source} (not fitted)"
            axes.scatter(rows.step_s, predicted, s=9, color=CYCLE[place % len(CYCLE)], label=label, alpha=0.7)
            ends += [float(rows.step_s.min()), float(rows.step_s.max())]
        line = [min(ends), max(ends)]
        axes.plot(line, line, color=_INK, lw=1.0)
        axes.fill_between(
            line, [0.9 * e for e in line], [1.1 * e for e in line], color=_FAINT, alpha=0.2, lw=0
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("measured seconds of a step")
        axes.set_ylabel("predicted seconds; the band is 10 %")
        axes.grid(True)
        axes.legend(loc="upper left", fontsize=8)
        _write(figure, path)


def _draw_components(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    """Stacked bars; where components overlap the total, marked by a diamond, is shorter than the bar."""
    names = [n for n in rows[0]["components_s"] if any(row["components_s"][n] > 0 for row in rows)]
    start = [0.0] * len(rows)
    for place, name in enumerate(names):
        widths = [row["components_s"][name] for row in rows]
        axes.barh(range(len(rows)), widths, 0.72, left=start, color=CYCLE[place % len(CYCLE)], label=name)
        start = [a + b for a, b in zip(start, widths, strict=True)]
    totals = [row["total_s"] for row in rows]
    (mark,) = axes.plot(totals, range(len(rows)), "D", color=_INK, markersize=4.5, label="whole step")
    overlap = any(map(components_overlap, rows))
    axes.set_xlabel(
        "seconds of a step by component"
        + (" (they overlap: the step ends at the diamond)" if overlap else "")
    )
    axes.set_xlim(left=0)
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)
    handles = [*(h for h in axes.get_legend_handles_labels()[0] if h is not mark), mark]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=5)


def _draw_memory(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    capacity = rows[0]["memory_capacity_bytes"] / 1e9
    axes.barh(range(len(rows)), [row["memory_bytes"] / 1e9 for row in rows], 0.72, color=CYCLE[4])
    axes.axvline(capacity, color=CYCLE[3], lw=1.4)
    axes.annotate(
        f"capacity {capacity:.4g} GB", (capacity, 1.0), (-4, 3), color=CYCLE[3], ha="right",
        xycoords=("data", "axes fraction"), textcoords="offset points",
    )  # fmt: skip
    axes.set_xlabel("device memory (GB)")
    axes.set_xlim(0, 1.06 * max(capacity, *(row["memory_bytes"] / 1e9 for row in rows)))
    axes.grid(True, axis="x")
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0)


def _write(figure: Figure, path: str) -> None:
    """The file appears whole or not at all; raises InputError where it cannot be written."""
    kind = Path(path).suffix.removeprefix(".")
    metadata = {"Date": None} if kind == "svg" else {"Software": None}
    with output_file(path, "the plot") as file:
        figure.savefig(file, format=kind, dpi=150, facecolor="white", metadata=metadata)


def write_execution_plot(facts: Mapping[str, Any], path: str) -> None:
    """Two stacked bars per rank, in milliseconds; raises InputError where the file cannot be written."""
    from matplotlib.figure import Figure

    run, plan = facts["execution"], facts["plan"]
    figure = Figure(figsize=(8.5, 1.6 + 0.7 * len(run["ranks"])), layout="constrained")
    axes = figure.subplots()
    labels: list[tuple[float, str]] = []
    for r in run["ranks"]:
        for offset, (key, word) in enumerate((("predicted_s", "predicted"), ("measured_s", "measured"))):
            place, start = 2.5 * r["rank"] + offset, 0.0
            for colour, name in zip(CYCLE, COMPONENTS, strict=False):
                width = 1e3 * r[key][name]
                axes.barh(place, width, 0.85, left=start, color=colour, label=None if labels else WORDS[name])
                start += width
            labels.append((place, f"rank {r['rank']}, {word}"))
    axes.set_yticks([place for place, _ in labels], [text for _, text in labels])
    axes.invert_yaxis()
    axes.set_xlabel("ms of one run")
    axes.set_title(
        f"{facts['model']}, batch {facts['batch']}, dp {plan['dp']}, wp {plan['wp']}, p {plan['p']}, "
        f"{plan['micro_batches']} micro-batches",
        fontsize=10,
    )
    axes.legend(fontsize=8, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.08))
    _write(figure, path)
