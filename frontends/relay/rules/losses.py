"""Relay's losses, built from elementwise ops and sums; 16-bit floats are computed in float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.operands import accumulator_dtype, alike, require, require_float, require_integer
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype

_REDUCTIONS = ("mean", "sum", "none")


def _as(emit: Emitter, x: Value, dtype: str) -> Value:
    return x if x.tensor.dtype == dtype else emit.value("cast", x, dtype=dtype)


def _scalar(emit: Emitter, value: float, dtype: str) -> Value:
    return emit.constant(np.asarray(value, storage_dtype(dtype)))


def _sum(emit: Emitter, x: Value, axis: Sequence[int]) -> Value:
    return emit.value("sum", x, axis=tuple(axis), keepdims=False)


def _cross_entropy(logits: bool) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        """-sum(targets * log(predictions)) / samples; with logits, the predictions are logarithms already."""
        x, y = emit.tensors(args, 2)
        t, u = alike([x.type, y.type])
        require_float(t)
        require(t.rank == 2 and t.shape == u.shape, f"expected two matrices alike, got {t} and {u}")
        held = accumulator_dtype(t.dtype)
        x, y = _as(emit, x, held), _as(emit, y, held)
        logarithm = x if logits else emit.value("log", x)
        total = emit.value("negative", _sum(emit, emit.value("multiply", logarithm, y), (0, 1)))
        return _as(emit, emit.value("divide", total, _scalar(emit, t.shape[0], held)), t.dtype)

    return rule


def _nll_loss(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """-prediction * weight of each target's class, summed over classes of which at most one counts.

    Targets outside the classes, and those equal to `ignore_index`, count as nothing.
    """
    predictions, targets, weights = emit.tensors(args, 3)
    reduction, ignored = attrs.text("reduction", "mean"), attrs.integer("ignore_index", -100)
    if reduction not in _REDUCTIONS:
        raise InputError(f"expected a reduction among {', '.join(_REDUCTIONS)}, got '{reduction}'")
    t, w = alike([predictions.type, weights.type])
    u = targets.tensor
    require_float(t)
    require_integer(u)
    axis = min(1, t.rank - 1)
    fits = t.rank > 0 and t.shape[:axis] + t.shape[axis + 1 :] == u.shape and w.shape == (t.shape[axis],)
    require(fits, f"expected predictions [N, C, ...], targets [N, ...], weights [C], got {t}, {u}, {w}")
    held = accumulator_dtype(t.dtype)
    zero = _scalar(emit, 0, held)
    along = tuple(n if d == axis else 1 for d, n in enumerate(t.shape))
    # narrow targets cannot hold the number of every class
    index = "i32" if u.dtype in ("i8", "u8", "i16", "u16", "i32") else "i64"
    classes = emit.constant(np.arange(t.shape[axis], dtype=storage_dtype(index)).reshape(along))
    target = emit.value("expand_dims", _as(emit, targets, index), axis=axis, num_newaxis=1)
    chosen = emit.value("equal", target, classes)
    if 0 <= ignored < t.shape[axis]:
        kept = emit.value("not_equal", classes, _scalar(emit, ignored, index))
        chosen = emit.value("logical_and", chosen, kept)
    weight = emit.value("reshape", _as(emit, weights, held), newshape=along)
    lost = emit.value("multiply", emit.value("negative", _as(emit, predictions, held)), weight)
    lost = emit.value("where", chosen, lost, zero)
    if reduction == "none":
        return _as(emit, _sum(emit, lost, (axis,)), t.dtype)
    total = _sum(emit, lost, range(t.rank))
    if reduction == "mean":
        counted = emit.value("where", chosen, weight, zero)
        total = emit.value("divide", total, _sum(emit, counted, range(t.rank)))
    return _as(emit, total, t.dtype)


RULES: Mapping[str, Rule] = {
    "nn.cross_entropy": _cross_entropy(logits=False),
    "nn.cross_entropy_with_logits": _cross_entropy(logits=True),
    "nn.nll_loss": _nll_loss,
}
