"""ONNX operators that pick, place and order elements."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rule, Rules
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def _gather(emit: FoldingEmitter, node: Node) -> Result:
    x, indices = node.tensor(0), node.tensor(1)
    axis = node.axis(x.tensor.rank, 0)
    return emit.value("take", x, indices, axis=axis, mode="wrap")


def _gather_elements(emit: FoldingEmitter, node: Node) -> Result:
    x, indices = node.tensor(0), node.tensor(1)
    return emit.value("gather", x, indices, axis=node.axis(x.tensor.rank, 0))


def _coordinates_first(emit: FoldingEmitter, indices: Value) -> Value:
    """ONNX keeps the coordinates of a place last, the graph op keeps them first."""
    rank = indices.tensor.rank
    if rank == 0:
        raise InputError(f"expected indices of rank 1 or more, got {indices.type}")
    return emit.transpose(indices, (rank - 1, *range(rank - 1)))


def _gather_nd(emit: FoldingEmitter, node: Node) -> Result:
    batch = node.integer("batch_dims", 0)
    indices = _coordinates_first(emit, node.tensor(1))
    return emit.value("gather_nd", node.tensor(0), indices, batch_dims=batch)


def _reduction(node: Node) -> str:
    name = node.text("reduction", "none")
    if name not in _REDUCTIONS:
        raise InputError(f"expected a reduction among {', '.join(_REDUCTIONS)}, got '{name}'")
    return _REDUCTIONS[name]


def _scatter_elements(emit: FoldingEmitter, node: Node) -> Result:
    x, indices, updates = (node.tensor(i) for i in range(3))
    axis = node.axis(x.tensor.rank, 0)
    return emit.value("scatter_elements", x, indices, updates, axis=axis, reduction=_reduction(node))


def _scatter_nd(emit: FoldingEmitter, node: Node) -> Result:
    x, indices, updates = (node.tensor(i) for i in range(3))
    mode = _reduction(node)
    return emit.value("scatter_nd", x, _coordinates_first(emit, indices), updates, mode=mode)


def _one_hot(emit: FoldingEmitter, node: Node) -> Result:
    """Indices from -depth to depth - 1; a row is all off for any other."""
    indices, (depth,) = node.tensor(0), emit.integers(node.tensor(1), "the depth")
    axis = node.axis(indices.tensor.rank + 1, -1)
    indices = emit.cast(indices, "i64")
    off, on = (emit.reshape(emit.cut(node.tensor(2), 0, k, 1), ()) for k in (0, 1))
    negative = emit.value("less", indices, emit.full(0, "i64"))
    shifted = emit.value("add", indices, emit.full(depth, "i64"))
    places = emit.value("where", negative, shifted, indices)
    return emit.value("one_hot", places, on, off, depth=depth, axis=axis, dtype=on.tensor.dtype)


def _topk(emit: FoldingEmitter, node: Node) -> Result:
    x = node.tensor(0)
    axis = node.axis(x.tensor.rank, -1)
    k = node.integer("k") if node.opset < 10 else emit.integers(node.tensor(1), "k")[0]
    largest = node.flag("largest", True)
    node.drop("sorted")
    return emit.values("topk", (x,), k=k, axis=axis, is_ascend=not largest, dtype="i64")


def _scan(name: str) -> Rule:
    def rule(emit: FoldingEmitter, node: Node) -> Result:
        x = node.tensor(0)
        (axis,) = emit.integers(node.tensor(1), "the axis")
        axis %= max(1, x.tensor.rank)
        exclusive, backwards = node.flag("exclusive", False), node.flag("reverse", False)
        if backwards:
            x = emit.value("reverse", x, axis=axis)
        out = emit.value(name, x, axis=axis, exclusive=exclusive)
        return emit.value("reverse", out, axis=axis) if backwards else out

    return rule


def _compress(emit: FoldingEmitter, node: Node) -> Result:
    """Entries where a condition holds; how many they are depends on the condition."""
    x, condition = node.tensor(0), emit.static(node.tensor(1), "the condition")
    axis = node.integer("axis", None)
    if axis is None:
        x, axis = emit.reshape(x, (x.tensor.size,)), 0
    places = np.flatnonzero(condition)
    return emit.value("take", x, emit.constant(places), axis=axis % x.tensor.rank, mode="fast")


def _non_zero(emit: FoldingEmitter, node: Node) -> Result:
    x = emit.static(node.tensor(0), "the operand, which decides on the shape of the result,")
    return emit.constant(np.stack(np.nonzero(x)) if x.ndim else np.zeros((0, int(x != 0)), np.int64))


def _unique(emit: FoldingEmitter, node: Node) -> Result:
    x = emit.static(node.tensor(0), "the operand, which decides on the shape of the result,")
    axis, ordered = node.integer("axis", None), node.flag("sorted", True)
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis
    )
    inverse = inverse.reshape(-1)
    if not ordered:
        order = np.argsort(first)
        values = np.take(values, order, axis=axis or 0)
        first, inverse, counts = first[order], np.argsort(order)[inverse], counts[order]
    found = (values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64))
    return tuple(emit.constant(v) for v in found)


def _reverse_sequence(emit: FoldingEmitter, node: Node) -> Result:
    """The first `lens[b]` entries of sequence b come in reverse order."""
    x, lens = node.tensor(0), emit.cast(node.tensor(1), "i64")
    batch, time = node.integer("batch_axis", 1), node.integer("time_axis", 0)
    shape = x.tensor.shape
    if {batch, time} != {0, 1} or len(shape) < 2:
        raise InputError(f"expected batch and time to be axes 0 and 1 of {x.type}, got {batch} and {time}")
    steps = emit.constant(np.arange(shape[time]).reshape([-1 if d == time else 1 for d in (0, 1)]))
    counts = emit.reshape(lens, [shape[batch] if d == batch else 1 for d in (0, 1)])
    last = emit.value("subtract", counts, emit.full(1, "i64"))
    turned = emit.value("subtract", last, steps)
    places = emit.value("where", emit.value("less", steps, counts), turned, steps)
    spread = emit.reshape(places, (*shape[:2], *(1,) * (len(shape) - 2)))
    return emit.value("gather", x, emit.broadcast(spread, shape), axis=time)


def _non_max_suppression(emit: FoldingEmitter, node: Node) -> Result:
    raise UnsupportedError("how many boxes are selected depends on data; this version needs static shapes")


RULES: Rules = {
    "Compress": _compress,
    "CumProd": _scan("cumprod"),
    "CumSum": _scan("cumsum"),
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _scatter_elements,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "TopK": _topk,
    "Unique": _unique,
}
