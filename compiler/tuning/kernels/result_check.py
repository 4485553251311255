"""Before a candidate may win, its results are compared with those of the model's choice, on equal inputs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from math import prod, sqrt
from pathlib import Path

import numpy as np

from tilewright.ir import Func, Module, TilewrightError, show
from tilewright.ir.tensor.ops import dims
from tilewright.measuring.measurer import Measurer, TimedProgram, sample_of
from tilewright.passes.framework.context import temporary_reproducers
from tilewright.passes.kernels.decision import text_of
from tilewright.passes.kernels.registry import template_of
from tilewright.runtime.atomic_file import atomic_file
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.tuning.kernels.search import Task

#: largest difference of one element, over its own size and that of a typical one; float32 rounds each term of
#: a sum, the others what is multiplied or stored
FLOAT32 = 1e-5
TOLERANCE = {"tf32": 1e-2, "f16": 1e-2, "bf16": 8e-2}
#: ops that may magnify a difference: of kernels with them more is explained, but for a few elements
_UNSTEADY = (
    "div mod log log2 log10 pow rsqrt tan floor ceil trunc round sign exp exp2 sinh cosh asin acos atanh "
    "acosh eq ne lt le gt ge"
)
UNSTEADY = frozenset(_UNSTEADY.split())
UNSTEADY_FACTOR, UNSTEADY_SHARE = 4.0, 2e-3


def is_right(task: Task, point: int, measurer: Measurer, program: TimedProgram, built: ExecutionPlan) -> bool:
    """Compare a point of a search with its first one, once; true where it computes the same.

    A wrong one is reported on stderr, and leaves a reproducer.
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
    fault = difference(kernel, task.reference, got)
    if fault is None:
        task.right.add(point)
        return True
    space = task.search.space
    path = write_reproducer(task.name, text_of(kernel), task.module(space.variant(0)), task.module(kernel))
    task.wrong[point] = (
        f"bug: kernel {task.name} with params {space.described(point)} differs by {fault} from the model's "
        f"choice {space.described(0)}; program {program.key.program}, {measurer.target} on "
        f"{measurer.device.name}; both are in {path}"
    )
    print(task.wrong[point], file=sys.stderr)
    return False


def check_contenders(task: Task, measurer: Measurer) -> None:
    """Refuse those among the fastest points that compute something else, until all that compete are right."""
    if task.known is not None:
        return
    while unchecked := [p for p in task.outcome.contenders if p not in task.right]:
        for point in unchecked:
            try:
                program = measurer.program(task.module(task.search.space.variant(point)))
                (built,) = measurer.build([program])
            except TilewrightError as error:
                task.search.refuse(point, str(error))
                continue
            if not is_right(task, point, measurer, program, built):
                task.search.refuse(point, task.wrong[point])


def difference(kernel: Func, expected: Sequence[np.ndarray], got: Sequence[np.ndarray]) -> str | None:
    """In a few words how results differ; None where rounding explains it.

    kernel: tensor level, with the parameters of the candidate. Of large results a part is compared.
    """
    names = {o.name.split(".")[-1] for op in kernel.body.ops for o in (op.body.ops if op.body else ())}
    unsteady = bool(names & UNSTEADY)
    share = UNSTEADY_SHARE if unsteady else 0.0
    tolerance = tolerance_of(kernel) * (UNSTEADY_FACTOR if unsteady else 1.0)
    for i, (one, other) in enumerate(zip(expected, got, strict=True)):
        a, b = sample_of(one), sample_of(other)
        finite = np.isfinite(a)
        typical = sqrt(float(np.mean(np.square(a[finite])))) if finite.any() else 0.0
        with np.errstate(invalid="ignore"):
            off = np.abs(a - b) / np.maximum(typical + np.abs(a), 1e-30)
        bad = np.where(finite, ~(off <= tolerance), np.isfinite(b))
        if np.count_nonzero(bad) > share * bad.size:
            at = int(np.flatnonzero(bad)[0])
            return (
                f"{np.count_nonzero(bad)} of {bad.size} elements of result {i} by more than {tolerance:.1g} "
                f"(for instance {b[at]:.6g} for {a[at]:.6g})"
            )
    return None


def tolerance_of(kernel: Func) -> float:
    """The difference that rounding explains, relative to an element and a typical one."""
    types = {v.tensor.dtype for v in (*kernel.params, *kernel.body.ops[-1].operands)}
    narrow = [TOLERANCE[t] for t in types if t in TOLERANCE]
    template = template_of(kernel)
    if template is not None and template.rounds_to is not None:
        narrow.append(TOLERANCE[template.rounds_to])
    return max([FLOAT32 * sqrt(_longest_sum(kernel)), *narrow])


def write_reproducer(kernel: str, params: object, model: Module, candidate: Module) -> Path:
    """A file with both programs, whose first line says what they are; gives its path."""
    folder = temporary_reproducers()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"wrong-{kernel}-{abs(hash(str(params))) % 10**8}.ir"
    title = json.dumps({"kernel": kernel, "params": str(params), "programs": ["model", "candidate"]})
    with atomic_file(path) as file:
        file.write(f"// {title}\n{show(model)}\n{show(candidate)}\n".encode())
    return path


def _longest_sum(kernel: Func) -> int:
    return max(prod(dims(op, "red").values()) for op in kernel.body.ops)
