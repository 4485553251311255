"""Lowers tensor-level kernels to the thread level through a few general skeletons."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.ir import Func, InputError, Level
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.attention.lowering import lower_attention
from tilewright.passes.kernels.chain.lowering import lower_chain
from tilewright.passes.kernels.contract.lowering import lower_contract
from tilewright.passes.kernels.map.lowering import lower_map
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.ordered.lowering import lower_scan, lower_scatter
from tilewright.passes.kernels.recurrence.lowering import lower_recur
from tilewright.passes.kernels.rows.lowering import lower_rows
from tilewright.passes.kernels.rows.lowering_across import lower_rows_across
from tilewright.passes.kernels.rows.lowering_kept import lower_rows_kept
from tilewright.passes.kernels.rows.lowering_staged import lower_rows_staged
from tilewright.passes.kernels.window.lowering import lower_window

SKELETONS: dict[str, Callable[[Func], Func]] = {
    "attention": lower_attention,
    "chain": lower_chain,
    "contract": lower_contract,
    "map": lower_map,
    "matrix": lower_matrix,
    "recur": lower_recur,
    "rows": lower_rows,
    "rows_across": lower_rows_across,
    "rows_kept": lower_rows_kept,
    "rows_staged": lower_rows_staged,
    "scan": lower_scan,
    "scatter": lower_scatter,
    "window": lower_window,
}


#: what stays on record about a kernel
KEPT = frozenset({"skeleton", "params", "cost", "measured_s"})


@register_pass(Level.TENSOR, to=Level.THREAD, requires={"kernels-outlined", "parameters-chosen"})
def tensor_to_thread(func: Func, ctx: PassContext) -> Func:
    """Turn each kernel into what one of its threads does; @main keeps calling them.

    rewrite:  tensor.func @k(%x) -> %y {contract, map}
        -->   thread.func @k(%x, %y, grid = ..., block = ...) {loops, loads, stores}

    What a library computes (skeleton "library") stays as it is. Barriers are placed by `place-barriers`,
    vector accesses made by `vectorise`.
    """
    if func.name == "main" or func.get("skeleton") == "library":
        return func
    skeleton = func.get("skeleton")
    if skeleton not in SKELETONS:
        raise InputError(
            f"expected a skeleton among {', '.join(SKELETONS)}, got {skeleton!r}", where=f"@{func.name}"
        )
    lowered = SKELETONS[str(skeleton)](func)
    return lowered.with_attrs(**{k: v for k, v in func.attrs if k in KEPT})
