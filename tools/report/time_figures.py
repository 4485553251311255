"""Time by kernel and by operator class, as bars beside what the model expects and bounds."""

from __future__ import annotations

from typing import Any

from tilewright.tools.report.facts import KernelFacts, ReportFacts
from tilewright.tools.report.figures import FAINT, INK, Picture, class_colours, drawing
from tilewright.tools.report.wording import counted, seconds_text

#: kernels with a bar of their own
TOP = 20


@drawing
def kernels_svg(facts: ReportFacts) -> str:
    """Seconds of all launches of each kernel: the longest ones, and the rest in one bar."""
    top, rest = facts.kernels[:TOP], facts.kernels[TOP:]
    colours = class_colours(facts.classes)
    rows = len(top) + bool(rest)
    picture = Picture("time-kernels", 10.0, 0.9 + 0.27 * max(3, rows))
    ax = picture.axes
    unit, scale = _unit(max([k.total_s for k in facts.kernels], default=0.0))
    for row, k in enumerate(top):
        (bar,) = ax.barh(row, k.total_s / scale, 0.68, color=colours[k.operator_class])
        picture.tag(bar, f"bar-{row + 1}", _title(facts, k), f"kernel-{row + 1}")
        estimate = k.calls * k.estimate_s / scale if facts.timing.measured else None
        _model_marks(ax, row, k.calls * k.bound_s / scale, estimate)
    if rest:
        seconds = sum(k.total_s for k in rest)
        (bar,) = ax.barh(len(top), seconds / scale, 0.68, color=FAINT, alpha=0.6)
        picture.tag(bar, "bar-rest", f"{len(rest)} further kernels: {seconds_text(seconds)}")
    names = [_name(i, k) for i, k in enumerate(top, 1)]
    ax.set_yticks(range(rows), [*names, f"{len(rest)} others"][:rows])
    ax.set_ylim(rows - 0.4, -0.6)
    ax.set_xlabel(f"{unit}, all launches of a kernel ({facts.timing.source})")
    _model_legend(ax, facts.timing.measured)
    _finish(ax)
    return picture.svg()


@drawing
def classes_svg(facts: ReportFacts) -> str:
    """Seconds by operator class with their share of the sum."""
    sums = facts.class_seconds()
    colours = class_colours(facts.classes)
    picture = Picture("time-classes", 10.0, 0.8 + 0.3 * max(2, len(sums)))
    ax = picture.axes
    total = sum(sums.values()) or 1.0
    unit, scale = _unit(max(sums.values(), default=0.0))
    for row, (name, seconds) in enumerate(sums.items()):
        (bar,) = ax.barh(row, seconds / scale, 0.68, color=colours[name])
        picture.tag(bar, f"bar-{row + 1}", f"{name}: {seconds_text(seconds)}, {100 * seconds / total:.1f} %")
        ax.annotate(
            f"{100 * seconds / total:.1f} %", (seconds / scale, row), (5, 0), textcoords="offset points",
            va="center", color=INK,
        )  # fmt: skip
    counts = {c: sum(k.calls for k in facts.kernels if k.operator_class == c) for c in sums}
    ax.set_yticks(range(len(sums)), [f"{c}  ({n})" for c, n in counts.items()])
    ax.set_ylim(len(sums) - 0.4, -0.6)
    ax.margins(x=0.12)
    ax.set_xlabel(f"{unit} ({facts.timing.source}); launches in brackets")
    _finish(ax)
    return picture.svg()


def _unit(longest_s: float) -> tuple[str, float]:
    return ("milliseconds", 1e-3) if longest_s >= 1e-3 else ("microseconds", 1e-6)


def _name(rank: int, k: KernelFacts) -> str:
    name = k.name if len(k.name) <= 38 else f"{k.name[:37]}…"
    return f"{rank}  {name}" + (f"  ({k.calls})" if k.calls > 1 else "")


def _title(facts: ReportFacts, k: KernelFacts) -> str:
    total = sum(x.total_s for x in facts.kernels) or 1.0
    return (
        f"{k.name}\n{k.operator_class}, {counted(k.calls, 'launch')}: {seconds_text(k.total_s)}, "
        f"{100 * k.total_s / total:.1f} %\nexpected {seconds_text(k.calls * k.estimate_s)}, "
        f"bound {seconds_text(k.calls * k.bound_s)}"
    )


def _model_marks(ax: Any, row: int, bound: float, estimate: float | None) -> None:
    ax.plot([bound, bound], [row - 0.42, row + 0.42], color=INK, lw=1.6)
    if estimate is not None:
        ax.plot([estimate], [row], "D", ms=4.2, mfc="none", mec=INK, mew=1.1)


def _model_legend(ax: Any, measured: bool) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], ls="", marker="|", ms=9, mew=1.6, color=INK, label="lower bound by the model"),
        Line2D([], [], ls="", marker="D", ms=4.2, mfc="none", mec=INK, label="expected by the model"),
    ]
    ax.legend(handles=marks if measured else marks[:1], loc="lower right")


def _finish(ax: Any) -> None:
    ax.set_xlim(left=0)
    ax.grid(True, axis="x")
    ax.set_axisbelow(True)
    ax.tick_params(length=3, color=FAINT)
    ax.tick_params(axis="y", length=0)
