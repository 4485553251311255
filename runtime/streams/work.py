"""The work of the nodes of a graph: time when alone, share of the device, and the time of a wait."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.runtime.dag import Dag
from tilewright.runtime.errors import InputError


@dataclass(frozen=True)
class Work:
    """Per node the time it takes alone and the share (0 to 1) of the device it occupies meanwhile.

    `sync_cost` is the time from the end of a node to the start of one on another stream that waits for it.
    Times share one unit, whichever. Nodes run side by side while their shares add up to at most 1.
    """

    costs: tuple[float, ...]
    shares: tuple[float, ...]
    sync_cost: float = 0.0

    @staticmethod
    def of(
        n: int,
        costs: Sequence[float] | None = None,
        shares: Sequence[float] | None = None,
        sync_cost: float = 0.0,
    ) -> Work:
        """Checked work of n nodes; by default each takes time 1 and no share, so any number runs at once.

        Raises `InputError` for a wrong length, a negative or infinite time, or a share outside 0..1.
        """
        own_costs = tuple(map(float, [1.0] * n if costs is None else costs))
        own_shares = tuple(map(float, [0.0] * n if shares is None else shares))
        for name, values, limit in (("costs", own_costs, math.inf), ("resources", own_shares, 1.0)):
            if len(values) != n:
                raise InputError(f"{name}: expected {n} numbers, one per node, got {len(values)}")
            for node, value in enumerate(values):
                if not (0 <= value <= limit and math.isfinite(value)):
                    expected = "a finite number of at least 0" if limit > 1 else "a share from 0 to 1"
                    raise InputError(f"{name}[{node}]: expected {expected}, got {value}")
        if not (math.isfinite(sync_cost) and sync_cost >= 0):
            raise InputError(f"sync_cost: expected a finite number of at least 0, got {sync_cost}")
        return Work(own_costs, own_shares, float(sync_cost))

    def remaining(self, dag: Dag) -> list[float]:
        """Per node the longest time from its start to the end of the graph, with the device to itself."""
        left = [0.0] * dag.n
        for u in reversed(dag.order):
            left[u] = self.costs[u] + max((left[v] for v in dag.reduced_successors[u]), default=0.0)
        return left

    def stage_time(self, groups: Sequence[Sequence[int]]) -> float:
        """Time of groups that start together, each of which runs its nodes one after another.

        The longest group, or what the device needs for all shares, whichever is more; more than one group
        must meet again, which takes one wait.
        """
        longest = max(sum(self.costs[v] for v in group) for group in groups)
        area = sum(self.costs[v] * self.shares[v] for group in groups for v in group)
        return max(longest, area) + (self.sync_cost if len(groups) > 1 else 0.0)
