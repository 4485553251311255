"""The ops of a block that matter: those with effects and those whose results such ops use."""

from __future__ import annotations

from tilewright.ir.nodes import Block, Op, Value
from tilewright.ir.opdef import op_def


def live_ops(block: Block) -> tuple[Op, ...]:
    """The ops of a block that have effects or whose results are used by ops that stay, in order.

    An op without effects is dropped with its body, whatever the body holds.
    """
    used: set[Value] = set()
    live: list[Op] = []
    for op in reversed(block.ops):
        if op_def(op.name).effects or any(r in used for r in op.results):
            live.append(op)
            used.update(op.operands)
            if op.body is not None:
                used.update(_outer_uses(op.body))
    return tuple(reversed(live))


def _outer_uses(body: Block) -> set[Value]:
    used: set[Value] = set()
    for op in body.ops:
        used.update(op.operands)
        if op.body is not None:
            used |= _outer_uses(op.body)
    return used
