"""Before a candidate may win, its results are compared with those of the model's choice."""

from __future__ import annotations

import sys

from tilewright.ir import TilewrightError
from tilewright.measuring.measurer import Measurer, Program
from tilewright.measuring.network_validation import CONTENDERS, NEAR
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.tuning.kernels.result_check import difference, write_reproducer
from tilewright.tuning.kernels.search import Task


def is_right(task: Task, point: int, measurer: Measurer, program: Program, built: ExecutionPlan) -> bool:
    """Whether a point of a search computes what its first one does; each is compared once.

    A wrong one is told on stderr, and leaves a reproducer.
    """
    if point in task.right:
        return True
    if point and task.reference is None:
        model = measurer.program(task.module(task.search.space.variant(0)))
        (plan,) = measurer.build([model])
        task.reference = measurer.outputs(model, plan)
    got = measurer.outputs(program, built)
    if not point:
        task.reference = got
    assert task.reference is not None
    kernel = task.search.space.variant(point)
    found = difference(kernel, task.reference, got)
    if found is None:
        task.right.add(point)
        return True
    space = task.search.space
    path = write_reproducer(task.name, kernel["params"], task.module(space.variant(0)), task.module(kernel))
    task.wrong[point] = (
        f"bug: kernel {task.name} with params {space.described(point)} differs by {found} from the model's "
        f"choice {space.described(0)}; program {program.key.program}, {measurer.target} on "
        f"{measurer.device.name}; both are in {path}"
    )
    print(task.wrong[point], file=sys.stderr)
    return False


def check_contenders(task: Task, measurer: Measurer) -> None:
    """Refuse those among the fastest points that compute something else, until all that compete are right."""
    if task.known is not None:
        return
    while unchecked := [r for r in _contenders(task) if r not in task.right]:
        for point in unchecked:
            try:
                program = measurer.program(task.module(task.search.space.variant(point)))
                (built,) = measurer.build([program])
            except TilewrightError as error:
                task.search.refuse(point, str(error))
                continue
            if not is_right(task, point, measurer, program, built):
                task.search.refuse(point, task.wrong[point])


def _contenders(task: Task) -> list[int]:
    ranking = task.outcome.ranking
    near = [r.point for r in ranking if r.seconds <= NEAR * ranking[0].seconds]
    return near[:CONTENDERS] if ranking and ranking[0].seconds > 0.0 else []
