"""Pass thread-dce: drops values nobody uses, buffers nobody reads, and the loops that are left empty."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tilewright.ir.nodes import Block, Func, Level, Op, Value, walk
from tilewright.ir.opdef import op_def
from tilewright.ir.types import TensorType
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.values import use_counts

#: effects that never keep an op alive by themselves
_HARMLESS = frozenset({"read", "alloc"})


@register_pass(Level.THREAD)
def thread_dce(func: Func, ctx: PassContext) -> Func:
    """Drop what has no influence on global memory.

    rewrite:  %a = load(%x); %s = alloc() in reg; store(%a, %s)   -->   nothing, where %s is never read
    """
    while True:
        body = _sweep(func.body, use_counts(func.body), _unread(func.body))
        if body is func.body:
            return func
        func = func.with_body(body)


def _unread(body: Block) -> frozenset[Value]:
    """Allocated buffers that are only ever stored to."""
    uses: Counter[Value] = Counter()
    stores: Counter[Value] = Counter()
    for op in walk(body):
        uses.update(op.operands)
        if op.name == "thread.store":
            stores[op.operands[1]] += 1
    buffers = (op.result for op in walk(body) if op.name == "thread.alloc")
    return frozenset(b for b in buffers if uses[b] == stores[b] and isinstance(b.type, TensorType))


def _sweep(block: Block, uses: Counter[Value], unread: frozenset[Value]) -> Block:
    out: list[Op] = []
    for op in block.ops:
        if op.body is not None:
            body = _sweep(op.body, uses, unread)
            op = op if body is op.body else replace(op, body=body)
            if not body.ops and not op.results:
                continue
        elif (op.name == "thread.store" and op.operands[1] in unread) or (
            op.results and op_def(op.name).effects <= _HARMLESS and not any(uses[r] for r in op.results)
        ):
            continue
        out.append(op)
    return block.with_ops(tuple(out))
