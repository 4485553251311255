"""Kernels as text by which equal ones are found."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Block, Func, Op, Value, show_func


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
