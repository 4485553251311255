"""What the ops of a graph function cost, and which of them are free to repeat."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.costmodel.op_work import op_flops
from tilewright.ir.facts import SAME_MEMORY, Elements
from tilewright.ir.nodes import Op, Value
from tilewright.ir.opdef import facts_of, op_def
from tilewright.passes.graph.distribute.space.cost import Rates

#: what ops do that only cut out or rename what they are given
VIEWS = SAME_MEMORY | {Elements.CUTS}


def flops_of(op: Op) -> int:
    """Floating-point operations of an op; none for views."""
    return 0 if facts_of(op.name).elements in VIEWS else op_flops(op)


def seconds_of(op: Op, rates: Rates) -> float:
    """The larger of an op's operations and its memory traffic, in seconds of a device of speed 1."""
    elements = facts_of(op.name).elements
    if elements in VIEWS:
        return 0.0
    read = (*op.results, *op.operands[1:]) if elements is Elements.LOOKS_UP else op.operands
    moved = sum(v.tensor.nbytes for v in (*read, *op.results))
    return max(flops_of(op) / rates.flops_per_s, moved / rates.bytes_per_s)


def free_ops(ops: Sequence[Op], params: Sequence[Value]) -> set[Op]:
    """Ops every device may do for itself: what is made of constants alone, and views of inputs."""
    known: dict[Value, bool] = dict.fromkeys(params, False)  # value -> made of constants alone
    free: set[Op] = set()
    for op in ops:
        if op_def(op.name).effects or not all(v in known for v in op.operands):
            continue
        constant = all(known[v] for v in op.operands)
        if constant or facts_of(op.name).elements in VIEWS:
            free.add(op)
            known.update(dict.fromkeys(op.results, constant))
    return free
