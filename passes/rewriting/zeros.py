"""Values that are zeros, and additions to them."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np

from tilewright.ir.nodes import Func, Module, Op, Value


def zeros_made(module: Module, func: Func, result: Value) -> list[Op]:
    """The ops of a graph-level function that make a result, in order, if it is a constant of zeros.

    Empty where it is anything else. Constants may be repeated along dimensions.
    """
    made = {r: op for op in func.body.ops for r in op.results}
    op = made.get(result)
    chain: list[Op] = []
    while op is not None and op.name == "graph.broadcast_to":
        chain.insert(0, op)
        op = made.get(op.operands[0])
    if op is None or op.name != "graph.constant" or np.any(module.constants[str(op["name"])]):
        return []
    return [op, *chain]


def added_to_zeros(op: Op, values: Mapping[Value, Value], zeros: Set[Value]) -> Value | None:
    """What an addition to zeros gives; None for other ops.

    values: what stands for the operands of the op. zeros: which of these are zeros.
    """
    if op.name != "graph.add":
        return None
    a, b = (values[v] for v in op.operands)
    term = b if a in zeros else a
    return term if {a, b} & zeros and term.type == op.result.type else None
