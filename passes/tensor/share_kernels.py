"""Kernels that compute the same thing become one function called from several places."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Block, Func, Level, Module, Op, Ref, Value, show_func
from tilewright.passes import PassContext, register_pass


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


def kernel_text(f: Func) -> str:
    """Text of a kernel that does not depend on its name, its origin, or what its values are called."""
    plain: dict[Value, Value] = {}

    def bare(v: Value) -> Value:
        return plain.setdefault(v, Value(v.type))

    def block(b: Block) -> Block:
        return Block(tuple(map(bare, b.params)), tuple(map(op, b.ops)))

    def op(o: Op) -> Op:
        return replace(
            o,
            operands=tuple(map(bare, o.operands)),
            results=tuple(map(bare, o.results)),
            body=block(o.body) if o.body is not None else None,
        )

    return show_func(replace(f, name="k", body=block(f.body)), locations=False)
