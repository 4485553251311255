"""Losses, built from elementwise ops and sums; 16-bit floats are computed in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.ir.graph_ops.operands import alike, require, require_float, require_integer
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype


def _sum(emit: Emitter, x: Value, axis: Sequence[int]) -> Value:
    return emit.value("sum", x, axis=tuple(axis), keepdims=False)


def _cross_entropy(logits: bool) -> Rule:
    def rule(emit: Emitter, call: Call) -> Result:
        """-sum(targets * log(predictions)) / samples; with logits, the predictions are logarithms already."""
        x, y = call.tensors(2)
        t, u = alike([x.type, y.type])
        require_float(t)
        require(t.rank == 2 and t.shape == u.shape, f"expected two matrices alike, got {t} and {u}")
        x, y = emit.widened(x), emit.widened(y)
        logarithm = x if logits else emit.value("log", x)
        total = emit.value("negative", _sum(emit, emit.value("multiply", logarithm, y), (0, 1)))
        return emit.cast(emit.op("divide", total, t.shape[0]), t.dtype)

    return rule


def _nll_loss(emit: Emitter, call: Call) -> Result:
    """-prediction * weight of each target's class, summed over classes of which at most one counts.

    Targets outside the classes, and those equal to `ignore_index`, count as nothing.
    """
    predictions, targets, weights = call.tensors(3)
    reduction = call.choice("reduction", ("mean", "sum", "none"), "mean")
    ignored = call.integer("ignore_index", -100)
    t, w = alike([predictions.type, weights.type])
    u = targets.tensor
    require_float(t)
    require_integer(u)
    axis = min(1, t.rank - 1)
    fits = t.rank > 0 and t.shape[:axis] + t.shape[axis + 1 :] == u.shape and w.shape == (t.shape[axis],)
    require(fits, f"expected predictions [N, C, ...], targets [N, ...], weights [C], got {t}, {u}, {w}")
    # narrow targets cannot hold the number of every class
    index = "i32" if u.dtype in ("i8", "u8", "i16", "u16", "i32") else "i64"
    numbers = np.arange(t.shape[axis], dtype=storage_dtype(index))
    classes = emit.constant(numbers.reshape([-1 if d == axis else 1 for d in range(t.rank)]))
    target = emit.value("expand_dims", emit.cast(targets, index), axis=axis, num_newaxis=1)
    chosen = emit.value("equal", target, classes)
    if 0 <= ignored < t.shape[axis]:
        chosen = emit.value("logical_and", chosen, emit.op("not_equal", classes, ignored))
    weight = emit.along(emit.widened(weights), axis, t.rank)
    lost = emit.value("multiply", emit.value("negative", emit.widened(predictions)), weight)
    zero = emit.full(0, lost.tensor.dtype)
    lost = emit.value("where", chosen, lost, zero)
    if reduction == "none":
        return emit.cast(_sum(emit, lost, (axis,)), t.dtype)
    total = _sum(emit, lost, range(t.rank))
    if reduction == "mean":
        counted = emit.value("where", chosen, weight, zero)
        total = emit.value("divide", total, _sum(emit, counted, range(t.rank)))
    return emit.cast(total, t.dtype)


RULES: Mapping[str, Rule] = {
    "nn.cross_entropy": _cross_entropy(logits=False),
    "nn.cross_entropy_with_logits": _cross_entropy(logits=True),
    "nn.nll_loss": _nll_loss,
}
