"""Ops that first reduce and then map, as two ops: what is reduced is small to save, what is mapped cheap."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import Builder, Func, InputError, Op, Value
from tilewright.passes.rewriting.values import replace_in_op

#: writes the first result of an op from its operands and its other results; what it gives has the same type
Mapped = Callable[[Builder, Op, Sequence[Value], Sequence[Value]], Value]


def _by_batch_norm(b: Builder, op: Op, operands: Sequence[Value], moments: Sequence[Value]) -> Value:
    """x standardised by moments that are known: graph.batch_norm computes it by the same formula."""
    return b.value("graph.batch_norm", *operands, *moments, **op.attributes)


#: op -> how its first result follows from the others
PARTS: dict[str, Mapped] = {"graph.batch_norm_training": _by_batch_norm}


def in_parts(func: Func) -> Func:
    """The function with the first results of such ops as ops of their own, which read the other results."""
    new: dict[Value, Value] = {}
    ops: list[Op] = []
    for original in func.body.ops:
        op = replace_in_op(original, new)
        ops.append(op)
        mapped = PARTS.get(op.name)
        if mapped is None:
            continue
        b = Builder(op.loc)
        try:
            value = mapped(b, op, op.operands, op.results[1:])
        except InputError:  # moments in more bits than the op for known ones takes
            continue
        if value.type == op.results[0].type:
            ops += b.ops
            new[op.results[0]] = value
    return func if not new else func.with_body(func.body.with_ops(tuple(ops)))
