"""Configurations as columns, one array per choice in a fixed order, and what a mode says of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.inputs.training import GRADIENTS, SCHEDULES, Training
from tilewright.ir.errors import InputError

IntColumn = np.ndarray[Any, np.dtype[np.int64]]
MAX_CONFIGURATIONS = 20_000_000


@dataclass(frozen=True)
class Configurations:
    """int64 columns of equal length; dp * wp * p = devices in every row.

    schedule and gradients index SCHEDULES and GRADIENTS; recompute is 0 or 1; micro_batch counts samples.
    """

    dp: IntColumn
    tp: IntColumn
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
            "wp": int(self.tp[index]),
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
        (dp, tp, n // (dp * tp))
        for dp in divisors
        for tp in divisors
        if n % (dp * tp) == 0
        and _within(dp, training.max_dp)
        and _within(tp, training.max_tp)
        and _within(n // (dp * tp), training.max_p)
    ]
    if not rows:
        raise InputError(f"max_dp, max_tp and max_p of {training.name} leave no way to use {n} devices")
    return np.array(rows, np.int64)


def printed_configurations(cluster: Cluster, training: Training) -> Configurations:
    """Return the configurations of the printed and table modes: (dp, wp, p) and the schedules PR and AR."""
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
    dp, tp, p = triples[places[0]].T
    return Configurations(dp, tp, p, micro_batch, schedule, recompute, sharding, interleave, gradients)


Column = np.ndarray[Any, np.dtype[np.float64]]
Flags = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Evaluation:
    """Configurations and, in the same order, what the model says of them.

    total_s: seconds of one step. components_s: seconds by name; overlapped ones do not add up to the total.
    memory_bytes, storage_bytes: needed per device, against memory_capacity_bytes and storage_capacity_bytes;
    0 in the printed modes, which know no capacities.
    against: for every reason, which configurations it makes infeasible.
    """

    mode: str
    configurations: Configurations
    total_s: Column
    components_s: Mapping[str, Column]
    memory_bytes: Column
    storage_bytes: Column
    memory_capacity_bytes: float
    storage_capacity_bytes: float
    against: Mapping[str, Flags]

    @property
    def feasible(self) -> Flags:
        """True where no reason speaks against a configuration."""
        flags = np.ones(len(self.configurations), bool)
        for against in self.against.values():
            flags &= ~against
        return flags

    def reasons(self, index: int) -> list[str]:
        """Every reason against one configuration."""
        return [reason for reason, against in self.against.items() if against[index]]

    def row(self, index: int) -> dict[str, Any]:
        """One configuration with all its numbers as plain values (JSON)."""
        return {
            **self.configurations.row(index),
            "total_s": float(self.total_s[index]),
            "components_s": {name: float(column[index]) for name, column in self.components_s.items()},
            "memory_bytes": float(self.memory_bytes[index]),
            "memory_capacity_bytes": self.memory_capacity_bytes,
            "storage_bytes": float(self.storage_bytes[index]),
            "storage_capacity_bytes": self.storage_capacity_bytes,
            "infeasible": self.reasons(index),
        }
