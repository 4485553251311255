"""Exhaustive search: the fastest feasible configurations of a model on a cluster, ties in a fixed order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.costmodel.cluster.evaluate import evaluate
from tilewright.costmodel.cluster.evaluation import Column, Evaluation
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.model import Model
from tilewright.costmodel.cluster.training import Training
from tilewright.ir.errors import InputError

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
        """How many configurations were looked at."""
        return len(self.evaluation.configurations)

    @property
    def best(self) -> dict[str, Any] | None:
        """The fastest feasible configuration as plain values; None where nothing is feasible."""
        return self.evaluation.row(self.ranking[0]) if self.ranking else None

    def rows(self) -> list[dict[str, Any]]:
        """The ranked configurations as plain values."""
        return [self.evaluation.row(index) for index in self.ranking]


def search(
    cluster: Cluster, model: Model, training: Training, mode: str = "corrected", top: int = 10
) -> SearchResult:
    """The `top` (at least 1) fastest feasible configurations. Errors as for `evaluate`."""
    if top < 1:
        raise InputError(f"expected to rank at least 1 configuration, got {top}")
    evaluation = evaluate(cluster, model, training, mode)
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
