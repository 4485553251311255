"""The search of one kernel's space: which points to measure next, and when nothing is left to find."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.kernels.check_measured import TIMER_NOISE
from tilewright.ir import AttrRecord, Func
from tilewright.passes.kernels.decision import chosen_for
from tilewright.tuning.kernels.search_space import SearchSpace

#: points measured without a gain after which an estimate that good is not expected any more
PATIENCE = 24
#: a new best time counts as a gain from here on
GAIN = 1.01

#: `certified`: every point that was not measured has a bound above the best time. `exhausted`: none is left.
#: `settled`: the order by estimate brought no gain for long. `budget`: time was over. `failed`: nothing runs.
#: `untimed`: the device runs nothing, or its clock is too coarse.
End = Literal["certified", "exhausted", "settled", "budget", "failed", "untimed"]


class KernelSearch:
    """Hands out points in the order of the space, leaving out those whose bound is above the best time.

    The order decides how soon the best is found, not whether: while `patience` lasts, the search ends only
    when every point was measured or cannot be faster than the best, which is then the best of the space.
    """

    def __init__(self, space: SearchSpace, *, occurrences: int = 1, patience: int | None = PATIENCE) -> None:
        self.space, self.occurrences = space, occurrences
        self.seconds: dict[int, float] = {}
        self.failed: dict[int, str] = {}
        self.variants: dict[int, Func] = {}
        self.patience = patience
        self._idle = 0
        self._left: npt.NDArray[np.bool_] = np.ones(len(space), dtype=bool)
        self._known: dict[tuple[str, AttrRecord | None], int] = {}
        self._least_s = space.least_s
        self._doubted = False
        self._next = 0

    def take(self, count: int) -> list[int]:
        """At most `count` points to measure; points whose kernels are equal are handed out once."""
        points: list[int] = []
        while len(points) < count and self._next < len(self.space):
            i = self._next
            if self.seconds and self.patience_over:
                break
            self._next += 1
            if not self._left[i] or self.ruled_out(i):
                continue
            variant = self.space.variant(i)
            same = self._known.setdefault(_kind(variant), i)
            self._left[i] = False
            if same == i:
                self.variants[i] = variant
                points.append(i)
        return points

    def tell(self, times: Mapping[int, float | str]) -> None:
        """Seconds of points that were taken, or why one could not be built.

        A time below its bound shows that the bound is wrong: nothing is left out by it from then on.
        """
        before = self.best_s
        for i, result in times.items():
            if isinstance(result, str):
                self.failed[i] = result
            else:
                self.seconds[i] = result
                if result > 0.0 and result * (1.0 + TIMER_NOISE) < self._least_s[i]:
                    self._doubt()
        self._idle = 0 if self.best_s * GAIN < before else self._idle + len(times)

    def refuse(self, point: int, why: str) -> None:
        """Forget the time of a point that must not win."""
        self.seconds.pop(point, None)
        self.failed[point] = why

    def seed(self, times: Mapping[int, float]) -> None:
        """Seconds of points that were measured before; they are not handed out."""
        for i in times:
            self.variants[i] = self.space.variant(i)
            self._known.setdefault(_kind(self.variants[i]), i)
            self._left[i] = False
        self.tell(times)
        self._idle = 0

    def give_back(self, point: int) -> None:
        """A point that was taken and not measured after all."""
        self._left[point] = True

    @property
    def best_s(self) -> float:
        """The least seconds so far; infinite before the first."""
        return min(self.seconds.values(), default=math.inf)

    @property
    def best(self) -> int:
        """The fastest point, the first one of equals."""
        return min(self.seconds, key=lambda i: (self.seconds[i], i))

    @property
    def pruned(self) -> int:
        """Points that were not measured and cannot be faster than the best."""
        return int(np.count_nonzero(self._left & (self._least_s >= self.best_s)))

    @property
    def unknown(self) -> int:
        """Points that were not measured and might be faster than the best, by their bounds."""
        return int(np.count_nonzero(self._left & (self._least_s < self.best_s)))

    @property
    def done(self) -> bool:
        """True where nothing is worth measuring any more."""
        if self._next >= len(self.space):
            return True
        return bool(self.seconds) and (self.patience_over or self.unknown == 0)

    @property
    def end(self) -> End:
        """Why the search ended, or would end now."""
        if not self.seconds:
            return "failed" if self.failed else "budget"
        if self.best_s <= 0.0:
            return "untimed"
        if self.unknown == 0:
            return "certified" if self.pruned else "exhausted"
        return "settled" if self.patience_over or self._doubted else "budget"

    @property
    def certified(self) -> bool:
        """True where the best is the fastest of all points that can be built, measured alone."""
        return self.end in ("certified", "exhausted")

    def ruled_out(self, point: int) -> bool:
        """True where the bound says that a point is not faster than the best."""
        return bool(self._least_s[point] >= self.best_s)

    def _doubt(self) -> None:
        # A bound that one measurement breaks says nothing about other points either.
        self._doubted = True
        self._least_s = np.zeros_like(self.space.least_s)

    @property
    def patience_over(self) -> bool:
        """True where the last points brought no gain for long."""
        return self.patience is not None and self._idle >= self.patience


def _kind(kernel: Func) -> tuple[str, AttrRecord | None]:
    """The decision that is equal for points which become the same kernel."""
    decision = chosen_for(kernel)
    return decision.template, decision.parameters
