"""ONNX operators that pick, place and order elements."""

from __future__ import annotations

import numpy as np

from tilewright.frontends.importing.call import Call
from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.importing.movement import coordinates_first
from tilewright.frontends.importing.rules import axis, direct
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rule, Rules
from tilewright.ir.errors import InputError, UnsupportedError

_REDUCTIONS = {"none": "update", "add": "add", "mul": "mul", "min": "min", "max": "max"}


def _gather_nd(emit: FoldingEmitter, node: Node) -> Result:
    batch = node.integer("batch_dims", 0)
    indices = coordinates_first(emit, node.tensor(1))
    return emit.value("gather_nd", node.tensor(0), indices, batch_dims=batch)


def _reduction(node: Call, name: str) -> str:
    return _REDUCTIONS[node.choice(name, tuple(_REDUCTIONS), "none")]


def _scatter_nd(emit: FoldingEmitter, node: Node) -> Result:
    x, indices, updates = node.tensors(3)
    mode = _reduction(node, "reduction")
    return emit.value("scatter_nd", x, coordinates_first(emit, indices), updates, mode=mode)


def _one_hot(emit: FoldingEmitter, node: Node) -> Result:
    """Indices from -depth to depth - 1; a row is all off for any other."""
    indices, (depth,) = node.tensor(0), emit.integers(node.tensor(1), "the depth")
    axis = node.axis(indices.tensor.rank + 1, -1)
    indices = emit.cast(indices, "i64")
    off, on = (emit.reshape(emit.cut(node.tensor(2), 0, k, 1), ()) for k in (0, 1))
    shifted = emit.op("add", indices, depth)
    places = emit.value("where", emit.op("less", indices, 0), shifted, indices)
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
    outputs = (values, first.astype(np.int64), inverse.astype(np.int64), counts.astype(np.int64))
    return tuple(emit.constant(v) for v in outputs)


def _reverse_sequence(emit: FoldingEmitter, node: Node) -> Result:
    """The first `lens[b]` entries of sequence b come in reverse order."""
    x, lens = node.tensor(0), node.tensor(1)
    batch, time = node.integer("batch_axis", 1), node.integer("time_axis", 0)
    if {batch, time} != {0, 1} or x.tensor.rank < 2:
        raise InputError(f"expected batch and time to be axes 0 and 1 of {x.type}, got {batch} and {time}")
    return emit.value("reverse_sequence", x, lens, seq_axis=time, batch_axis=batch)


def _non_max_suppression(emit: FoldingEmitter, node: Node) -> Result:
    raise UnsupportedError("how many boxes are selected depends on data; this version needs static shapes")


_SCATTER = direct("scatter_elements", 3, axis=axis(0), reduction=_reduction)
RULES: Rules = {
    "Compress": _compress,
    "CumProd": _scan("cumprod"),
    "CumSum": _scan("cumsum"),
    "Gather": direct("take", 2, axis=axis(0), mode="wrap"),
    "GatherElements": direct("gather", 2, axis=axis(0)),
    "GatherND": _gather_nd,
    "NonMaxSuppression": _non_max_suppression,
    "NonZero": _non_zero,
    "OneHot": _one_hot,
    "ReverseSequence": _reverse_sequence,
    "Scatter": _SCATTER,
    "ScatterElements": _SCATTER,
    "ScatterND": _scatter_nd,
    "TopK": _topk,
    "Unique": _unique,
}
