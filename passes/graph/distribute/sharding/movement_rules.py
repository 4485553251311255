"""Rows of ops that move elements: joins, cuts, padding, reshapes, transposes, repeats."""

from __future__ import annotations

from math import prod

from tilewright.ir.nodes import Attr, Op
from tilewright.passes.graph.distribute.distribution import (
    Need,
    Sliced,
    along,
    replaced,
    slice_rule,
)


@slice_rule("concatenate")
def joined_rows(op: Op, axis: int, start: int, end: int) -> Sliced:
    """The same rows of every part; along the axis of joining, what of each part lies within them."""
    if axis != op.integer("axis") % op.result.tensor.rank:
        return Sliced(tuple(Need(axis, start, end) for _ in op.operands))
    needs, before = [], 0
    for v in op.operands:
        extent = v.tensor.shape[axis]
        low, high = (min(max(at - before, 0), extent) for at in (start, end))
        needs.append(Need(axis, low, high))
        before += extent
    return Sliced(tuple(needs), balanced=True)


@slice_rule("stack")
def stacked_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """The same rows of every part."""
    at = op.integer("axis") % op.result.tensor.rank
    if axis == at:
        return None
    return Sliced(tuple(Need(axis - (axis > at), start, end) for _ in op.operands))


@slice_rule("split")
def cut_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Rows along every axis but that of cutting."""
    if axis == op.integer("axis") % op.operands[0].tensor.rank:
        return None
    return Sliced((Need(axis, start, end),))


@slice_rule("pad")
def padded_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Each rank pads what lies beyond its own edge; other modes than constant only along other axes."""
    before, after = op.integers("pad_before"), op.integers("pad_after")
    value = tuple(None for _ in op.operands[1:])
    if before[axis] == after[axis] == 0:
        return Sliced((Need(axis, start, end), *value))
    extent = op.operands[0].tensor.shape[axis]
    low, high = start - before[axis], end - before[axis]
    first, last = (min(max(at, 0), extent) for at in (low, high))
    if op["pad_mode"] != "constant" or first == last:
        return None
    attrs: dict[str, Attr] = {
        "pad_before": replaced(before, axis, max(0, -low)),
        "pad_after": replaced(after, axis, max(0, high - extent)),
    }
    return Sliced((Need(axis, first, last), *value), attrs, balanced=True)


@slice_rule("transpose")
def transposed_axes(op: Op, axis: int, start: int, end: int) -> Sliced:
    """Rows move with their axis."""
    return Sliced((Need(op.integers("axes")[axis], start, end),))


@slice_rule("reshape", "expand_dims", "squeeze", "batch_flatten")
def regrouped_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Rows that are whole rows of an axis of x with as many elements before it."""
    x, out = op.operands[0].tensor, op.result.tensor
    if not x.size or out.shape[axis] == 1:
        return None
    outer = prod(out.shape[:axis])
    found = [d for d in range(x.rank) if x.shape[d] > 1 and prod(x.shape[:d]) == outer]
    if not found:
        return None
    inner, out_inner = prod(x.shape[found[0] + 1 :]), prod(out.shape[axis + 1 :])
    low, high = start * out_inner, end * out_inner
    if low % inner or high % inner:
        return None
    attrs: dict[str, Attr] = {}
    if op.name == "graph.reshape":
        attrs["newshape"] = replaced(out.shape, axis, end - start)
    if op.name == "graph.squeeze" and op["axis"] is None:
        attrs["axis"] = tuple(d for d, n in enumerate(x.shape) if n == 1)
    align = max(1, inner // out_inner)
    return Sliced((Need(found[0], low // inner, high // inner),), attrs, align=align)


@slice_rule("broadcast_to")
def broadcast_rows(op: Op, axis: int, start: int, end: int) -> Sliced:
    """The same rows of x where it has them."""
    x, out = op.operands[0].tensor, op.result.tensor
    at = along(x.rank, out.rank, axis)
    attrs: dict[str, Attr] = {"shape": replaced(out.shape, axis, end - start)}
    if at is None or (x.shape[at] == 1 and out.shape[axis] != 1):
        return Sliced((None,), attrs)
    return Sliced((Need(at, start, end),), attrs)


@slice_rule("strided_slice")
def slice_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """The rows of x between the first and the last one wanted."""
    begin, size, strides = (op.integers(k) for k in ("begin", "size", "strides"))
    if strides[axis] < 1:
        return None
    first = begin[axis] + start * strides[axis]
    last = begin[axis] + (end - 1) * strides[axis] + 1
    attrs: dict[str, Attr] = {
        "begin": replaced(begin, axis, 0),
        "size": replaced(size, axis, end - start),
    }
    whole = size[axis] == op.operands[0].tensor.shape[axis]
    return Sliced((Need(axis, first, last),), attrs, balanced=not whole)


@slice_rule("halo_exchange", "all_gather", "reduce_scatter", "reverse", "repeat")
def other_axis_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Rows along every axis but the op's own; of communication, among ranks that have the same rows."""
    if axis == op.integer("axis") % op.result.tensor.rank:
        return None
    return Sliced((Need(axis, start, end),))


@slice_rule("all_reduce")
def added_rows(op: Op, axis: int, start: int, end: int) -> Sliced:
    """Among ranks that have the same rows."""
    return Sliced((Need(axis, start, end),))


@slice_rule("tile")
def tiled_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Rows along axes that are not repeated."""
    at = along(op.operands[0].tensor.rank, op.result.tensor.rank, axis)
    if at is None or op.integers("reps")[axis] != 1:
        return None
    return Sliced((Need(at, start, end),))
