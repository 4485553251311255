"""Choice by measurement: kernels are searched alone, the fastest of each compete in the whole network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from tilewright.codegen.builders.cache import cache_key
from tilewright.costmodel.hardware.calibration import calibrated_constants
from tilewright.ir import Func, Module
from tilewright.measuring.budget import Budget
from tilewright.measuring.kernel_program import constants_of, kernel_program, occurrences_of, subject_text
from tilewright.measuring.measurer import Measurer
from tilewright.measuring.network_replays import KernelVariants, NetworkReplays, random_inputs
from tilewright.measuring.network_validation import Choices, Validation, validated
from tilewright.passes.kernels.decision import DECISION, MeasuredPoint, chosen_for, text_of
from tilewright.tuning.algorithms import measured_algorithms
from tilewright.tuning.choices import ChoiceBook
from tilewright.tuning.database.records import Entries
from tilewright.tuning.kernels.kernel_search import PATIENCE, KernelSearch
from tilewright.tuning.kernels.lowering_pool import LEAST_KERNELS, LoweringPool
from tilewright.tuning.kernels.result_check import check_contenders, is_right
from tilewright.tuning.kernels.search import Task, run_searches
from tilewright.tuning.kernels.search_space import search_space
from tilewright.tuning.report import report_of, warn_of_violations

#: of the budget, what timing the algorithms of convolutions may take at most, and of the rest the searches
ALGORITHMS_SHARE = 0.25
SEARCH_SHARE = 0.8
#: a kernel that takes this share of the estimated time is searched with all patience, others with less
PATIENT_SHARE = 0.05
LEAST_PATIENCE = 0.35
#: seconds of replays of the network where there is no budget
VALIDATION_S = 60.0
#: kernels that take less than this share of all searched ones decide nothing
LEAST_SHARE = 0.01


class Tuner:
    """Chooses the algorithms of convolutions and the parameters of kernels by measuring, within a budget.

    streams: the policy that replays are timed with. libraries: whether library kernels will compete with what
    is chosen. factors: what float32 factors of products are allowed. `facts` says what was done (`seconds`:
    how long each part took), once `choose` has run, and `entries` is what of the database it rests on.
    """

    def __init__(
        self,
        measurer: Measurer,
        budget: Budget | None = None,
        *,
        progress: bool | None = None,
        workspace: str = "network",
        streams: str = "model",
        libraries: bool = False,
        factors: str = "",
    ) -> None:
        self.measurer, self.progress, self.workspace = measurer, progress, workspace
        self.factors = factors
        self.libraries = libraries
        self.budget, self.streams = budget or Budget(), streams
        self.book = ChoiceBook(measurer)
        self.facts: dict[str, Any] = {}
        self._seconds: dict[str, float] = {}

    @property
    def entries(self) -> Entries:
        """Choices that were used or made, and the measurements they name."""
        return self.book.entries()

    def choose_algorithms(self, module: Module) -> Module:
        """See `measured_algorithms`; at most a quarter of the budget goes to it."""
        self.measurer.network(module)
        before = set(self.measurer.used)
        with self._part("algorithms"):
            out = measured_algorithms(
                module,
                self.measurer,
                progress=self.progress,
                workspace=self.workspace,
                budget=self.budget.share(ALGORITHMS_SHARE),
                libraries=self.libraries,
                factors=self.factors,
            )
        self.book.rest_on([key.program for key in self.measurer.used if key not in before])
        return out

    def choose(self, module: Module) -> Module:
        """The module with the parameters that make the network fastest, of kernels whose space is known.

        module: tensor level, kernels outlined, parameters chosen by the model. The model's choice is the
        first point of every search, so a kernel is never slower alone than with it, apart from noise. Kernels
        equal but for their names are searched once. What an earlier run came to is not searched again, unless
        its budget cut it short and there is some now.
        """
        self.measurer.network(module)
        with self._part("spaces"):
            tasks = self._tasks(module)
            distinct = list({t.subject: t for t in tasks.values()}.values())
            for task in distinct:
                self.book.recall(task, again=not self.budget.over)
        with self._part("search"):
            self._search([t for t in distinct if t.known is None])
        with self._part("network"):
            validation, recalled = self._validated(module, tasks)
        self.facts = report_of(distinct, self.measurer, self.budget, validation, recalled=recalled)
        self.facts["seconds"] = self._seconds
        warn_of_violations(self.facts["violations"])
        chosen = {name: _chosen(module[name], t, validation) for name, t in tasks.items()}
        return module.with_funcs(tuple(chosen.get(f.name, f) for f in module.funcs))

    def _search(self, tasks: Sequence[Task]) -> None:
        """Search, check what competes in the network, and store what came of it."""
        limit = self.budget.share(SEARCH_SHARE)
        alone_here = len(tasks) < LEAST_KERNELS or limit.over
        with nullcontext() if alone_here else LoweringPool(self.measurer.target) as pool:
            run_searches(
                tasks,
                self.measurer,
                limit,
                progress=self.progress,
                check=is_right,
                lowering=pool.plans if pool is not None else None,
            )
        for task in tasks:
            check_contenders(task, self.measurer)
            self.book.keep(task)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """Add the seconds inside to those of this part of the tuning."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def _tasks(self, module: Module) -> dict[str, Task]:
        """The search of every kernel that has a space, one for all that are equal."""
        constants, calls = constants_of(module), occurrences_of(module)
        by_name: dict[str, Task] = {}
        by_subject: dict[str, Task] = {}
        # What a search proved by the bound holds for the constants of the bound.
        measured = calibrated_constants(self.measurer.target.hardware)
        known = [str(sorted(measured.items()))] if measured else []
        for f in module.funcs:
            if f.name not in calls:
                continue
            cold = constants[f.name] if self.measurer.cold_weights else ()
            space = search_space(f, self.measurer.target.hardware, cold)
            if space is None:
                continue
            subject = "kernel:" + cache_key(subject_text(f, constants[f.name]), text_of(f), *known)
            if subject in by_subject:
                by_subject[subject].search.occurrences += calls[f.name]
            else:
                search = KernelSearch(space, occurrences=calls[f.name], patience=PATIENCE)
                module_of = partial(kernel_program, constants=constants[f.name])
                by_subject[subject] = Task(f.name, subject, search, module_of, constants=constants[f.name])
            by_name[f.name] = by_subject[subject]
        total_s = sum(t.weight_s for t in by_subject.values())
        for t in by_subject.values():
            t.search.patience = patience_for(t.weight_s / total_s if total_s else 1.0)
        return by_name

    def _validated(self, module: Module, tasks: Mapping[str, Task]) -> tuple[Validation, bool]:
        """The point of every task's name, and whether an earlier run came to it."""
        by_name = {t.name: t for t in tasks.values() if t.outcome.ranking}
        fastest = {name: t.outcome.ranking[0].point for name, t in by_name.items()}
        known = self.book.recall_network(module, by_name)
        if known is not None:
            return known, True
        budget = self.budget if self.budget.seconds is not None else Budget(VALIDATION_S)
        timed = any(t.outcome.ranking[0].seconds > 0.0 for t in by_name.values())
        if budget.over or not timed:
            return Validation(fastest, dict(fastest)), False
        variants = {t.name: partial(_variants, module, tasks, t) for t in by_name.values()}
        m = self.measurer
        plans = KernelVariants(module, variants, fastest, m.target, self.streams)
        with NetworkReplays(plans.plan_of, m.device, random_inputs(module)) as replays:
            validation = validated(fastest, parameter_changes(list(by_name.values())), replays.pairs, budget)
        self.book.keep_network(module, by_name, validation)
        return validation, False


