"""Pass simplify-thread: shorter index expressions, fewer masks, no loops of extent 0 or 1."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.builder import Builder
from tilewright.ir.nodes import Block, Func, Level, Op, Value
from tilewright.ir.simplify import Ranges, simplify
from tilewright.ir.thread.role_ops import ROLE
from tilewright.ir.types import ScalarType
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.values import resolve
from tilewright.passes.thread.scopes import (
    Mask,
    always,
    body_ranges,
    extent_of,
    launch_ranges,
    loop_ranges,
    map_indices,
    mask_of,
    never,
)


@register_pass(Level.THREAD)
def simplify_thread(func: Func, ctx: PassContext) -> Func:
    """Simplify index expressions under the known ranges; drop proven masks, what is masked off, short loops.

    rewrite: thread.loop(var = i, extent = 1) { thread.load(%x, at = [i + 4 * (tid // 4) + tid % 4]) }
        -->   thread.load(%x, at = [tid])
    """
    body = _Simplifier().block(func.body, launch_ranges(func), ())
    return func.with_body(body)


class _Simplifier:
    def __init__(self) -> None:
        self.new: dict[Value, Value] = {}

    def block(self, block: Block, ranges: Ranges, known: Mask) -> Block:
        out: list[Op] = []
        for op in block.ops:
            out += self.op(op, ranges, known)
        return block.with_ops(tuple(out))

    def op(self, op: Op, ranges: Ranges, known: Mask) -> tuple[Op, ...]:
        """Return what stands for `op`; `known` holds what enclosing conditions say."""
        body = op.body
        op = op.with_operands(tuple(resolve(v, self.new) for v in op.operands))
        op = map_indices(op, lambda e: simplify(e, ranges))
        mask = mask_of(op)
        if mask:
            if any(never(m, ranges) for m in mask):
                return self.masked_off(op)
            needed = tuple(m for m in mask if m not in known and not always(m, ranges))
            if needed != mask:
                op = op.with_attrs(mask=needed)
        if body is None:
            return (op,)
        if op.name == ROLE:
            return (_with_body(op, self.block(body, body_ranges(op, ranges), known)),)
        if op.name == "thread.if":
            inner = self.block(body, ranges, known + mask_of(op))
            return (_with_body(op, inner),) if mask_of(op) or op.operands else inner.ops
        return self.loop(op, body, ranges, known)

    def masked_off(self, op: Op) -> tuple[Op, ...]:
        """The rest where the mask is never true: a load gives its other value, a copy writes zeros."""
        if op.name in ("thread.load", "thread.gather"):
            b = Builder(op.loc)
            t = op.result.type
            assert isinstance(t, ScalarType)
            value = b.const(op.number("other"), t.dtype)
            if t.lanes > 1:
                value = b.value("scalar.broadcast", value, lanes=t.lanes)
            self.new[op.result] = value
            return tuple(b.ops)
        return (op,) if op.name == "thread.copy_async" else ()

    def loop(self, op: Op, body: Block, ranges: Ranges, known: Mask) -> tuple[Op, ...]:
        extent = extent_of(op)
        if extent == 0:
            self.new.update(zip(op.results, op.operands, strict=True))
            return ()
        if extent > 1:
            return (_with_body(op, self.block(body, loop_ranges(op, ranges), known)),)
        self.new.update(zip(body.params, op.operands, strict=True))
        inner = self.block(body, loop_ranges(op, ranges), known)
        ops = inner.ops
        if ops and ops[-1].name == "thread.yield":
            self.new.update(
                (r, resolve(v, self.new)) for r, v in zip(op.results, ops[-1].operands, strict=True)
            )
            ops = ops[:-1]
        return ops


def _with_body(op: Op, body: Block) -> Op:
    return op if body is op.body else replace(op, body=body)
