"""Finding the first pass of a pipeline after which a module is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Module
from tilewright.passes.framework.context import Instrument, PassContext, Step
from tilewright.passes.framework.pipeline import Pipeline
from tilewright.passes.framework.runner import run_pipeline


def prefixes(module: Module, pipeline: Pipeline, ctx: PassContext | None = None) -> list[Module]:
    """The module before the first pass and after each one; every pass runs once."""
    ctx = ctx or PassContext()
    recorder = _ModuleRecorder()
    run_pipeline(module, pipeline, replace(ctx, instruments=(*ctx.instruments, recorder)))
    return [module, *recorder.modules]


def first_bad_pass(
    module: Module, pipeline: Pipeline, is_good: Callable[[Module], bool], ctx: PassContext | None = None
) -> Step | None:
    """The first pass after which `is_good` no longer holds; `is_good` is asked O(log n) times.

    None when the final module is good. Raises InputError when the module is bad before any pass runs.
    """
    modules = prefixes(module, pipeline, ctx)
    if not is_good(modules[0]):
        raise InputError("the module is wrong before any pass runs, so no pass is to blame")
    good, bad = 0, len(modules) - 1
    if bad == 0 or is_good(modules[bad]):
        return None
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_good(modules[middle]):
            good = middle
        else:
            bad = middle
    return Step(pipeline.passes[bad - 1], bad, len(pipeline))


class _ModuleRecorder(Instrument):
    """Modules after the passes of the outermost pipeline."""

    def __init__(self) -> None:
        self.modules: list[Module] = []
        self.depth = 0

    def before(self, step: Step, module: Module) -> None:
        self.depth += 1

    def after(self, step: Step, before: Module, after: Module) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.modules.append(after)
