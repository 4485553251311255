"""The roofline picture: achieved rate over arithmetic intensity of each kernel, and the roofs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from tilewright.costmodel import CpuHardware, Hardware
from tilewright.tools.report.facts import KernelFacts, ReportFacts
from tilewright.tools.report.figures import FAINT, INK, Picture, class_colours, drawing
from tilewright.tools.report.wording import bytes_text, counted, rate_text, seconds_text

#: kernels that get their name written beside the point
NAMED = 8
#: places of a label around its point, in points: (dx, dy, horizontal alignment)
_PLACES = tuple(
    (dx, dy, side) for dy in (5, -11, 17, -23, 29, -35) for dx, side in ((8, "left"), (-8, "right"))
)
#: points between a mark and its name beyond which a line joins them
FAR = 10.0
#: boxes that stand for a line between a point and its name
LEADER_PARTS = 8
_LETTER = 5.6
_LABEL_HEIGHT = 11.0


@drawing
def roofline_svg(facts: ReportFacts) -> str:
    """Log-log: one point per kernel with arithmetic, its area by share of the time, its colour by class."""
    picture = Picture("roofline", 10.0, 5.4)
    ax = picture.axes
    shown = [(i, k) for i, k in enumerate(facts.kernels, 1) if k.operations and k.bytes and k.seconds > 0]
    peak = facts.hardware.peak_flops_per_s
    ridge = peak / facts.hardware.dram_bytes_per_s
    x = [intensity(k) for _, k in shown]
    y = [rate(k) for _, k in shown]
    low, high = min([*x, ridge / 8]) / 2, max([*x, ridge]) * 4
    ax.set(xscale="log", yscale="log", xlim=(low, high))
    floor = min([*y, low * facts.hardware.dram_bytes_per_s]) / 2
    ax.set_ylim(floor, max([peak, *y]) * 2.2)
    _roofs(ax, facts.hardware, low, high)
    total = sum(k.total_s for k in facts.kernels) or 1.0
    colours = class_colours(facts.classes)
    for i, k in shown:
        (mark,) = ax.plot(
            intensity(k),
            rate(k),
            "o",
            ms=_diameter(k, total),
            mfc=colours[k.operator_class],
            mec="none",
            alpha=0.78,
            zorder=3,
        )
        picture.tag(mark, f"point-{i}", point_title(facts, i, k), f"kernel-{i}")
    _legend(ax, colours, {k.operator_class for _, k in shown})
    _plain_decades(ax)
    ax.set_xlabel("arithmetic intensity: operations per byte of compulsory traffic")
    ax.set_ylabel(f"GFLOP/s ({facts.timing.source})")
    picture.figure.draw_without_rendering()
    _name_roofs(ax, facts.hardware)
    _labels(ax, shown, total)
    return picture.svg()


def intensity(k: KernelFacts) -> float:
    """Operations per compulsory byte."""
    return k.operations / k.bytes if k.bytes else 0.0


def rate(k: KernelFacts) -> float:
    """Operations per second of one launch."""
    return k.operations / k.seconds if k.seconds else 0.0


def point_title(facts: ReportFacts, rank: int, k: KernelFacts) -> str:
    """The text that shows when the pointer is over a kernel's point."""
    part = 100 * rate(k) / facts.hardware.peak_flops_per_s
    return (
        f"{rank} {k.name}\n{k.operator_class}, {counted(k.calls, 'launch')} of {seconds_text(k.seconds)}\n"
        f"{intensity(k):.3g} FLOP/B, {rate_text(rate(k))}, {part:.1f} % of peak"
    )


def roofs_of(hardware: Hardware) -> dict[str, float]:
    """Bandwidths of the record in bytes per second by name, the fastest first."""
    if isinstance(hardware, CpuHardware):
        return {"DRAM": hardware.dram_bytes_per_s, "DRAM as expected": hardware.estimate_dram_bytes_per_s}
    return {"L2": hardware.l2_bytes_per_s, "DRAM": hardware.dram_bytes_per_s}


def _roofs(ax: Any, hardware: Hardware, low: float, high: float) -> None:
    peak = hardware.peak_flops_per_s
    bandwidths = roofs_of(hardware)
    ax.plot([peak / max(bandwidths.values()), high], [peak, peak], color=INK, lw=1.3, zorder=2)
    ax.annotate(
        f"peak {rate_text(peak)}", (high, peak), (-4, 5), textcoords="offset points", ha="right", color=INK
    )
    for name, bandwidth in bandwidths.items():
        style = "-" if name == "DRAM" else (0, (4, 3))
        ax.plot([low, peak / bandwidth], [low * bandwidth, peak], color=INK, lw=1.3, ls=style, zorder=2)
    ax.grid(True, which="major")


