"""One message in place of several of a kind: what is sent is joined, and what comes is taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod

from tilewright.ir.builder import Builder
from tilewright.ir.graph_ops.communication import ALL_GATHER, REDUCE_SCATTER
from tilewright.ir.nodes import Op, Value
from tilewright.passes.rewriting.values import replace_in_op


def joins(op: Op) -> bool:
    """Whether a message may share one with others: each member has a part of what it scatters or gathers."""
    return op.name not in (REDUCE_SCATTER, ALL_GATHER) or all(op.integers("extents"))


def joined_message(messages: Sequence[Op], new: dict[Value, Value]) -> list[Op]:
    """The ops of one message for several of the same op, members and dtype.

    `new`: what stands for values; it learns what stands for the results.
    """
    first = replace_in_op(messages[0], new)
    if len(messages) == 1:
        return [first]
    b = Builder(first.loc)
    operands = [replace_in_op(op, new).operands[0] for op in messages]
    if first.name == REDUCE_SCATTER:
        results = _scattered(b, messages, operands)
    elif first.name == ALL_GATHER:
        results = _gathered(b, messages, operands)
    else:
        (total,) = b.emit(first.name, [_row(b, operands)], dict(first.attrs))
        results = _apart(b, total, [v.tensor.shape for v in operands])
    new.update((op.result, v) for op, v in zip(messages, results, strict=True))
    return b.ops


def _scattered(b: Builder, messages: Sequence[Op], operands: Sequence[Value]) -> list[Value]:
    """Rows of all tensors for the first member, then those for the next ones."""
    flat = [_flat(b, _axis_first(b, v, op.integer("axis"))) for op, v in zip(messages, operands, strict=True)]
    counts = [_counts(op, v.tensor.size) for op, v in zip(messages, operands, strict=True)]
    ranks = range(len(counts[0]))
    parts = [_part(b, v, sum(own[:r]), own[r]) for r in ranks for v, own in zip(flat, counts, strict=True)]
    extents = tuple(sum(own[r] for own in counts) for r in ranks)
    attrs = {**dict(messages[0].attrs), "axis": 0, "extents": extents}
    (mine,) = b.emit(REDUCE_SCATTER, [b.value("graph.concatenate", *parts, axis=0)], attrs)
    shapes = [_first(op.result.tensor.shape, op.integer("axis")) for op in messages]
    rows = _apart(b, mine, shapes)
    return [_axis_back(b, v, op.integer("axis")) for op, v in zip(messages, rows, strict=True)]


def _gathered(b: Builder, messages: Sequence[Op], operands: Sequence[Value]) -> list[Value]:
    """The pieces of all tensors of one member, then those of the next ones."""
    pieces = [_axis_first(b, v, op.integer("axis")) for op, v in zip(messages, operands, strict=True)]
    counts = [_counts(op, op.result.tensor.size) for op in messages]
    ranks = range(len(counts[0]))
    extents = tuple(sum(own[r] for own in counts) for r in ranks)
    attrs = {**dict(messages[0].attrs), "axis": 0, "extents": extents}
    (row,) = b.emit(ALL_GATHER, [_row(b, pieces)], attrs)
    begins = [0, *accumulate(extents)]
    out = []
    for i, op in enumerate(messages):
        before = [begins[r] + sum(own[r] for own in counts[:i]) for r in ranks]
        parts = [_part(b, row, before[r], counts[i][r]) for r in ranks]
        whole = b.value("graph.concatenate", *parts, axis=0)
        axis = op.integer("axis")
        shaped = b.value("graph.reshape", whole, newshape=_first(op.result.tensor.shape, axis))
        out.append(_axis_back(b, shaped, axis))
    return out


def _counts(op: Op, size: int) -> list[int]:
    """Elements of each member's part of a tensor of `size` elements."""
    extents = op.integers("extents")
    return [n * (size // sum(extents)) for n in extents]


def _row(b: Builder, values: Sequence[Value]) -> Value:
    return b.value("graph.concatenate", *(_flat(b, v) for v in values), axis=0)


def _flat(b: Builder, value: Value) -> Value:
    return b.value("graph.reshape", value, newshape=(value.tensor.size,))


def _part(b: Builder, row: Value, begin: int, size: int) -> Value:
    return b.value("graph.strided_slice", row, begin=(begin,), size=(size,), strides=(1,))


def _apart(b: Builder, row: Value, shapes: Sequence[tuple[int, ...]]) -> list[Value]:
    """Tensors of these shapes, which follow one another in a row."""
    out, begin = [], 0
    for shape in shapes:
        part = _part(b, row, begin, prod(shape))
        out.append(b.value("graph.reshape", part, newshape=shape))
        begin += prod(shape)
    return out


def _first(shape: Sequence[int], axis: int) -> tuple[int, ...]:
    """The shape with this dimension in front."""
    return (shape[axis], *shape[:axis], *shape[axis + 1 :])


def _axis_first(b: Builder, value: Value, axis: int) -> Value:
    if axis == 0:
        return value
    axes = _first(range(value.tensor.rank), axis)
    return b.value("graph.transpose", value, axes=axes)


def _axis_back(b: Builder, value: Value, axis: int) -> Value:
    if axis == 0:
        return value
    return b.value(
        "graph.transpose", value, axes=(*range(1, axis + 1), 0, *range(axis + 1, value.tensor.rank))
    )
