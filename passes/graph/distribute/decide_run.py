"""Pass decide-run: one run of every few of a step, with what the count of runs decides decided."""

from __future__ import annotations

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Level, Module
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.distribute.sharding.step_program import SUMMED_STATE
from tilewright.passes.rewriting.decided import decided
from tilewright.passes.rewriting.run_conditions import decided_conditions
from tilewright.passes.rewriting.run_forms import run_forms, summed_state


@register_pass(Level.GRAPH, requires={"shapes-known"})
def decide_run(module: Module, ctx: PassContext, *, run: int = 0) -> Module:
    """The step as its run number `run` of every period does it, for which a count of runs decides conditions.

    A step that accumulates gradients updates in every k-th run: the others do not have the update, and the
    last one not the choice. State that runs add to, and that the last one leaves as zeros, is named in the
    attribute `summed_state`: a pass that divides the step may keep its terms apart. A module without such
    conditions stays as it is. Raises InputError for a run behind the period.

    rewrite: %s = graph.where(%due, %updated, %w)  -->  %updated where run `run` is due, else %w
    """
    forms = run_forms(module)
    if forms is None:
        return module
    if not 0 <= run < forms.runs:
        raise InputError(f"option 'run' expects 0 to {forms.runs - 1}, got {run}")
    main = decided(module.main, decided_conditions(module, forms.runs, run))
    names = summed_state(module, forms)
    out = module.with_funcs(tuple(main if f is module.main else f for f in module.funcs))
    return out.with_attrs(**{SUMMED_STATE: names}) if names else out
