"""Scaled dot-product attention in the forms torch dispatches to, by any number of batch dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
import torch
from tvm import relax

from tilewright.frontends.torch.corrections.attention_forms import POSITIONS
from tilewright.frontends.torch.corrections.nodes import Correction, TorchCall, tensor_of
from tilewright.ir.errors import UnsupportedError

_op = relax.op


def _attention(call: TorchCall) -> Any:
    """softmax(q k^T scale + mask) v; scores are held in float32 at least. Fused forms give it as field 0."""
    name = str(call.name)
    at_mask, at_dropout, at_causal = POSITIONS[name]
    q, k, v = call.args[:3]
    if call.kwargs.get("enable_gqa", False):
        k, v = (_repeated(call, q, item) for item in (k, v))
    else:
        k, v = call.env[k], call.env[v]
    depth = tensor_of(q).shape[-1]
    scale = call.kwargs.get("scale")
    factor = float(1 / sqrt(depth) if scale is None else scale)
    wide_dtype = torch.promote_types(tensor_of(q).dtype, torch.float32)
    wide = call.dtype_name(wide_dtype)
    rank = len(tensor_of(q).shape)
    turned = call.emit(_op.permute_dims(k, [*range(rank - 2), rank - 1, rank - 2]))
    scores = call.emit(_op.matmul(call.env[q], turned, out_dtype=wide))
    scores = call.emit(_op.multiply(scores, relax.const(factor, wide)))
    mask = call.kwargs.get("attn_mask") if at_mask is None else call.argument(at_mask, "attn_mask")
    if mask is not None:
        scores = _with_mask(call, scores, mask, wide_dtype)
    if call.argument(at_causal, "is_causal", False):
        lengths = tensor_of(q).shape[-2], tensor_of(call.args[1]).shape[-2]
        seen = relax.const(np.tril(np.ones(lengths, np.bool_)))
        scores = call.emit(_op.where(seen, scores, relax.const(-float("inf"), wide)))
    weights = call.emit(_op.nn.softmax(scores, -1))
    narrow = call.dtype_name(tensor_of(q).dtype)
    if narrow != wide:
        weights = call.emit(_op.astype(weights, narrow))
    weights = dropped(call, weights, call.argument(at_dropout, "dropout_p", 0.0))
    out = call.emit(_op.matmul(weights, v))
    if mask is not None:
        out = call.emit(_op.where(_any_seen(call, mask), out, relax.const(0.0, narrow)))
    if name == "scaled_dot_product_attention.default":
        return out
    return _only_first(call, out)


def dropped(call: TorchCall, x: Any, rate: float) -> Any:
    """x with dropout, which does nothing before the network is trained."""
    return call.emit(relax.TupleGetItem(call.emit(_op.nn.dropout(x, float(rate))), 0)) if rate else x


def _dropout(call: TorchCall) -> Any:
    return dropped(call, call.env[call.args[0]], call.args[1])


def _with_mask(call: TorchCall, scores: Any, mask: Any, wide_dtype: torch.dtype) -> Any:
    """Truths say which keys are seen, numbers are added."""
    if tensor_of(mask).dtype == torch.bool:
        unseen = relax.const(-float("inf"), call.dtype_name(wide_dtype))
        return call.emit(_op.where(call.env[mask], scores, unseen))
    return call.emit(_op.add(scores, call.as_type(mask, wide_dtype)))


def _any_seen(call: TorchCall, mask: Any) -> Any:
    """Return whether a query sees any key, by the mask alone: torch gives zeros for those that see none."""
    if tensor_of(mask).dtype == torch.bool:
        counts = call.emit(_op.astype(call.env[mask], "int32"))
        return call.emit(_op.greater(call.emit(_op.max(counts, -1, True)), relax.const(0, "int32")))
    lowest = relax.const(-float("inf"), call.dtype_name(tensor_of(mask).dtype))
    return call.emit(_op.greater(call.emit(_op.max(call.env[mask], -1, True)), lowest))


def _repeated(call: TorchCall, q: Any, item: Any) -> Any:
    """Keys or values of a group of heads, once per head of the group."""
    repeats = tensor_of(q).shape[-3] // tensor_of(item).shape[-3]
    axis = len(tensor_of(item).shape) - 3
    return call.emit(_op.repeat(call.env[item], int(repeats), axis))


def _only_first(call: TorchCall, out: Any) -> Any:
    """A tuple of which field 0 alone is computed; raises UnsupportedError where another one is used."""
    used = {user.args[1] for user in call.users if getattr(user.target, "__name__", "") == "getitem"}
    if used - {0}:
        raise UnsupportedError(f"expected field 0 of {call.name} to be used, got {sorted(used)}")
    return (out,)


def _pool_with_indices(call: TorchCall) -> Any:
    """The largest elements; where they were is not computed."""
    pooled = call.by_tvm()
    return _only_first(call, call.emit(relax.TupleGetItem(pooled, 0)))


ATTENTION: Mapping[str, Correction] = {
    **dict.fromkeys(POSITIONS, _attention),
    "dropout.default": _dropout,
    "max_pool2d_with_indices.default": _pool_with_indices,
    "max_pool3d_with_indices.default": _pool_with_indices,
}
