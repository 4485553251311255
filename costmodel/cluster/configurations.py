"""Configurations as columns: one array per choice, one entry per configuration, in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.training import GRADIENTS, SCHEDULES, Training
from tilewright.ir.errors import InputError

IntColumn = np.ndarray[Any, np.dtype[np.int64]]
MAX_CONFIGURATIONS = 20_000_000


@dataclass(frozen=True)
class Configurations:
    """int64 columns of equal length; dp * wp * p = devices in every row.

    schedule and gradients index SCHEDULES and GRADIENTS; recompute is 0 or 1; micro_batch counts samples.
    """

    dp: IntColumn
    wp: IntColumn
    p: IntColumn
    micro_batch: IntColumn
    schedule: IntColumn
    recompute: IntColumn
    sharding: IntColumn
    interleave: IntColumn
    gradients: IntColumn

    def __len__(self) -> int:
        return len(self.dp)

    def row(self, index: int) -> dict[str, Any]:
        """One configuration as plain values, schedule and gradients by name."""
        return {
            "schedule": SCHEDULES[int(self.schedule[index])],
            "dp": int(self.dp[index]),
            "wp": int(self.wp[index]),
            "p": int(self.p[index]),
            "micro_batch": int(self.micro_batch[index]),
            "recompute": bool(self.recompute[index]),
            "sharding": int(self.sharding[index]),
            "interleave": int(self.interleave[index]),
            "gradients": GRADIENTS[int(self.gradients[index])],
        }


def factorisations(cluster: Cluster, training: Training) -> IntColumn:
    """All (dp, wp, p) with dp * wp * p = devices within the training's limits: [count, 3], ordered."""
    n = cluster.devices
    divisors = [k for k in range(1, n + 1) if n % k == 0]
    rows = [
        (dp, wp, n // (dp * wp))
        for dp in divisors
        for wp in divisors
        if n % (dp * wp) == 0
        and _within(dp, training.max_dp)
        and _within(wp, training.max_wp)
        and _within(n // (dp * wp), training.max_p)
    ]
    if not rows:
        raise InputError(f"max_dp, max_wp and max_p of {training.name} leave no way to use {n} devices")
    return np.array(rows, np.int64)


def printed_configurations(cluster: Cluster, training: Training) -> Configurations:
    """What the printed and table modes distinguish: (dp, wp, p) and the schedules PR and AR."""
    schedules = [SCHEDULES.index(s) for s in training.schedules if s != "IM"]
    if not schedules:
        raise InputError(f"the printed modes know schedules PR and AR, {training.name} allows neither")
    return _product(factorisations(cluster, training), [1], schedules, [0], [0], [1], [0])


def corrected_configurations(cluster: Cluster, training: Training) -> Configurations:
    """Every combination of the training's candidates with every (dp, wp, p)."""
    training_only = training.phase == "training"
    return _product(
        factorisations(cluster, training),
        training.micro_batches,
        [SCHEDULES.index(s) for s in training.schedules],
        [int(r) for r in training.recompute] if training_only else [0],
        training.sharding if training_only else [0],
        training.interleave,
        [GRADIENTS.index(g) for g in training.gradients] if training_only else [0],
    )


def _within(value: int, limit: int) -> bool:
    return limit == 0 or value <= limit


def _product(triples: IntColumn, *candidates: Any) -> Configurations:
    counts = [len(triples), *(len(c) for c in candidates)]
    total = int(np.prod(counts, dtype=object))
    if total > MAX_CONFIGURATIONS:
        raise InputError(f"expected at most {MAX_CONFIGURATIONS} configurations to search, got {total}")
    places = np.indices(counts).reshape(len(counts), -1)
    columns = [np.asarray(c, np.int64)[place] for c, place in zip(candidates, places[1:], strict=True)]
    micro_batch, schedule, recompute, sharding, interleave, gradients = columns
    dp, wp, p = triples[places[0]].T
    return Configurations(dp, wp, p, micro_batch, schedule, recompute, sharding, interleave, gradients)
