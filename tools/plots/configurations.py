"""Pictures of swept configurations: how the seconds of each kernel are distributed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewright.runtime.atomic_file import output_file
from tilewright.tools.data_movement.sweep import SweptCosts
from tilewright.tools.report.figures import CYCLE, style

#: configurations of a kernel that are drawn at most, evenly taken from all in order of their seconds
DRAWN = 4000
_STYLE = style("#1d2430", "#8a93a0")


def write_violins(costs: Sequence[SweptCosts], path: str) -> None:
    """One violin per kernel over a logarithmic scale of microseconds; a line marks the best configuration."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    works = list(dict.fromkeys(c.work for c in costs))
    with rc_context(_STYLE):
        figure = Figure(figsize=(max(6.0, 0.5 * len(costs)), 4.2), layout="constrained", dpi=110)
        axes = figure.subplots()
        for place, c in enumerate(costs):
            values = drawn(c)
            colour = CYCLE[works.index(c.work) % len(CYCLE)]
            if np.ptp(values) > 0:
                parts = axes.violinplot([values], [place], widths=0.8, showextrema=False)
                for body in parts["bodies"]:  # type: ignore[attr-defined]
                    body.set(facecolor=colour, alpha=0.6)
            axes.hlines(values[0], place - 0.4, place + 0.4, color=colour, lw=1.6)
        low, high = axes.get_ylim()
        ticks = [t for t in range(int(np.floor(low)), int(np.ceil(high)) + 1) if low <= t <= high]
        axes.set_yticks(ticks, [f"{10.0**t:g}" for t in ticks])
        axes.set_xticks(range(len(costs)), [c.kernel for c in costs], rotation=60, ha="right", fontsize=8)
        axes.set_ylabel("microseconds by the model")
        for k, work in enumerate(works):
            axes.plot([], [], color=CYCLE[k % len(CYCLE)], lw=4, label=work)
        axes.legend(fontsize=8)
        axes.grid(True, axis="y")
        with output_file(Path(path), "the plot") as file:
            figure.savefig(file, format=Path(path).suffix[1:])


def drawn(costs: SweptCosts) -> np.ndarray:
    """Decimal logarithms of microseconds of the configurations that are drawn, the least first."""
    ordered = np.sort(costs.seconds)
    places = np.linspace(0, len(ordered) - 1, min(DRAWN, len(ordered))).round().astype(int)
    return np.asarray(np.log10(1e6 * ordered[places]))
