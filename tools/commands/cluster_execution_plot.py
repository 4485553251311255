"""A picture of an executed plan: predicted beside measured seconds by component, for every rank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.cluster.execution_prediction import COMPONENTS
from tilewright.cluster.execution_report import WORDS
from tilewright.ir import InputError
from tilewright.runtime.atomic_file import atomic_file
from tilewright.tools.report.colours import CYCLE


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
    kind = Path(path).suffix.removeprefix(".")
    try:
        with atomic_file(Path(path)) as file:
            figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    except OSError as error:
        raise InputError(f"cannot write the plot: {error.strerror}", where=path) from error
