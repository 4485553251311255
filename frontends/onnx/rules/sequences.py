"""ONNX sequences and optionals: known tuples at import, of which nothing is left in the graph."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rules
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value


def _sequence(node: Node, index: int = 0) -> tuple[Value, ...]:
    value = node.inputs[index] if index < node.count else None
    if not isinstance(value, tuple):
        raise InputError(f"expected input {index} to be a sequence, got a tensor or nothing")
    return value


def _place(emit: FoldingEmitter, node: Node, index: int, count: int) -> int:
    """A position operand, counted from the front."""
    (at,) = emit.integers(node.tensor(index), "the position")
    if not -count <= at < count:
        raise InputError(f"expected a position in a sequence of {count}, got {at}")
    return at % count


def _construct(emit: FoldingEmitter, node: Node) -> Result:
    return (node.tensors(),)


def _empty(emit: FoldingEmitter, node: Node) -> Result:
    node.drop("dtype")
    return ((),)


def _at(emit: FoldingEmitter, node: Node) -> Result:
    values = _sequence(node)
    return values[_place(emit, node, 1, len(values))]


def _insert(emit: FoldingEmitter, node: Node) -> Result:
    values = _sequence(node)
    at = _place(emit, node, 2, len(values) + 1) if node.has(2) else len(values)
    return ((*values[:at], node.tensor(1), *values[at:]),)


def _erase(emit: FoldingEmitter, node: Node) -> Result:
    values = _sequence(node)
    at = _place(emit, node, 1, len(values)) if node.has(1) else len(values) - 1
    return ((*values[:at], *values[at + 1 :]),)


def _length(emit: FoldingEmitter, node: Node) -> Result:
    return emit.constant(np.array(len(_sequence(node)), np.int64))


def _concat(emit: FoldingEmitter, node: Node) -> Result:
    values = _sequence(node)
    if not values:
        raise InputError("expected a sequence with elements")
    new = node.flag("new_axis", False)
    axis = node.axis(values[0].tensor.rank + new)
    return emit.value("stack", *values, axis=axis) if new else emit.join(values, axis)


def _split(emit: FoldingEmitter, node: Node) -> Result:
    x = node.tensor(0)
    axis, keep = node.axis(x.tensor.rank, 0), node.flag("keepdims", True)
    extent = x.tensor.shape[axis]
    if node.has(1):
        lengths = emit.static(node.tensor(1), "split")
        sizes = [int(n) for n in lengths] if lengths.ndim else []
        each = int(lengths) if lengths.ndim == 0 else 0
        if lengths.ndim == 0 and each < 1:
            raise InputError(f"expected parts of at least one entry, got {each}")
        sizes = sizes or [min(each, extent - at) for at in range(0, extent, each or 1)]
        keep = True
    else:
        sizes = [1] * extent
    if sum(sizes) != extent or min(sizes, default=0) < 0:
        raise InputError(f"expected parts of {extent} entries together, got {sizes}")
    parts, at = [], 0
    for size in sizes:
        part = emit.cut(x, axis, at, size)
        shape = part.tensor.shape
        parts.append(part if keep else emit.reshape(part, shape[:axis] + shape[axis + 1 :]))
        at += size
    return (tuple(parts),)


def _optional(emit: FoldingEmitter, node: Node) -> Result:
    node.drop("type")
    return (node.inputs[0] if node.count else None,)


def _has_element(emit: FoldingEmitter, node: Node) -> Result:
    return emit.constant(np.array(node.has(0)))


def _get_element(emit: FoldingEmitter, node: Node) -> Result:
    if not node.has(0):
        raise InputError("expected an optional with an element, got an empty one")
    return (node.inputs[0],)


RULES: Rules = {
    "ConcatFromSequence": _concat,
    "Optional": _optional,
    "OptionalGetElement": _get_element,
    "OptionalHasElement": _has_element,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
