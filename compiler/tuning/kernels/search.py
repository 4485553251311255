"""Runs the searches of all kernels of a network: batches compile in parallel while others are measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from tqdm import tqdm

from tilewright.ir import Func, Module, TilewrightError
from tilewright.ir.machine import usable_cores
from tilewright.measuring.budget import Budget
from tilewright.measuring.measurer import Measurer, TimedProgram
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.tuning.kernels.kernel_outcome import Outcome, outcome_of
from tilewright.tuning.kernels.kernel_search import KernelSearch
from tilewright.tuning.kernels.lowering_pool import LoweredPlan, LoweringJob, NotLowered

#: points of one kernel that are compiled together
BATCH = 8


@dataclass(eq=False)
class Task:
    """The search of one kernel, and the program that times a variant of it.

    subject: what kernels share that need not be distinguished. programs: per measured point what names its
    program; reused: points whose time was known before. known: what an earlier run came to, where it is
    final. checked: per point, what names the program it is compiled to now. reference: results of the model's
    choice; right, wrong: points whose results were compared with them, and how they differ. constants:
    positions of constant parameters, where the program is the kernel alone with them.
    """

    name: str
    subject: str
    search: KernelSearch
    module: Callable[[Func], Module]
    programs: dict[int, str] = field(default_factory=dict)
    reused: int = 0
    known: Outcome | None = None
    checked: dict[int, str] = field(default_factory=dict)
    reference: list[np.ndarray] | None = field(default=None, repr=False)
    right: set[int] = field(default_factory=set)
    wrong: dict[int, str] = field(default_factory=dict)
    constants: tuple[int, ...] | None = None

    @property
    def outcome(self) -> Outcome:
        """The outcome of an earlier run or of this one."""
        return self.known or outcome_of(self.search, self.programs)

    def seed(self, outcome: Outcome) -> None:
        """Begin with the fastest points of an earlier run."""
        self.programs |= {r.point: r.program for r in outcome.ranking}
        self.search.seed({r.point: r.seconds for r in outcome.ranking})

    @property
    def weight_s(self) -> float:
        """Seconds of one run of the network that the kernel takes, as far as is known."""
        s = self.search
        return s.occurrences * (s.best_s if s.seconds else float(s.space.estimates_s[0]))


Lowering = Callable[[Sequence[LoweringJob]], list[LoweredPlan]]
#: whether a point of a task computes what it should; where not, the task's `wrong` says how
Check = Callable[[Task, int, Measurer, TimedProgram, ExecutionPlan], bool]


@dataclass(eq=False)
class _PendingPoint:
    """A point on its way: its program, and its plan while that compiles."""

    task: Task
    point: int
    program: TimedProgram
    built: Future[list[ExecutionPlan]] | None = None


def run_searches(
    tasks: Sequence[Task],
    measurer: Measurer,
    budget: Budget,
    *,
    progress: bool | None = None,
    check: Check | None = None,
    lowering: Lowering | None = None,
) -> None:
    """Measure until every search is done or the budget is spent.

    Kernels that take more of the network's time get more of the budget, in proportion; the first batches go
    to those that take most. A point that cannot be built is left out of its search and on its record; the
    first point of a kernel is the model's choice, and its errors are raised. check: whether a point that
    would be the best so far computes what it should; else it is left out as well. lowering: in other
    processes.
    """
    hidden = not (sys.stderr.isatty() if progress is None else progress)
    bar = tqdm(total=len(tasks), desc="searching", unit="kernel", file=sys.stderr, disable=hidden)
    pool = ThreadPoolExecutor(usable_cores(), thread_name_prefix="build")
    try:
        with bar:
            _run(tasks, measurer, budget, pool, bar, check, lowering)
    finally:
        pool.shutdown(cancel_futures=True)


def _run(
    tasks: Sequence[Task],
    measurer: Measurer,
    budget: Budget,
    pool: ThreadPoolExecutor,
    bar: tqdm[None],
    check: Check | None,
    lowering: Lowering | None,
) -> None:
    spent = dict.fromkeys(tasks, 0)
    at_once = max(BATCH, 2 * usable_cores())
    now = [] if budget.over else _start(_turn(tasks, spent, at_once), measurer, pool, lowering)
    while now:
        following = _start(_turn(tasks, spent, at_once), measurer, pool, lowering)  # compiles meanwhile
        _measure(now, measurer, budget, check)
        now = following
        if budget.over:
            break
        bar.update(sum(t.search.done for t in tasks) - bar.n)
        left = "" if budget.seconds is None else f", {budget.left_s:.0f} s left"
        bar.set_postfix_str(f"{measurer.measured} measured, {measurer.reused} known{left}")
    for step in now:
        step.task.search.give_back(step.point)


def _turn(tasks: Sequence[Task], spent: dict[Task, int], at_once: int) -> list[tuple[Task, int]]:
    """The next points, of the kernels that got least for what they take of the network's time."""
    chosen: list[tuple[Task, int]] = []
    while len(chosen) < at_once:
        free = [t for t in tasks if not t.search.done]
        task = min(free, key=lambda t: (spent[t] / max(t.weight_s, 1e-12), -t.weight_s), default=None)
        if task is None:
            break
        points = task.search.take(BATCH)
        spent[task] += len(points)
        chosen += [(task, i) for i in points]
    return chosen


