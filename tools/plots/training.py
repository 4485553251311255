"""Pictures of training: losses of every step, and what was measured of held-out examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.ir import InputError
from tilewright.runtime.atomic_file import output_file
from tilewright.tools.report.figures import CYCLE, require_matplotlib, style
from tilewright.training.loop import Record

_STYLE = style("#1d2430", "#8a93a0")
_SUFFIXES = (".png", ".svg")


@dataclass(frozen=True)
class Curve:
    """One run: a name, the loss of each step, the number of the first of them, and records."""

    name: str
    losses: Sequence[float]
    records: Sequence[Record]
    first: int = 0


def require_plot(path: str) -> None:
    """Raises InputError for another suffix than .png and .svg, UnsupportedError without matplotlib."""
    if Path(path).suffix not in _SUFFIXES:
        raise InputError("expected a file name that ends in .png or .svg", where="--plot")
    require_matplotlib()


def write_curves(curves: Sequence[Curve], measures: Mapping[str, str], path: str) -> None:
    """Training losses, smoothed, and below one row per measure of held-out examples (key -> title)."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(7.2, 2.4 * (1 + len(measures))), layout="constrained", dpi=110)
        top, *rows = figure.subplots(1 + len(measures), 1, sharex=True, squeeze=False)[:, 0]
        for place, curve in enumerate(curves):
            colour = CYCLE[place % len(CYCLE)]
            steps = curve.first + 1 + np.arange(len(curve.losses))
            top.plot(steps, curve.losses, color=colour, alpha=0.25, lw=0.7)
            top.plot(steps, smoothed(curve.losses), color=colour, lw=1.3, label=curve.name)
            for axes, key in zip(rows, measures, strict=True):
                points = [(r.step, r.held_out[key]) for r in curve.records if key in r.held_out]
                if points:
                    axes.plot(*zip(*points, strict=True), color=colour, lw=1.3, marker="o", ms=3)
        for axes, title in zip((top, *rows), ("training loss", *measures.values()), strict=True):
            axes.set_ylabel(title)
            axes.grid(True)
        top.legend(fontsize=8)
        (rows[-1] if rows else top).set_xlabel("step")
        with output_file(Path(path), "the plot") as file:
            figure.savefig(file, format=Path(path).suffix[1:])


def smoothed(values: Sequence[float], share: float = 0.05) -> list[float]:
    """Running means that forget: each value counts `share` of what is left, and the first ones fully."""
    out: list[float] = []
    total, weight = 0.0, 0.0
    for value in values:
        total += share * (value - total)
        weight += share * (1 - weight)
        out.append(total / weight)
    return out
