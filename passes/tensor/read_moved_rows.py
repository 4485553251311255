"""Pass read-moved-rows: norms of moved arrays read their rows where these come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from tilewright.ir import Func, Level, Op, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import SECTOR_BYTES
from tilewright.ir.simplify import linear
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.backward_pass import LOSS
from tilewright.passes.analysis.index_sets import identity_read, is_view, recompute_cost, row_major_offset
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.inlined import with_bodies
from tilewright.passes.rewriting.values import readers
from tilewright.passes.tensor.inline_maps import MAX_COST, SMALL_BYTES


#: ops whose bodies may hold those of maps that they read
_READERS = frozenset({"tensor.map", "tensor.reduce"})


@register_pass(Level.TENSOR)
def read_moved_rows(func: Func, ctx: PassContext) -> Func:
    """Let reductions of rows, and what follows from them, read through maps that move elements.

    rewrite:  %t = tensor.map(%x, par = (h, w, c), reads = [[h // 2, w // 2, c]]); %s = tensor.reduce(%t, red = (c))
        -->   %s = tensor.reduce(%x, par = (h, w), red = (c), reads = [[h // 2, w // 2, c]])

    A kernel of rows reads what it walks along at places that are computed once for many neighbours, so a row
    may lie anywhere: an enlarged image, or one cut into windows, is neither written nor read then. The map has
    one operand, whose elements take no more bytes than those it makes of them, and what are neighbours in its
    result are neighbours in the operand by whole sectors of memory: rows that lie across the operand
    are moved by a kernel of their own, which touches each sector once. Whatever reads the result must belong
    to a row of a reduction; for a product it would be stored anyway. Training steps keep moved arrays: their
    backward pass reads them as well.
    """
    if func.updates or func.get(LOSS) is not None:
        return func
    read_by = readers(func.body)
    moved: dict[Value, Op] = {}
    ops: list[Op] = []
    for op in func.body.ops:
        new = with_bodies(op, moved) if op.name in _READERS else op
        taken = op.name == "tensor.map" and len(op.results) == 1 and op.body is not None
        if taken and is_view(op) and op.operands[0] in moved:
            moved[op.result] = new
        elif taken and _keeps_neighbours(op) and _is_for_rows(op.result, read_by):
            moved[op.result] = new
        ops.append(new)
    block = func.body.with_ops(tuple(ops))
    return func.with_body(block.with_ops(live_ops(block))) if moved else func


def _keeps_neighbours(op: Op) -> bool:
    """Return whether a cheap map of one value reads it at other places, by whole sectors of neighbours."""
    made = op.result.tensor
    if len(op.operands) != 1 or made.nbytes <= SMALL_BYTES or recompute_cost(op) > MAX_COST or is_view(op):
        return False
    assert op.body is not None
    if fills(op) != (None,) or any(o.name == "scalar.index" for o in op.body.ops) or identity_read(op, 0):
        return False
    source = op.operands[0].tensor
    size = itemsize(source.dtype)
    if size > itemsize(made.dtype):
        return False
    inner = [d for d, n in dims(op, "par").items() if n > 1][-1]
    place = linear(row_major_offset(reads(op)[0], source.shape), ranges_of(op))
    others = [(atom, step) for atom, step in place.terms if atom != Sym(inner)]
    if (Sym(inner), 1) not in place.terms or any(inner in symbols(atom) for atom, _ in others):
        return False
    run = gcd(dims(op, "par")[inner], place.constant, *(step for _, step in others))
    return run * size % SECTOR_BYTES == 0


def _is_for_rows(value: Value, read_by: Mapping[Value, Sequence[Op]]) -> bool:
    """Return whether all that read a value, or a view of it, are reductions and maps of what these give."""
    found = _final_readers(value, read_by)
    sums = [op for op, _ in found if op.name == "tensor.reduce"]
    below = {r for op in sums for r in op.results}
    todo = list(below)
    while todo:
        for op in read_by[todo.pop()]:
            if op.name == "tensor.map" and below.isdisjoint(op.results):
                below.update(op.results)
                todo += op.results
    return bool(sums) and all(
        below.issuperset(op.results)
        and op.name in _READERS
        and all(v is not read or fill is None for v, fill in zip(op.operands, fills(op), strict=True))
        for op, read in found
    )


def _final_readers(value: Value, read_by: Mapping[Value, Sequence[Op]]) -> list[tuple[Op, Value]]:
    """The ops that read a value or views of it, and which of these."""
    found: list[tuple[Op, Value]] = []
    todo = [value]
    while todo:
        read = todo.pop()
        for op in read_by[read]:
            if is_view(op):
                todo.append(op.result)
            else:
                found.append((op, read))
    return found
