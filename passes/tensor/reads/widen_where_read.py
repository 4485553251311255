"""Pass widen-where-read: cheap maps that make more bytes than they read are part of what reads them."""

from __future__ import annotations

from tilewright.ir import Func, Level, Op, Value
from tilewright.ir.tensor.ops import fills
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import is_copy, recompute_cost
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.inlined import with_bodies
from tilewright.passes.tensor.reads.inline_maps import MAX_COST

#: ops whose bodies may hold a conversion
_READERS = frozenset({"tensor.map", "tensor.reduce"})


@register_pass(Level.TENSOR)
def widen_where_read(func: Func, ctx: PassContext) -> Func:
    """Write conversions to wider types into the bodies of the maps and reductions that read them.

    rewrite:  %w = tensor.map(%x) {cast f32}; %y = tensor.map(%w) {exp}; %s = tensor.reduce(%w) {add}
        -->   %y = tensor.map(%x) {exp(cast f32)}; %s = tensor.reduce(%x) {cast f32, add}

    Kernels that read one array of 16 bits then all read it as it is stored, however they are cut. So are
    other maps of at most `inline_maps.MAX_COST` additions per point whose result takes more bytes than all
    that they read: standardised elements are computed from 16-bit ones and the statistics of their row
    wherever they are read. Random bits, of which a place is all that is read, are made once.
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
    """Return whether a map makes more bytes than it reads, at little cost."""
    if op.name != "tensor.map" or len(op.results) != 1 or op.body is None or is_copy(op):
        return False
    if any(o.name == "scalar.index" for o in op.body.ops) or any(f is not None for f in fills(op)):
        return False
    read = sum(v.tensor.nbytes for v in dict.fromkeys(op.operands))
    return op.result.tensor.nbytes > read and recompute_cost(op) <= MAX_COST