def parameter_changes(tasks: Sequence[Task]) -> Iterator[Choices]:
    """The changes of the fastest points that are worth a replay: first to the model's choice of all kernels,
    then of one kernel after another, those that take most time first, to its contenders.
    """
    yield {t.name: 0 for t in tasks}
    weights = {t.name: t.search.occurrences * (t.outcome.best_s or 0.0) for t in tasks}
    total = sum(weights.values())
    for t in sorted(tasks, key=lambda t: -weights[t.name]):
        if weights[t.name] < LEAST_SHARE * total:
            break
        yield from ({t.name: point} for point in t.outcome.contenders)


def patience_for(share: float) -> int:
    """Points without a gain after which a kernel that takes this share of the network's time is settled."""
    return round(max(LEAST_PATIENCE, min(1.0, share / PATIENT_SHARE)) * PATIENCE)


def _variants(module: Module, tasks: Mapping[str, Task], task: Task, point: int) -> tuple[Func, ...]:
    """The kernels of a task's names with the parameters of a point."""
    chosen = {DECISION: task.search.space.variant(point)[DECISION]}
    return tuple(module[name].with_attrs(**chosen) for name, t in tasks.items() if t is task)


def _chosen(kernel: Func, task: Task, validation: Validation) -> Func:
    """The kernel with its chosen parameters and, for reports, what else was measured."""
    if task.name not in validation.chosen:
        return kernel
    space, point = task.search.space, validation.chosen[task.name]
    seconds = {r.point: r.seconds for r in task.outcome.ranking}
    if task.outcome.model_s is not None:
        seconds[0] = task.outcome.model_s
    # The model's choice comes first.
    rows = tuple(_row(task, i, seconds[i]) for i in sorted(seconds, key=lambda i: (i != 0, seconds[i])))
    decision = replace(chosen_for(space.variant(point)), measured_s=seconds[point], candidates=rows)
    return kernel.with_attrs(**{DECISION: decision})


def _row(task: Task, point: int, seconds: float) -> MeasuredPoint:
    space = task.search.space
    decision = chosen_for(space.variant(point))
    assert decision.parameters is not None
    return MeasuredPoint(decision.template, decision.parameters, float(space.estimates_s[point]), seconds)
