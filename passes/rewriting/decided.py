"""A function in which some conditions are known: what they choose stands in place of the choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir.builder import Builder
from tilewright.ir.nodes import Block, Func, Value
from tilewright.ir.types import TensorType
from tilewright.passes.rewriting.dead_ops import live_ops

#: ops that a condition may decide, and its type
DECIDING = ("graph.where", "graph.logical_and", "graph.logical_or")
CONDITION = TensorType("bool", ())


def decided(main: Func, known: Mapping[Value, bool]) -> Func:
    """@main where the conditions are what `known` says; values that both have are the same objects.

    rewrite: %y = graph.where(%due, %a, %b)  -->  %a where %due is true, else %b
    rewrite: %y = graph.logical_and(%due, %c)  -->  %c where %due is true, else false, likewise
    """
    known = dict(known)
    stands: dict[Value, Value] = {}
    builder = Builder("")
    for op in main.body.ops:
        op = replace(op, operands=tuple(stands.get(v, v) for v in op.operands))
        builder.loc = op.loc
        chosen: Value | None = None
        if op.name == "graph.where" and op.operands[0] in known:
            chosen = op.operands[1 if known[op.operands[0]] else 2]
        elif op.name in ("graph.logical_and", "graph.logical_or") and op.result.type == CONDITION:
            decisive = op.name == "graph.logical_or"  # the operand that decides alone
            if decisive in (known.get(v) for v in op.operands):
                known[op.result] = decisive
            elif any(v in known for v in op.operands):
                chosen = next((v for v in op.operands if v not in known), op.operands[0])
        if chosen is None:
            builder.append(op)
            continue
        if chosen.type != op.result.type:
            chosen = builder.value("graph.broadcast_to", chosen, shape=op.result.tensor.shape)
        stands[op.result] = chosen
    block = Block(main.params, tuple(builder.ops))
    return main.with_body(block.with_ops(live_ops(block)))
