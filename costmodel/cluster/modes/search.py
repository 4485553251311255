"""Evaluates all configurations by one of the modes, ranks them, and recomputes the printed table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.costmodel.cluster.inputs.loading import load_cluster, load_model, load_training
from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.inputs.model import ClusterModel, Transformer
from tilewright.costmodel.cluster.inputs.training import Training
from tilewright.costmodel.cluster.modes.configurations import Column, Evaluation
from tilewright.costmodel.cluster.modes.corrected import evaluate_corrected
from tilewright.costmodel.cluster.modes.printed import evaluate_printed
from tilewright.ir.errors import InputError, UnsupportedError

MODES = ("printed", "table", "corrected")


def evaluate(
    cluster: Cluster, model: ClusterModel, training: Training, mode: str = "corrected"
) -> Evaluation:
    """Seconds by component, bytes and feasibility of every configuration, in a fixed order.

    Raises InputError for an unknown mode, and UnsupportedError for what the printed modes do not know: any
    model but a Transformer, and inference.
    """
    if mode not in MODES:
        raise InputError(f"expected a mode of {', '.join(MODES)}, got {mode!r}")
    if mode == "corrected":
        return evaluate_corrected(cluster, model, training)
    if not isinstance(model, Transformer):
        raise UnsupportedError(f"mode {mode} knows transformers by dimensions only, got {model.name}")
    if training.phase != "training":
        raise UnsupportedError(f"mode {mode} knows training only, got phase {training.phase}")
    return evaluate_printed(cluster, model, training, mode)


#: times that agree to this many digits are equal: the order of configurations then decides
_DIGITS = 12


@dataclass(frozen=True)
class SearchResult:
    """ranking: indices of the best feasible configurations in `evaluation`, fastest first.

    infeasible: how many configurations each reason speaks against (one may have several reasons).
    """

    evaluation: Evaluation
    ranking: tuple[int, ...]
    feasible: int
    infeasible: Mapping[str, int]

    @property
    def configurations(self) -> int:
        """Number of configurations that were evaluated."""
        return len(self.evaluation.configurations)

    @property
    def best(self) -> dict[str, Any] | None:
        """The fastest feasible configuration as plain values; None where nothing is feasible."""
        return self.evaluation.row(self.ranking[0]) if self.ranking else None

    def rows(self) -> list[dict[str, Any]]:
        """The ranked configurations as plain values."""
        return [self.evaluation.row(index) for index in self.ranking]


def search(
    cluster: Cluster, model: ClusterModel, training: Training, mode: str = "corrected", top: int = 10
) -> SearchResult:
    """The `top` (at least 1) fastest feasible configurations. Errors as for `evaluate`."""
    if top < 1:
        raise InputError(f"expected to rank at least 1 configuration, got {top}")
    return ranked(evaluate(cluster, model, training, mode), top)


def ranked(evaluation: Evaluation, top: int) -> SearchResult:
    """The `top` fastest feasible configurations of an evaluation."""
    feasible = np.flatnonzero(evaluation.feasible)
    order = np.argsort(_rounded(evaluation.total_s[feasible]), kind="stable")[:top]
    return SearchResult(
        evaluation=evaluation,
        ranking=tuple(int(index) for index in feasible[order]),
        feasible=len(feasible),
        infeasible={reason: int(flags.sum()) for reason, flags in evaluation.against.items()},
    )


def _rounded(seconds: Column) -> Column:
    scale = 10.0 ** (_DIGITS - 1 - np.floor(np.log10(np.maximum(seconds, 1e-300))))
    return np.round(seconds * scale) / scale


#: seconds of the value 1 in every block of the table, fitted to the printed cells (their only free number)
NORMALISERS_S = {
    ("GPT-3", "A"): 73115.6,
    ("GPT-3", "B"): 49556.2,
    ("T-NLG", "A"): 50.30,
    ("T-NLG", "B"): 45.74,
}


def table_rows() -> list[dict[str, Any]]:
    """144 rows {model, cluster, schedule, dp, wp, p, normalized}, ordered by these up to wp.

    `schedule` is the label of the printed column.
    """
    rows = []
    for (model, cluster), normaliser in NORMALISERS_S.items():
        evaluation = evaluate(
            load_cluster(cluster), load_model(model), load_training(f"{model}-table"), mode="table"
        )
        block = [evaluation.configurations.row(i) for i in range(len(evaluation.configurations))]
        for schedule in ("PR", "AR"):
            rows += [
                {
                    "model": model,
                    "cluster": cluster,
                    "schedule": schedule,
                    **{key: row[key] for key in ("dp", "wp", "p")},
                    "normalized": float(seconds) / normaliser,
                }
                for row, seconds in zip(block, evaluation.total_s, strict=True)
                if row["schedule"] == schedule
            ]
    return rows
