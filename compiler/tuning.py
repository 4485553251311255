"""Choice by measurement: the spaces of all kernels are searched, and what came of it is said."""

from __future__ import annotations

from functools import partial
from typing import Any

from tilewright.algorithm_tuning import measured_algorithms
from tilewright.budget import Budget
from tilewright.codegen.cache import cache_key
from tilewright.ir import Func, Module, Pairs
from tilewright.kernel_program import alone, constants_of, occurrences_of, subject_text
from tilewright.kernel_search import KernelSearch
from tilewright.measuring import Measurer
from tilewright.search import Task, run_searches
from tilewright.search_space import search_space
from tilewright.tuning_report import report_of, warn_of_violations

#: of the budget, what timing the algorithms of convolutions may take at most
ALGORITHMS_SHARE = 0.25
#: points of a kernel that a report shows, the model's choice and the fastest
SHOWN = 9


class Tuner:
    """Chooses the parameters of every kernel by measuring, within a budget.

    `facts` says what was done, once `choose` has run.
    """

    def __init__(
        self,
        measurer: Measurer,
        budget: Budget | None = None,
        *,
        progress: bool | None = None,
        workspace: str = "network",
    ) -> None:
        self.measurer, self.progress, self.workspace = measurer, progress, workspace
        self.budget = budget or Budget()
        self.facts: dict[str, Any] = {}

    def choose_algorithms(self, module: Module) -> Module:
        """See `measured_algorithms`; at most a quarter of the budget goes to it."""
        return measured_algorithms(
            module,
            self.measurer,
            progress=self.progress,
            workspace=self.workspace,
            budget=self.budget.share(ALGORITHMS_SHARE),
        )

    def choose(self, module: Module) -> Module:
        """The module with the fastest measured parameters on every kernel whose space is known.

        module: tensor level, kernels outlined, parameters chosen by the model. The model's choice is the
        first point of every search, so a kernel is never slower than with it, apart from noise. Kernels
        equal but for their names are searched once.
        """
        tasks = self._tasks(module)
        distinct = list({id(t): t for t in tasks.values()}.values())
        run_searches(distinct, self.measurer, self.budget, progress=self.progress)
        self.facts = report_of(distinct, self.measurer, self.budget)
        warn_of_violations(self.facts["violations"])
        chosen = {name: _chosen(module[name], task) for name, task in tasks.items()}
        return module.with_funcs(tuple(chosen.get(f.name, f) for f in module.funcs))

    def _tasks(self, module: Module) -> dict[str, Task]:
        """The search of every kernel that has a space, one for all that are equal."""
        constants, calls = constants_of(module), occurrences_of(module)
        found: dict[str, Task] = {}
        by_subject: dict[str, Task] = {}
        for f in module.funcs:
            space = search_space(f, self.measurer.target.hardware) if f.name in calls else None
            if space is None:
                continue
            subject = cache_key(subject_text(f, constants[f.name]), str(f["params"]))
            if subject in by_subject:
                by_subject[subject].search.occurrences += calls[f.name]
            else:
                search = KernelSearch(space, occurrences=calls[f.name])
                module_of = partial(alone, constants=constants[f.name])
                by_subject[subject] = Task(f.name, search, module_of)
            found[f.name] = by_subject[subject]
        return found


def _chosen(kernel: Func, task: Task) -> Func:
    """The kernel with the fastest parameters and, for reports, what else was measured."""
    s = task.search
    if not s.seconds:
        return kernel
    fastest = sorted(s.seconds, key=lambda i: (s.seconds[i], i))[: SHOWN - 1]
    shown = [*([0] if 0 in s.seconds else []), *(i for i in fastest if i)]
    best = s.variants[s.best]
    rows = tuple(_row(s, i) for i in shown)
    return kernel.with_attrs(
        params=best["params"], cost=best["cost"], measured_s=s.seconds[s.best], candidates=rows
    )


def _row(s: KernelSearch, point: int) -> Pairs:
    row = {"params": s.variants[point]["params"], "estimate_s": float(s.space.estimates_s[point])}
    return Pairs.of({**row, "measured_s": s.seconds[point]})
