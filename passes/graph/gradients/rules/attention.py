"""The gradient of attention: one op that computes the weights again, from the logarithms of their sums."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.ir.graph_ops.attention import BIAS, KEPT, LSE_COTANGENT, SEEN
from tilewright.passes.graph.gradients.registry import Backward, accumulated, gradient, summed_to


@gradient("graph.attention")
def attention(b: Backward) -> Sequence[Tensor | None]:
    """dq, dk and dv by `attention_backward`; a bias receives p (kept(g v^T) - sum(g result)) where it is
    seen, with weights p = exp(score - lse).
    """
    q, k, v, *others = b.x
    attrs = b.op.attributes
    names = tuple(attrs["others"])
    result, lse = b.y
    extra = b.cotangents[1]
    if extra is not None:
        attrs = {**attrs, "others": (*names, LSE_COTANGENT)}
    operands = (q, k, v, result, lse, b.g, *others, *([] if extra is None else [extra]))
    gradients: list[Tensor | None] = [None] * 3
    if any(b.needed[:3]):
        gradients = [*b.w.ops_of("attention_backward", operands, **attrs)]
    by_name = dict(zip(names, others, strict=True))
    position = 3 + names.index(BIAS) if BIAS in names else None
    to_bias = _to_bias(b, by_name) if position is not None and b.needed[position] else None
    return [*gradients, *(to_bias if n == BIAS else None for n in names)]


def _to_bias(b: Backward, others: dict[str, Tensor]) -> Tensor:
    """What comes back to the bias: to the scores, summed over dimensions along which it was broadcast."""
    q, k, v = map(accumulated, b.x[:3])
    result, lse = b.y
    g = accumulated(b.g)
    bias = others[BIAS]
    score = q.matmul(k, transpose_b=True) * b.op.number("scale") + bias.cast(q.dtype)
    if SEEN in others:
        score = others[SEEN].where(score, b.op.number("hidden"))
    power = (score - lse.reshape(*lse.shape, 1)).exp()
    back = (g * accumulated(result)).sum(-1, keepdims=True)
    if b.cotangents[1] is not None:
        back = back - b.cotangents[1].reshape(*lse.shape, 1)
    given = g.matmul(v, transpose_b=True)
    if KEPT in others:
        given = others[KEPT].where(given * b.op.number("kept_scale"), 0)
    slope = power * (given - back)
    if SEEN in others:
        slope = others[SEEN].where(slope, 0)
    return summed_to(slope, bias.shape).cast(bias.dtype)
