"""Pass infer-shapes: result types of graph ops recomputed from their operands."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Level, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.values import replace_in_op


@register_pass(Level.GRAPH, establishes={"shapes-known"})
def infer_shapes(func: Func, ctx: PassContext, *, mode: Literal["repair", "check"] = "repair") -> Func:
    """Recompute the type of every value; `check` refuses a wrong type instead of putting it right.

    rewrite: %y = graph.relu(%x) : f32[2]   -->   %y = graph.relu(%x) : f32[3]     where %x : f32[3]
    """
    new: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in func.body.ops:
        op = replace_in_op(op, new)
        infer = op_def(op.name).infer
        if infer is not None:
            types = tuple(infer([v.type for v in op.operands], dict(op.attrs)))
            if types != tuple(r.type for r in op.results):
                if mode == "check":
                    got = ", ".join(str(r.type) for r in op.results)
                    raise InputError(f"expected results of type {', '.join(map(str, types))}, got {got}")
                results = tuple(Value(t, r.hint) for t, r in zip(types, op.results, strict=True))
                new.update(zip(op.results, results, strict=True))
                op = replace(op, results=results)
        ops.append(op)
    func = func.with_body(func.body.with_ops(tuple(ops)))
    types = tuple(v.type for v in ops[-1].operands)
    return func if types == func.result_types else replace(func, result_types=types)
