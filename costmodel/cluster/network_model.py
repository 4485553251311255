"""A network derived from its graph as a model of the cluster search: units in even pipeline stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.costmodel.cluster.model import StageLoad
from tilewright.costmodel.cluster.network_units import Unit, network_units
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func


def network_model(
    func: Func, name: str = "", inputs: Sequence[str] | None = None, samples: int | None = None
) -> NetworkModel:
    """The model of a graph-level function; arguments and errors as of `network_units`."""
    return NetworkModel(name or func.name, network_units(func, inputs, samples))


@dataclass(frozen=True)
class NetworkModel:
    """Units in a row, cut into stages of the smallest greatest FLOP.

    A stage's load is the worst of each quantity over all stages. Under weight partition every unit with
    parameters all-reduces what it passes on; activations are not divided.
    """

    name: str
    units: tuple[Unit, ...]

    @property
    def layers(self) -> int:
        """Number of units."""
        return len(self.units)

    @property
    def uniform(self) -> bool:
        """False: any number of stages up to that of units is cut as evenly as the units allow."""
        return False

    def splits(self, wp: int) -> bool:
        """Output channels of every unit with parameters are divided evenly."""
        return all(unit.channels % wp == 0 for unit in self.units)

    def cuts(self, p: int) -> tuple[int, ...]:
        """First unit of each of `p` stages, and the number of units: p + 1 positions.

        Raises InputError unless 1 <= p <= layers.
        """
        if not 1 <= p <= self.layers:
            raise InputError(f"expected 1 to {self.layers} stages of {self.name}, got {p}")
        positions, end = [self.layers], self.layers
        for stages in range(p, 0, -1):
            end = int(self._last_start[stages - 1, end])
            positions.append(end)
        return tuple(positions[::-1])

    def stage(self, p: int) -> StageLoad:
        """The worst of each quantity over the stages of `cuts`."""
        cuts = self.cuts(p)
        stages = [self.units[start:end] for start, end in pairwise(cuts)]
        return StageLoad(
            flops=max(sum(u.flops for u in stage) for stage in stages),
            head_flops=0.0,
            parameters=max(float(sum(u.parameters for u in stage)) for stage in stages),
            unit_parameters=max(float(u.parameters) for u in self.units),
            units=float(max(len(stage) for stage in stages)),
            boundary=max(sum(u.crossing for u in stage) for stage in stages),
            largest_boundary=max(u.crossing for u in self.units),
            inside_sharded=0.0,
            inside_replicated=max(sum(u.inside for u in stage) for stage in stages),
            unit_inside_sharded=0.0,
            unit_inside_replicated=max(u.inside for u in self.units),
            reduced=max(sum(u.reduced for u in stage) for stage in stages),
            reductions=float(max(sum(u.channels > 0 for u in stage) for stage in stages)),
            edge=max((self.units[cut].crossing for cut in cuts[1:-1]), default=0.0),
            head=0.0,
        )

    @cached_property
    def _last_start(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """[stages - 1, end]: where the last of `stages` stages of the first `end` units starts at best.

        Exact: best(stages, end) = min over start of max(best(stages - 1, start), FLOP of start..end).
        """
        n = self.layers
        total = np.concatenate([[0.0], np.cumsum([u.flops for u in self.units])])
        best = total.copy()
        starts = np.zeros((n, n + 1), np.int64)
        for stages in range(2, n + 1):
            longest = np.full(n + 1, np.inf)
            for end in range(stages, n + 1):
                candidates = np.maximum(best[stages - 1 : end], total[end] - total[stages - 1 : end])
                place = int(np.argmin(candidates))
                starts[stages - 1, end] = stages - 1 + place
                longest[end] = candidates[place]
            best = longest
        return starts
