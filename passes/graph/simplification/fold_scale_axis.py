"""Pass fold-scale-axis: a constant factor per output channel moves into the weights that precede it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.ir.types import TensorType
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module

#: ops with constant weights whose output channels a factor may move into
WEIGHTED = frozenset({"graph.conv2d", "graph.dense"})


@register_pass(Level.GRAPH, requires={"shapes-known"})
def fold_scale_axis(module: Module, ctx: PassContext) -> Module:
    """Fold a multiplication by a constant per output channel into convolution or dense weights.

    rewrite:  graph.multiply(graph.conv2d(%x, w), s)   -->   graph.conv2d(%x, w * s)

    The convolution must have no other use. A bias in between is scaled along.
    """
    patterns = [Pattern("into-weights", frozenset({"graph.multiply"}), _into_weights)]
    return rewrite_module(module, patterns, level="graph")


def _into_weights(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    for value, factor in (op.operands, op.operands[::-1]):
        array, producer = rewriter.constant(factor), rewriter.producer(value)
        if array is None or producer is None or rewriter.uses(value) != 1 or value.type != op.result.type:
            continue
        if producer.name in WEIGHTED:
            return _scaled(op, producer, array, factor, rewriter)
        if producer.name == "graph.bias_add":
            return _past_bias(op, producer, array, factor, rewriter)
    return None


def _scaled(
    op: Op, producer: Op, factor: np.ndarray, source: Value, rewriter: Rewriter
) -> Sequence[Value] | None:
    weight = producer.operands[1]
    weights = rewriter.constant(weight)
    axis = _channel_axis(producer)
    vector = _per_channel(factor, op.result.tensor, axis)
    if weights is None or vector is None or rewriter.producer(weight) is None:
        return None
    layout = str(producer.get("kernel_layout", "OI"))
    if producer.get("groups", 1) != 1 and not layout.startswith("O"):
        return None  # there the output channel is spread over two kernel dimensions
    shape = [vector.size if d == "O" else 1 for d in layout]
    array = (weights.astype(np.float64) * vector.reshape(shape)).astype(weights.dtype)
    name = f"{rewriter.producer(weight)['name']}.scaled"  # type: ignore[index]
    new = rewriter.new_constant("graph", name, array, weight.type)
    with rewriter.builder.at(producer.loc):  # the work is still the convolution's
        return rewriter.emit(
            producer.name,
            (producer.operands[0], new),
            dict(producer.attrs),
            types=[op.result.type],
            hint=op.result.hint,
        )


def _past_bias(
    op: Op, producer: Op, factor: np.ndarray, source: Value, rewriter: Rewriter
) -> Sequence[Value] | None:
    """(y + bias) * s = y * s + bias * s, where y * s can go on into weights."""
    y, bias = producer.operands
    before, values = rewriter.producer(y), rewriter.constant(bias)
    axis = producer.integer("axis") % y.tensor.rank
    vector = _per_channel(factor, op.result.tensor, axis)
    if (
        before is None
        or before.name not in WEIGHTED
        or rewriter.uses(y) != 1
        or values is None
        or vector is None
    ):
        return None
    if axis != _channel_axis(before) or rewriter.constant(before.operands[1]) is None:
        return None
    array = (values.astype(np.float64) * vector).astype(values.dtype)
    name = f"{rewriter.producer(bias)['name']}.scaled"  # type: ignore[index]
    scaled = rewriter.value("graph.multiply", y, source)
    new_bias = rewriter.new_constant("graph", name, array, bias.type)
    return [rewriter.value("graph.bias_add", scaled, new_bias, axis=producer["axis"])]


def _channel_axis(producer: Op) -> int:
    """Position of the output channel in the result."""
    layout = str(producer.get("data_layout", ""))
    return layout.index("C") if layout else producer.result.tensor.rank - 1


def _per_channel(factor: np.ndarray, t: TensorType, axis: int) -> np.ndarray | None:
    """The factor as one value per channel; None where it varies along another dimension."""
    aligned = (1,) * (t.rank - factor.ndim) + factor.shape
    if len(aligned) != t.rank or any(n != 1 for d, n in enumerate(aligned) if d != axis):
        return None
    return np.broadcast_to(factor.astype(np.float64).reshape(-1), (t.shape[axis],))
