"""Relax operators of products: matmul, einsum, outer, attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relax.einsum import contracted
from tilewright.frontends.relax.static import cast, filled, is_absent, reshaped, scalar, transposed
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import FLOATS

_CAUSAL = ("TopLeft", "BottomRight")


def _matmul(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """NumPy's matmul: an operand of rank 1 is a row on the left, a column on the right."""
    a, b = emit.tensors(args, 2)
    out = attrs.dtype("out_dtype") or None
    if min(a.tensor.rank, b.tensor.rank) == 0:
        raise InputError(f"expected operands of rank 1 or more, got {a.type} and {b.type}")
    left = reshaped(emit, a, (1, *a.tensor.shape)) if a.tensor.rank == 1 else a
    right = reshaped(emit, b, (*b.tensor.shape, 1)) if b.tensor.rank == 1 else b
    product = emit.value("matmul", left, right, out_dtype=out)
    shape = list(product.tensor.shape)
    if b.tensor.rank == 1:
        shape.pop()
    if a.tensor.rank == 1:
        shape.pop(-1 if b.tensor.rank == 1 else -2)
    return reshaped(emit, product, shape)


def _outer(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    a, b = emit.tensors(args, 2)
    return emit.value(
        "multiply", reshaped(emit, a, (a.tensor.size, 1)), reshaped(emit, b, (1, b.tensor.size))
    )


def _einsum(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return contracted(emit, emit.fields(args), attrs.text("subscripts"))


def _attention(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """softmax(q k^T scale + bias) v per head; operands are [batch, sequence, heads, depth].

    Scores are held in float32 where the operands are 16 bits wide.
    """
    q, k, v = (transposed(emit, emit.tensor(args, i), (0, 2, 1, 3)) for i in range(3))
    dtype, depth = q.tensor.dtype, q.tensor.shape[-1]
    if attrs.integer("window_size", None) is not None:
        raise UnsupportedError("expected attention over the whole sequence, got a sliding window")
    scale = attrs.real("scale", 1 / sqrt(max(depth, 1)))
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    scores = emit.value("matmul", q, k, transpose_b=True, out_dtype=wide)
    scores = emit.value("multiply", scores, scalar(emit, scale, scores))
    if not is_absent(args, 3):
        scores = emit.value("add", scores, cast(emit, emit.tensor(args, 3), wide))
    causal = attrs.text("causal_mask", "")
    if causal:
        scores = _masked(emit, scores, causal)
    weights = cast(emit, emit.value("softmax", scores, axis=3), dtype)
    return transposed(emit, emit.value("matmul", weights, v), (0, 2, 1, 3))


def _masked(emit: Emitter, scores: Value, causal: str) -> Value:
    """Scores of keys that come later than the query become -inf."""
    if causal not in _CAUSAL or scores.tensor.dtype not in FLOATS:
        raise InputError(f"expected causal_mask among {', '.join(_CAUSAL)}, got '{causal}'")
    queries, keys = scores.tensor.shape[-2:]
    offset = abs(queries - keys) if causal == "BottomRight" else 0
    seen = emit.constant(np.tril(np.ones((queries, keys), np.bool_), offset))
    return emit.value("where", seen, scores, filled(emit, (), scores.tensor.dtype, -float("inf")))


RULES: Mapping[str, Rule] = {
    "matmul": _matmul,
    "outer": _outer,
    "einsum": _einsum,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
}