def _name_roofs(ax: Any, hardware: Hardware) -> None:
    """The names of the slanted roofs along them; the layout must be final."""
    (low, _), (floor, _) = ax.get_xlim(), ax.get_ylim()
    for name, bandwidth in roofs_of(hardware).items():
        start = max(low, floor / bandwidth) * 1.15
        ends = ax.transData.transform([(x, x * bandwidth) for x in (start, 2 * start)])
        run, rise = ends[1] - ends[0]
        angle = np.arctan2(rise, run)
        ax.annotate(
            f"{name} {bytes_text(bandwidth)}/s",
            (start, start * bandwidth),
            (-5 * np.sin(angle), 5 * np.cos(angle)),
            textcoords="offset points",
            rotation=np.degrees(angle),
            rotation_mode="anchor",
            color=INK,
        )


def _plain_decades(ax: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for axis, scale in ((ax.xaxis, 1.0), (ax.yaxis, 1e9)):
        axis.set_major_locator(LogLocator(10, numticks=12))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda v, _, scale=scale: f"{v / scale:g}"))
    ax.tick_params(length=3, color=FAINT)


def _legend(ax: Any, colours: dict[str, str], present: set[str]) -> None:
    from matplotlib.lines import Line2D

    marks = [
        Line2D([], [], ls="", marker="o", ms=6, mfc=c, mec="none", label=name)
        for name, c in colours.items()
        if name in present
    ]
    ax.legend(handles=marks, loc="lower right", fontsize=9, handletextpad=0.2)


def _diameter(k: KernelFacts, total: float) -> float:
    """The diameter of a mark in points: its area grows with the kernel's share of the time."""
    return float(5 + 22 * np.sqrt(k.total_s / total))


def _labels(ax: Any, shown: list[tuple[int, KernelFacts]], total: float) -> None:
    """Names beside the points that take longest, each where it covers no other name and no point.

    A name that does not touch its point has a thin line to it, which crosses no name.
    """
    dots = 72.0 / ax.figure.dpi
    (left, bottom), (right, top) = ax.bbox.get_points() * dots
    places = {i: ax.transData.transform((intensity(k), rate(k))) * dots for i, k in shown}
    discs: list[tuple[float, float, float, float]] = []
    taken: list[tuple[float, float, float, float]] = []
    for i, k in shown:
        (x, y), r = places[i], 0.4 * _diameter(k, total)
        discs.append((x - r, y - r, x + r, y + r))
    for i, k in shown[:NAMED]:
        name = f"{i} {k.name}" if len(k.name) <= 30 else f"{i} {k.name[:29]}…"
        for text, (dx, dy, align) in product((name, str(i)), _PLACES):
            box = _box(places[i][0], places[i][1], (dx, dy, align), len(text) * _LETTER)
            inside = left <= box[0] and box[2] <= right and bottom <= box[1] and box[3] <= top
            near = np.hypot(dx, dy if dy > 0 else dy + _LABEL_HEIGHT) - _diameter(k, total) / 2
            far = near > FAR
            line = _leader_boxes(places[i], (dx, dy)) if far else []
            covered = any(_overlap(part, t) for part in (box, *line) for t in taken)
            if inside and not covered and not any(_overlap(box, d) for d in discs):
                taken += [box, *line]
                ax.annotate(
                    text, (intensity(k), rate(k)), (dx, dy), textcoords="offset points", ha=align,
                    fontsize=8.5, color=INK, zorder=4, arrowprops=_leader(k, total, dx, dy) if far else None,
                )  # fmt: skip
                break


def _leader(k: KernelFacts, total: float, dx: int, dy: int) -> dict[str, Any]:
    """A thin line from the edge of a point to the nearest corner of its name."""
    return {
        "arrowstyle": "-", "color": INK, "lw": 0.6, "alpha": 0.7, "shrinkA": 0,
        "shrinkB": 0.4 * _diameter(k, total),
        "relpos": (0.0 if dx > 0 else 1.0, 0.0 if dy > 0 else 1.0),
    }  # fmt: skip


def _leader_boxes(point: Sequence[float], corner: tuple[int, int]) -> list[tuple[float, float, float, float]]:
    """Small boxes along the line from a point to what lies `corner` away from it."""
    dx, dy = corner[0], corner[1] + (_LABEL_HEIGHT if corner[1] < 0 else 0.0)
    at = [(point[0] + dx * n / LEADER_PARTS, point[1] + dy * n / LEADER_PARTS) for n in range(LEADER_PARTS)]
    return [(x - 0.5, y - 0.5, x + 0.5, y + 0.5) for x, y in at]


def _box(
    px: float, py: float, place: tuple[int, int, str], width: float
) -> tuple[float, float, float, float]:
    dx, dy, align = place
    left = px + dx - (width if align == "right" else 0)
    return left, py + dy, left + width, py + dy + _LABEL_HEIGHT


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
