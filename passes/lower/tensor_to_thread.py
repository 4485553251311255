"""Lowers tensor-level kernels to the thread level through the templates of kernel families."""

from __future__ import annotations

from tilewright.ir import Func, Level
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.registry import TEMPLATE, chosen_template

#: what stays on record about a kernel
KEPT = frozenset({TEMPLATE, "params", "cost", "measured_s"})


@register_pass(Level.TENSOR, to=Level.THREAD, requires={"kernels-outlined", "parameters-chosen"})
def tensor_to_thread(func: Func, ctx: PassContext) -> Func:
    """Turn each kernel into what one of its threads does; @main keeps calling them.

    rewrite:  tensor.func @k(%x) -> %y {contract, map}
        -->   thread.func @k(%x, %y, grid = ..., block = ...) {loops, loads, stores}

    What a library computes stays as it is. Barriers are placed by `place-barriers`,
    vector accesses made by `vectorise`.
    """
    if func.name == "main":
        return func
    lower = chosen_template(func).lower
    if lower is None:
        return func
    lowered = lower(func)
    return lowered.with_attrs(**{k: v for k, v in func.attrs if k in KEPT})
