"""Decisions by measurement in a tuning database, recalled and kept: kernels, convolutions, networks."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from tilewright.codegen.builders.cache import cache_key
from tilewright.ir import Module, TilewrightError
from tilewright.measuring.measurer import Measurer
from tilewright.measuring.network_validation import Validation
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import undecided
from tilewright.tuning.database.records import Entries, Key, Row, StoredChoice
from tilewright.tuning.kernels.kernel_outcome import is_seconds, outcome_in, record_of
from tilewright.tuning.kernels.search import Task

_TIMES = ("model_s", "isolated_s", "arbitrated_s")


class ChoiceBook:
    """Choices by subject on one device. One is recalled only where the programs it names are still what its
    parameters are compiled to, so no version of the compiler takes a choice that belongs to other kernels.
    """

    def __init__(self, measurer: Measurer) -> None:
        self._measurer = measurer
        self._used: dict[Key, StoredChoice] = {}
        self._programs: dict[str, None] = {}

    def recall(self, task: Task, *, again: bool) -> None:
        """Tell a search what an earlier run came to.

        again: whether a search that a budget cut short goes on from there, else that is final as well.
        """
        choice = self.choice(task.subject)
        outcome = None if choice is None else outcome_in(choice.record, task.search.space)
        if choice is None or outcome is None or not outcome.ranking:
            return
        best = outcome.ranking[0]
        if self._program(task, best.point) != best.program:
            return
        task.seed(outcome)
        if outcome.end != "budget" or not again:
            task.known, task.reused = outcome, outcome.measured
            self._measurer.reused += outcome.measured
            self.use(task.subject, choice, [r.program for r in outcome.ranking])

    def keep(self, task: Task) -> None:
        """Store what a search came to, if that is anything."""
        outcome = task.outcome
        if outcome.ranking and outcome.ranking[0].seconds > 0.0:
            record = record_of(outcome, task.search.space)
            self.put(task.subject, record, [r.program for r in outcome.ranking])

    def recall_network(self, module: Module, tasks: Mapping[str, Task]) -> Validation | None:
        """The result of an earlier run in the whole network, if it had the same candidates."""
        choice = self.choice(subject_of(module))
        data = {} if choice is None else json.loads(choice.record)
        if (
            choice is None
            or set(data) != {"kernels", "compared", *_TIMES}
            or type(data["compared"]) is not int
        ):
            return None
        rows = data["kernels"]
        if not isinstance(rows, dict) or set(rows) != set(tasks):
            return None
        if not all(data[name] is None or is_seconds(data[name]) for name in _TIMES):
            return None
        chosen = {name: self._chosen(task, rows[name]) for name, task in tasks.items()}
        points = {name: point for name, point in chosen.items() if point is not None}
        if len(points) < len(chosen):
            return None
        self.use(subject_of(module), choice, [])
        fastest = {name: t.outcome.ranking[0].point for name, t in tasks.items()}
        times = {name: data[name] for name in _TIMES}
        return Validation(fastest, points, compared=data["compared"], **times)

    def keep_network(self, module: Module, tasks: Mapping[str, Task], validation: Validation) -> None:
        """Store the choice for a network, unless nothing was timed."""
        if not validation.compared or not is_seconds(validation.arbitrated_s):
            return
        rows = {name: self._network_row(t, validation.chosen[name]) for name, t in tasks.items()}
        times = {name: getattr(validation, name) for name in _TIMES}
        record = json.dumps({"kernels": rows, "compared": validation.compared, **times})
        self.put(subject_of(module), record, [])

    def choice(self, subject: str) -> StoredChoice | None:
        """The choice that the database has under a subject, for this device."""
        return self._measurer.database.choice(self._measurer.key(subject))

    def put(self, subject: str, record: str, programs: list[str]) -> None:
        """Store a choice that rests on the times of these programs."""
        choice = StoredChoice(record, int(time.time()))
        self._measurer.database.put_choice(self._measurer.key(subject), choice)
        self.use(subject, choice, programs)

    def use(self, subject: str, choice: StoredChoice, programs: list[str]) -> None:
        """Count a choice, and the times it rests on, among `entries`."""
        self._used[self._measurer.key(subject)] = choice
        self.rest_on(programs)

    def rest_on(self, programs: list[str]) -> None:
        """Count the times of these programs among `entries`."""
        self._programs.update(dict.fromkeys(programs))

    def entries(self) -> Entries:
        """The choices in use and the measurements they rest on."""
        keys = [self._measurer.key(program) for program in self._programs]
        measurements: list[Row] = [(k, m) for k in keys if (m := self._measurer.database.get(k)) is not None]
        return Entries(tuple(measurements), tuple(self._used.items()))

    def _network_row(self, task: Task, point: int) -> dict[str, Any]:
        ranked = [r.program for r in task.outcome.ranking]
        program = self._program(task, point)
        return {"point": dict(task.search.space.named(point)), "program": program, "ranked": ranked}

    def _chosen(self, task: Task, row: Any) -> int | None:
        """The point of a record, where that is still what was compiled and what it was compared with."""
        if not isinstance(row, dict) or set(row) != {"point", "program", "ranked"}:
            return None
        if not isinstance(row["point"], dict) or row["ranked"] != [r.program for r in task.outcome.ranking]:
            return None
        point = task.search.space.point_named(row["point"])
        return point if point is not None and self._program(task, point) == row["program"] else None

    def _program(self, task: Task, point: int) -> str:
        """The digest of a point's program, as it is compiled now; empty where it is refused."""
        if point not in task.checked:
            try:
                module = task.module(task.search.space.variant(point))
                task.checked[point] = self._measurer.program(module).key.program
            except TilewrightError:
                task.checked[point] = ""
        return task.checked[point]


def subject_of(module: Module) -> str:
    """The digest of a network at tensor level: its text but for parameters, origins and names of values."""
    return "network:" + cache_key(*(kernel_text(undecided(f, network=True)) for f in module.funcs))
