"""Runs pipelines: checks what passes require and establish, calls instruments, explains failures."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import TracebackType

from tilewright.ir.errors import InputError, TilewrightError, UnsupportedError, WorkError
from tilewright.ir.nodes import Module, Op
from tilewright.passes.framework.context import Pass, PassContext, Step, WrongResult, run_single_passes_with
from tilewright.passes.framework.invariants import find_invariant
from tilewright.passes.framework.pipeline import Pipeline
from tilewright.passes.framework.reproducer import write_reproducer


class PassError(WorkError):
    """A pass failed or broke what it promised; the message names the pass, its place and the op."""


def run_pipeline(module: Module, pipeline: Pipeline, ctx: PassContext | None = None) -> Module:
    """Run the passes in order; the same module comes back when none changed anything.

    Raises InputError when the order cannot work on this module or a pass refuses it, PassError when a pass
    fails or breaks an invariant. A failure leaves a reproducer, which the message names, in
    `ctx.reproducer_folder`.
    """
    ctx = ctx or PassContext()
    if module.funcs:
        pipeline.check({f.level for f in module.funcs})
    facts: set[str] = set()
    for i in range(len(pipeline)):
        step = Step(pipeline.passes[i], i + 1, len(pipeline))
        try:
            module = _run_step(step, module, ctx, facts)
        except _StepFailed as failure:
            rest = Pipeline(pipeline.passes[i:])
            raise _explained(failure, step, module, rest, ctx) from failure.cause
    return module


@run_single_passes_with
def _run_alone(configured: Pass, module: Module, ctx: PassContext) -> Module:
    return run_pipeline(module, Pipeline((configured,)), ctx)


class _StepFailed(Exception):
    def __init__(self, cause: Exception, when: str) -> None:
        super().__init__(when)
        self.cause, self.when = cause, when


def _run_step(step: Step, module: Module, ctx: PassContext, facts: set[str]) -> Module:
    d = step.configured.definition
    for instrument in ctx.instruments:
        instrument.before(step, module)
    try:
        _require(step, module, facts)
        try:
            result = step.configured.apply(module, ctx)
        except Exception as e:  # whatever a pass raises is reported with its name and the op it was at
            raise _StepFailed(e, "failed") from e
        facts -= d.breaks
        facts |= d.establishes
        if ctx.verify_each:
            _check_facts(step, result, facts, changed=result is not module)
    except _StepFailed as e:
        for instrument in reversed(ctx.instruments):
            instrument.failed(step, module, e.cause)
        raise
    for instrument in reversed(ctx.instruments):
        instrument.after(step, module, result)
    return result


def _require(step: Step, module: Module, facts: set[str]) -> None:
    """Check what the pass requires, but for what an earlier pass established."""
    for fact in sorted(step.configured.definition.requires - facts):
        problems = find_invariant(fact)(module)
        if problems:
            error = InputError(f"requires '{fact}', but {problems[0]}")
            raise _StepFailed(error, "cannot run")
        facts.add(fact)


def _check_facts(step: Step, module: Module, facts: set[str], *, changed: bool) -> None:
    d = step.configured.definition
    claimed = facts | {"verified"} if changed else d.establishes
    for fact in sorted(claimed, key=lambda f: (f != "verified", f)):
        problems = find_invariant(fact)(module)
        if problems:
            verb = "did not establish" if fact in d.establishes else "broke"
            raise _StepFailed(WorkError(f"it {verb} '{fact}': {problems[0]}"), "left a bad module")


def _explained(
    failure: _StepFailed, step: Step, module: Module, rest: Pipeline, ctx: PassContext
) -> TilewrightError:
    e = failure.cause
    text = str(e) if isinstance(e, TilewrightError) else f"{type(e).__name__}: {e}"
    op = failing_op(e.__traceback__)
    at = f" at {op.name}" + (f" [{op.loc}]" if op.loc else "") if op is not None else ""
    which = f"pass '{step.configured.name}' ({step.position} of {step.total})"
    refused = isinstance(e, InputError)
    if isinstance(e, WrongResult):
        message = f"{which} {text}"
    else:
        line = "" if refused else _line_of(step.configured.definition.file, e.__traceback__)
        message = f"{which} {failure.when}{at}: {text}{line}"
    kind = UnsupportedError if isinstance(e, UnsupportedError) else InputError
    if ctx.reproducer_folder is not None and not refused:
        message += _rerun(module, rest, ctx, message, ctx.reproducer_folder)
    return kind(message) if refused else PassError(message)


def _rerun(module: Module, rest: Pipeline, ctx: PassContext, message: str, folder: Path) -> str:
    """Return how the failure can be seen again: a reproducer, or why there is none."""
    try:
        path = write_reproducer(module, rest, ctx, message, folder)
    except Exception as e:  # noqa: BLE001 - whatever stands in its way must not hide the failure itself
        reason = e.strerror if isinstance(e, OSError) and e.strerror else f"{type(e).__name__}: {e}"
        return f";\nno reproducer could be written to {folder}: {reason}"
    foreign = dict.fromkeys(p.definition.importable for p in rest if not p.definition.own)
    imports = "".join(f" --import {shlex.quote(name)}" for name in foreign if name)
    hint = " (a pass of it is in no file: register it first)" if "" in foreign else ""
    return f";\nrerun it with: irdump {shlex.quote(str(path))}{imports}{hint}"


def _line_of(file: str, traceback: TracebackType | None) -> str:
    """The last line of the pass's own file on the way to the error; nothing where it raised none itself."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == file:
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return f" ({file}:{line})" if line is not None else ""


def failing_op(traceback: TracebackType | None) -> Op | None:
    """The op a failing pass was at: the innermost local variable named `op` on the way to the error."""
    innermost: Op | None = None
    while traceback is not None:
        op = traceback.tb_frame.f_locals.get("op")
        if isinstance(op, Op):
            innermost = op
        traceback = traceback.tb_next
    return innermost
