"""Parts that `tune="measure"` adds to a compilation: a search among kernels, a comparison with libraries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from tilewright.devices.targets import Target
from tilewright.ir import Module
from tilewright.libraries.choice import LibraryChoice
from tilewright.measuring.budget import Budget, budget_seconds
from tilewright.measuring.measurer import measurer
from tilewright.passes.pipelines import FACTORS
from tilewright.request import CompileRequest
from tilewright.tuning.database.records import lines_of
from tilewright.tuning.database.travel import TEXT
from tilewright.tuning.tuner import Tuner

#: of the budget, what the search among generated kernels takes where libraries compete
SEARCH_SHARE = 0.75


class MeasuredChoice:
    """The tuner of a compilation and, where libraries compete, their choice."""

    def __init__(self, tuner: Tuner, libraries: LibraryChoice | None) -> None:
        self.choose_algorithms = tuner.choose_algorithms
        self._tuner, self._libraries = tuner, libraries

    def choose(self, module: Module) -> Module:
        """Search among generated kernels, then compare them with those of libraries."""
        tuned = self._tuner.choose(module)
        return tuned if self._libraries is None else self._libraries.choose(tuned)

    def facts(self) -> dict[str, Any]:
        """The facts of the search and of the comparison that a report shows."""
        libraries = {} if self._libraries is None else {"libraries": self._libraries.facts}
        return {"tuning": self._tuner.facts, **libraries}

    def texts(self) -> dict[str, str]:
        """The entries of the database that the choice rests on, as a saved executable keeps them."""
        return {TEXT: lines_of(self._tuner.entries)}


@contextmanager
def measured_choice(target: Target, request: CompileRequest) -> Iterator[MeasuredChoice]:
    """The choice for a target, with the options of a compilation. Raises as opening the device does."""
    budget = Budget(budget_seconds(request.budget))
    streams = request.streams or "model"
    with measurer(target, request.tuning_db) as m:
        libraries = (
            LibraryChoice(m, budget, progress=request.progress, streams=streams)
            if request.libraries
            else None
        )
        tuner_of = partial(
            Tuner,
            m,
            streams=streams,
            progress=request.progress,
            workspace=request.workspace,
            factors=FACTORS.get(request.precision, ""),
        )
        if libraries is None or not libraries.possible:
            tuner = tuner_of(budget)
        else:  # the search leaves some of the budget to the comparison
            tuner = tuner_of(budget.share(SEARCH_SHARE), libraries=True)
        yield MeasuredChoice(tuner, libraries)
