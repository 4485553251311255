"""The result of a mode: every configuration with its seconds by component, bytes and reasons against it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.costmodel.cluster.configurations import Configurations

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
