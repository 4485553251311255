"""Pass widen-where-read: conversions to wider types are part of what reads them, and never stored."""

from __future__ import annotations

from tilewright.ir import Func, Level, Op, Value
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.inlined import with_bodies

#: ops whose bodies may hold a conversion
_READERS = frozenset({"tensor.map", "tensor.reduce"})


@register_pass(Level.TENSOR)
def widen_where_read(func: Func, ctx: PassContext) -> Func:
    """Write conversions to wider types into the bodies of the maps and reductions that read them.

    rewrite:  %w = tensor.map(%x) {cast f32}; %y = tensor.map(%w) {exp}; %s = tensor.reduce(%w) {add}
        -->   %y = tensor.map(%x) {exp(cast f32)}; %s = tensor.reduce(%x) {cast f32, add}

    Kernels that read one array of 16 bits then all read it as it is stored, however they are cut.
    """
    wider: dict[Value, Op] = {}
    ops = []
    for op in func.body.ops:
        new = with_bodies(op, wider) if op.name in _READERS else op
        if _widens(new):
            wider[op.result] = new
        ops.append(new)
    block = func.body.with_ops(tuple(ops))
    return func.with_body(block.with_ops(live_ops(block))) if wider else func


def _widens(op: Op) -> bool:
    """Return whether an op does nothing but convert an array to a wider type, element by element or not."""
    if op.name != "tensor.map" or len(op.operands) != 1 or op.body is None:
        return False
    body = [o.name for o in op.body.ops]
    source, result = op.operands[0].tensor, op.result.tensor
    return body == ["scalar.cast", "scalar.yield"] and itemsize(source.dtype) < itemsize(result.dtype)
