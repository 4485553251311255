"""Kernels that compute the same thing become one function called from several places."""

from __future__ import annotations

from tilewright.ir import Func, Level, Module, Op, Ref
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def share_kernels(module: Module, ctx: PassContext) -> Module:
    """Keep one of several structurally equal kernels.

    rewrite:  call(callee = @a), call(callee = @b) with @a equal @b
        -->   call(callee = @a), call(callee = @a)
    """
    first: dict[str, Func] = {}
    stands_for: dict[str, str] = {}
    for f in module.funcs:
        if f.name == "main":
            continue
        key = kernel_text(f)
        stands_for[f.name] = first.setdefault(key, f).name
    if all(a == b for a, b in stands_for.items()):
        return module

    def redirect(op: Op) -> Op:
        ref = op.get("callee")
        if not isinstance(ref, Ref) or stands_for.get(ref.name, ref.name) == ref.name:
            return op
        return op.with_attrs(callee=Ref(stands_for[ref.name]))

    different = [f for f in module.funcs if stands_for.get(f.name, f.name) == f.name]
    return module.with_funcs(
        tuple(
            f.with_body(f.body.with_ops(tuple(map(redirect, f.body.ops)))) if f.name == "main" else f
            for f in different
        )
    )
