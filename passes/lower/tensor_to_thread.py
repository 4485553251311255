"""Lowers tensor-level kernels to the thread level through the templates of kernel families."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Func, Level
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.decision import DECISION, decision_of
from tilewright.passes.kernels.registry import chosen_template


@register_pass(Level.TENSOR, to=Level.THREAD, requires={"kernels-outlined", "parameters-chosen"})
def tensor_to_thread(func: Func, ctx: PassContext) -> Func:
    """Turn each kernel into what one of its threads does; @main keeps calling them.

    rewrite:  tensor.func @k(%x) -> %y {contract, map}
        -->   thread.func @k(%x, %y, grid = ..., block = ...) {loops, loads, stores}

    The decision stays on record, but for what else was measured. What a library computes stays as it is.
    Barriers are placed by `place-barriers`, vector accesses made by `vectorise`.
    """
    if func.name == "main":
        return func
    lower, decision = chosen_template(func).lower, decision_of(func)
    if lower is None or decision is None:
        return func
    return lower(func).with_attrs(**{DECISION: replace(decision, candidates=())})
