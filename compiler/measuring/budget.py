"""The time that measuring may take: a number of seconds, also as text, and a clock that runs against it."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable

from tilewright.ir import InputError

Clock = Callable[[], float]

_UNITS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_TEXT = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*")


class Budget:
    """Seconds from its making on that measuring may take; None sets no limit.

    clock: seconds from any beginning, never going back.
    """

    def __init__(self, seconds: float | None = None, *, clock: Clock = time.monotonic) -> None:
        self.seconds = seconds
        self._clock, self._start = clock, clock()

    @property
    def spent_s(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._start

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0; infinite without a limit."""
        return math.inf if self.seconds is None else max(0.0, self.seconds - self.spent_s)

    @property
    def over(self) -> bool:
        """True where nothing is left."""
        return self.left_s <= 0.0

    def share(self, part: float) -> Budget:
        """A budget that begins now and ends when this fraction of what is left now is spent."""
        return Budget(None if self.seconds is None else part * self.left_s, clock=self._clock)


class Turns:
    """The rest of a budget, shared among parts of some work in proportion to their weights.

    weights: of all parts, in any unit. What a part leaves goes to those that come later.
    """

    def __init__(self, budget: Budget, weights: Iterable[float]) -> None:
        self._budget, self._left = budget, sum(weights)

    def take(self, weight: float) -> Budget:
        """The budget of the next part, which begins now; of the last one it is all that is left."""
        part = 1.0 if self._left <= weight else weight / self._left
        self._left -= weight
        return self._budget.share(part)


def budget_seconds(budget: float | str | None, *, where: str = "budget") -> float | None:
    """Seconds of a number or of text such as `60s`, `5min`, `1.5h`, `90`; None stays None.

    Raises InputError for anything that is no time from 0 on; 0 is legal and means to measure nothing.
    """
    if budget is None:
        return None
    if isinstance(budget, str):
        match = _TEXT.fullmatch(budget.lower())
        if match and match[2] in _UNITS:
            return float(match[1]) * _UNITS[match[2]]
    elif isinstance(budget, int | float) and not isinstance(budget, bool) and 0 <= budget < math.inf:
        return float(budget)
    raise InputError(f"expected a time such as 60s, 5min or 1.5h, got {budget!r:.60}", where=where)
