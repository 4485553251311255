"""All points of an engine's space with what a search needs: bounds, estimates, an order, kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tilewright.costmodel.kernels.bound import BoundArrays
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.warp_reads import distinct_columns
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.ir import AttrRecord, Func

P = TypeVar("P", bound=AttrRecord)
C = TypeVar("C", bound=AttrRecord, covariant=True)

#: what a further point with the same thread tile, thread count and stages must be ahead in its estimate
_NEIGHBOUR_PENALTY = 0.1


class Space(Protocol[C]):
    """Many parameters as columns of numbers."""

    def __len__(self) -> int: ...

    def at(self, index: int) -> C:
        """The parameters at `index`."""

    def named(self, index: int) -> Mapping[str, Any]:
        """Return what records of measurements call the point at `index`: its columns."""


@dataclass(frozen=True, eq=False)
class EnginePoints(Generic[P]):
    """The legal points of one engine for one problem on one device.

    `least_s` are sound lower bounds in seconds of a kernel that is timed in a loop with warm caches but for
    its streamed bytes, `cold` those of the cost model; `estimates_s` are estimates of the same kernels.
    `kinds` are columns in which points agree that differ in little. likeliest: the point that the cost model
    chooses among these.
    """

    engine: str
    problem: object
    space: Space[P]
    cold: BoundArrays
    least_s: FloatArray
    estimates_s: FloatArray
    kinds: tuple[IntArray, ...]
    likeliest: int

    def __len__(self) -> int:
        return len(self.space)

    def parameters(self, index: int) -> P:
        """The parameters of one point."""
        return self.space.at(index)

    def choice(self, index: int) -> ParameterChoice[P]:
        """One point as the cost model would hand it out, with the bound for cold caches."""
        estimate = float(self.estimates_s[index])
        return ParameterChoice(self.parameters(index), self.cold.at(index), estimate, len(self))

    def named(self, index: int) -> dict[str, Any]:
        """Return what names a point in a record."""
        return {"engine": self.engine, **self.space.named(index)}

    def find(self, name: Mapping[str, object]) -> int | None:
        """The point of such a name, or None; nothing about it is trusted."""
        mine = self.named(0)
        if set(name) != set(mine) or any(type(name[n]) is not type(v) for n, v in mine.items()):
            return None
        same = np.ones(len(self), dtype=bool)
        for column, value in name.items():
            if isinstance(value, str):
                same &= value == mine[column]
            else:
                same &= getattr(self.space, column) == value
        found = np.flatnonzero(same)
        return int(found[0]) if len(found) else None

    def scores(self) -> FloatArray:
        """Estimates in seconds to order points by, so that different kinds come before neighbours.

        Points that differ only in the shape of the block have nearly the same estimate: each one more of a
        kind counts as if it were a tenth slower than the one before it.
        """
        by_estimate = np.lexsort((self.least_s, self.estimates_s))
        _, kind = distinct_columns(np.stack(self.kinds)[:, by_estimate])
        grouped = np.argsort(kind, kind="stable")
        starts = np.searchsorted(kind[grouped], np.arange(int(kind.max()) + 1))
        before = np.empty(len(kind), dtype=np.int64)
        before[grouped] = np.arange(len(kind)) - starts[kind[grouped]]
        scores = np.empty(len(kind), dtype=np.float64)
        scores[by_estimate] = self.estimates_s[by_estimate] * (1.0 + _NEIGHBOUR_PENALTY * before)
        return scores


#: the points of an engine for one kernel, and what makes a kernel of one of them
SearchedEngine = tuple[EnginePoints[Any], Callable[[ParameterChoice[Any]], Func]]


def merged_order(engines: Sequence[EnginePoints[Any]]) -> IntArray:
    """(engine, point) rows of all points, in the order to measure."""
    scores = np.concatenate([p.scores() for p in engines])
    rows = np.concatenate(
        [np.stack([np.full(len(p), e), np.arange(len(p))], axis=1) for e, p in enumerate(engines)]
    )
    return np.asarray(rows[np.argsort(scores, kind="stable")], dtype=np.int64)
