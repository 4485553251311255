"""Pass read-moved-rows: norms of moved arrays read their rows where these come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir import Builder, Expr, Func, Level, Op, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import SECTOR_BYTES
from tilewright.ir.simplify import interval, simplify
from tilewright.ir.tensor.ops import dims, domain, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.backward_pass import LOSS
from tilewright.passes.analysis.copies import copied
from tilewright.passes.analysis.index_sets import (
    identity_read,
    is_view,
    recompute_cost,
    row_major_offset,
    run_along,
)
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.inlined import with_bodies
from tilewright.passes.rewriting.values import readers
from tilewright.passes.tensor.constants.regular_gathers import rule_of
from tilewright.passes.tensor.memory.join_concats import selected_pieces
from tilewright.passes.tensor.reads.inline_maps import MAX_COST, SMALL_BYTES

#: ops whose bodies may hold those of maps that they read
_READERS = frozenset({"tensor.map", "tensor.reduce"})


@register_pass(Level.TENSOR)
def read_moved_rows(func: Func, ctx: PassContext) -> Func:
    """Let reductions of rows, and what follows from them, read through maps that move elements.

    rewrite:  %t = tensor.map(%x, par = (h, w, c), reads = [[h // 2, w // 2, c]]) {yield};
              %s = tensor.reduce(%t, par = (h, w), red = (c), reads = [[h, w, c]])
        -->   %s = tensor.reduce(%x, par = (h, w), red = (c), reads = [[h // 2, w // 2, c]])

    A kernel of rows reads what it walks along at places that are computed once for many neighbours, so a row
    may lie anywhere: an enlarged image, one cut into windows, or patches side by side are neither written nor
    read then. The map has one operand, whose elements take no more bytes than those it makes of them, or it
    joins pieces of one array that lie regularly. What are neighbours in its result are neighbours in the
    operand by whole sectors of memory: rows that lie across the operand are moved by a kernel of their own,
    which touches each sector once. Whatever reads the result must belong to a row of a reduction; for a
    product it would be stored anyway. Training steps keep moved arrays: their backward pass reads them too.
    """
    if func.updates or func.get(LOSS) is not None:
        return func
    read_by = readers(func.body)
    moved: dict[Value, Op] = {}
    ops: list[Op] = []
    for op in func.body.ops:
        new = with_bodies(op, moved) if op.name in _READERS else op
        if is_view(op) and op.operands[0] in moved:
            moved[op.result] = new
        elif (move := _move(op)) is not None and _is_for_rows(op.result, read_by):
            moved[op.result] = move
        ops.append(new)
    block = func.body.with_ops(tuple(ops))
    return func.with_body(block.with_ops(live_ops(block))) if moved else func


def _move(op: Op) -> Op | None:
    """A cheap map that reads one value at other places, by whole sectors; None for other ops."""
    if op.name != "tensor.map" or len(op.results) != 1 or op.result.tensor.nbytes <= SMALL_BYTES:
        return None
    op = _joined(op) or op
    if len(op.operands) != 1 or recompute_cost(op) > MAX_COST or is_view(op) or identity_read(op, 0):
        return None
    if fills(op) != (None,) or op.body is None or any(o.name == "scalar.index" for o in op.body.ops):
        return None
    wider = itemsize(op.operands[0].tensor.dtype) > itemsize(op.result.tensor.dtype)
    return op if not wider and keeps_neighbours(op, 0) else None


def keeps_neighbours(op: Op, operand: int) -> bool:
    """Return whether neighbours along the innermost dimension of an op are neighbours in an operand, by whole
    sectors of memory.
    """
    source = op.operands[operand].tensor
    inner = [d for d, n in domain(op).items() if n > 1][-1]
    run = run_along(row_major_offset(reads(op)[operand], source.shape), inner, ranges_of(op))
    return run * itemsize(source.dtype) % SECTOR_BYTES == 0


def _joined(op: Op) -> Op | None:
    """A concatenation of pieces of one array as a copy of that array; None for other maps, and where the
    places of the pieces follow no rule.
    """
    found = selected_pieces(op)
    if found is None or len(set(op.operands)) != 1:
        return None
    axis, starts = found
    dim, extent = list(dims(op, "par").items())[axis]
    size = extent // len(starts)
    if starts != tuple(range(0, extent, size)):
        return None
    within = {**ranges_of(op), dim: (0, size - 1)}
    source = op.operands[0].tensor
    pieces = [
        [simplify(substitute(e, {dim: Sym(dim) + start}), within) for e in at]
        for start, at in zip(starts, reads(op), strict=True)
    ]
    at: list[Expr] = []
    for n, (first, *others) in zip(source.shape, zip(*pieces, strict=True), strict=True):
        steps = [0, *(simplify(e - first, within) for e in others)]
        spans = [interval(e, within) for e in (first, *others)]
        if not all(isinstance(k, int) for k in steps) or any(low < 0 or high >= n for low, high in spans):
            return None
        place = rule_of(np.array(steps), Sym(dim) // size)
        if place is None:
            return None
        at.append(simplify(substitute(first, {dim: Sym(dim) % size}) + place, ranges_of(op)))
    b = Builder(op.loc)
    copied(b, op.operands[0], dims(op, "par"), at)
    return replace(b.ops[-1], results=op.results)


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