def _start(
    points: Sequence[tuple[Task, int]],
    measurer: Measurer,
    pool: ThreadPoolExecutor,
    lowering: Lowering | None,
) -> list[_PendingPoint]:
    """Lower the points; those whose times are not known begin to compile."""
    steps: list[_PendingPoint] = []
    elsewhere = _lowered_elsewhere(points, measurer, lowering)
    for task, i in points:
        module = task.module(task.search.variants[i])
        lowered_plan = elsewhere.get((task, i))
        if isinstance(lowered_plan, NotLowered) and i:
            task.search.tell({i: lowered_plan.text})
            continue
        try:
            if isinstance(lowered_plan, ExecutionPlan):
                program = measurer.program_of(module, lowered_plan)
            else:
                program = measurer.program(module)
        except TilewrightError as error:
            _refuse(task, i, error)
            continue
        steps.append(_PendingPoint(task, i, program))
    for step in steps:
        if measurer.known(step.program) is None:
            step.built = pool.submit(measurer.build, [step.program])
    return steps


def _lowered_elsewhere(
    points: Sequence[tuple[Task, int]], measurer: Measurer, lowering: Lowering | None
) -> dict[tuple[Task, int], LoweredPlan]:
    """The plans of points that other processes have lowered, where there are such processes."""
    if lowering is None:
        return {}
    chosen = [(t, i) for t, i in points if t.constants is not None]
    jobs = [LoweringJob(t.search.variants[i], t.constants or (), measurer.cold_weights) for t, i in chosen]
    return dict(zip(chosen, lowering(jobs), strict=True))


def _measure(steps: Sequence[_PendingPoint], measurer: Measurer, budget: Budget, check: Check | None) -> None:
    """Times in the order of the points, so that what a search does depends on nothing but its times."""
    for step in steps:
        search = step.task.search
        if budget.over or search.ruled_out(step.point) or (search.seconds and search.patience_over):
            search.give_back(step.point)
            continue
        seconds = measurer.known(step.program)  # perhaps of an equal kernel, meanwhile
        if seconds is None:
            assert step.built is not None
            try:
                (plan,) = step.built.result()
            except TilewrightError as error:
                _refuse(step.task, step.point, error)
                continue
            seconds = measurer.measure(step.program, plan)
        else:
            measurer.reused += 1
            step.task.reused += 1
        step.task.programs[step.point] = step.program.key.program
        if check is not None and step.point and 0.0 < seconds < search.best_s:
            (plan,) = step.built.result() if step.built else measurer.build([step.program])
            if not check(step.task, step.point, measurer, step.program, plan):
                search.tell({step.point: step.task.wrong[step.point]})
                continue
        search.tell({step.point: seconds})


def _refuse(task: Task, point: int, error: TilewrightError) -> None:
    if point == 0:
        raise error
    task.search.tell({point: str(error)})
