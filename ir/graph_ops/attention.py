"""Attention, its saved logarithms of sums, and what comes back to queries, keys and values.

The gradient computes the weights again from the logarithms of their sums instead of reading them: T. Dao,
D. Fu, S. Ermon, A. Rudra, C. Re, "FlashAttention", NeurIPS 2022, algorithm 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.ir.division import Label, Labels, broadcast_labels
from tilewright.ir.extents import Dims, broadcasts_as_before
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass
from tilewright.ir.graph_ops.operands import (
    accumulator_dtype,
    alike,
    broadcast_shapes,
    dtype_of,
    require,
    require_float,
    tensors,
    wide,
)
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import FLOATS, TensorType, Type

#: what further operands are, in the order in which they are given
BIAS, SEEN, KEPT, LSE_COTANGENT = "bias", "seen", "kept", "lse_cotangent"
_OTHERS = (BIAS, SEEN, KEPT)


def attention_shapes(q: TensorType, k: TensorType, v: TensorType) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Extents before the matrices, broadcast, and the numbers of queries and keys."""
    require(q.rank >= 2, f"expected queries of rank 2 or more, got {q}")
    require(q.rank == k.rank == v.rank, f"expected queries, keys, values of one rank, got {q}, {k} and {v}")
    good = q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2] >= 1
    require(good, f"expected queries [.., N, C], keys [.., M, C], values [.., M, E], got {q}, {k} and {v}")
    return broadcast_shapes([t.shape[:-2] for t in (q, k, v)]), (q.shape[-2], k.shape[-2])


def _check_others(others: Sequence[TensorType], names: Sequence[str], scores: tuple[int, ...]) -> None:
    require(len(others) == len(names), f"expected {len(names)} further operands ({names}), got {len(others)}")
    known = (*_OTHERS, LSE_COTANGENT)
    ordered = list(names) == [n for n in known if n in names]
    require(ordered, f"expected 'others' among {known}, each once and in this order, got {tuple(names)}")
    for name, t in zip(names, others, strict=True):
        kind = t.dtype in FLOATS if name in (BIAS, LSE_COTANGENT) else t.dtype == "bool"
        whole = scores[:-1] if name == LSE_COTANGENT else scores
        good = kind and broadcast_shapes([t.shape, whole]) == whole
        require(good, f"expected a '{name}' that broadcasts to {whole}, got {t}")


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    q, k, v = alike(types[:3])
    require_float(q)
    lead, pairs = attention_shapes(q, k, v)
    require(LSE_COTANGENT not in attrs["others"], f"expected 'others' among {_OTHERS}")
    _check_others(tensors(types[3:]), attrs["others"], (*lead, *pairs))
    out = TensorType(q.dtype, (*lead, pairs[0], v.shape[-1]))
    return [out, TensorType(accumulator_dtype(q.dtype), (*lead, pairs[0]))]


def _infer_backward(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    q, k, v, out, g = alike((*types[:4], types[5]))
    require_float(q)
    lead, pairs = attention_shapes(q, k, v)
    whole = TensorType(q.dtype, (*lead, pairs[0], v.shape[-1]))
    require(out == g == whole, f"expected a result and a cotangent of type {whole}, got {out} and {g}")
    (lse,) = tensors(types[4:5])
    rows = TensorType(accumulator_dtype(q.dtype), (*lead, pairs[0]))
    require(lse == rows, f"expected logarithms of sums of type {rows}, got {lse}")
    _check_others(tensors(types[6:]), attrs["others"], (*lead, *pairs))
    return [q, k, v]


def _scores(q: np.ndarray, k: np.ndarray, others: Mapping[str, np.ndarray], attrs: Attrs) -> np.ndarray:
    """Return the scores, of which softmax is taken."""
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * np.asarray(attrs["scale"], q.dtype)
    if BIAS in others:
        scores = scores + others[BIAS].astype(scores.dtype)
    if SEEN in others:
        scores = np.where(others[SEEN], scores, np.asarray(attrs["hidden"], scores.dtype))
    return np.asarray(scores)


def _kept(weights: np.ndarray, others: Mapping[str, np.ndarray], attrs: Attrs) -> np.ndarray:
    """Weights, or what comes back to them, where dropout keeps them."""
    if KEPT not in others:
        return weights
    return np.where(others[KEPT], weights * np.asarray(attrs["kept_scale"], weights.dtype), 0)


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    dtype = inputs[0].dtype
    q, k, v = (wide(x, dtype_of(inputs[0])) for x in inputs[:3])
    others = dict(zip(attrs["others"], inputs[3:], strict=True))
    with np.errstate(all="ignore"):
        scores = _scores(q, k, others, attrs)
        largest = scores.max(axis=-1, keepdims=True)
        powers = np.exp(scores - largest)
        total = powers.sum(axis=-1, keepdims=True)
        weights = _kept(powers / total, others, attrs)
        lse = (largest + np.log(total))[..., 0]
    # weights are rounded as products of 16 bits read them
    out = np.matmul(weights.astype(dtype).astype(v.dtype), v)
    # values of more batches than the scores repeat them
    return [out.astype(dtype, copy=False), np.array(np.broadcast_to(lse, out.shape[:-1]))]


def _evaluate_backward(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    dtype, name = inputs[0].dtype, dtype_of(inputs[0])
    q, k, v, out, lse, g = (wide(x, name) if x.dtype == dtype else x for x in inputs[:6])
    others = dict(zip(attrs["others"], inputs[6:], strict=True))
    back = (out * g).sum(axis=-1)
    if LSE_COTANGENT in others:
        back = back - others[LSE_COTANGENT]
    with np.errstate(all="ignore"):
        weights = np.exp(_scores(q, k, others, attrs) - lse[..., None])
        to_weights = _kept(np.matmul(g, np.swapaxes(v, -1, -2)), others, attrs)
        slopes = weights * (to_weights - back[..., None])
        if SEEN in others:
            slopes = np.where(others[SEEN], slopes, 0)
        slopes = (slopes * np.asarray(attrs["scale"], slopes.dtype)).astype(dtype).astype(slopes.dtype)
        weights = _kept(weights, others, attrs).astype(dtype).astype(slopes.dtype)
        parts = (
            np.matmul(slopes, k),
            np.matmul(np.swapaxes(slopes, -1, -2), q),
            np.matmul(np.swapaxes(weights, -1, -2), g),
        )
    return [_summed(x, old.shape).astype(dtype, copy=False) for x, old in zip(parts, inputs[:3], strict=True)]


def _summed(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Sums over dimensions along which an operand of this shape was broadcast."""
    spread = tuple(d for d, (n, m) in enumerate(zip(x.shape, shape, strict=True)) if n != m)
    return np.asarray(x.sum(axis=spread, keepdims=True) if spread else x)


def _pairs(op: Op) -> int:
    """Pairs of queries and keys."""
    lead, pairs = attention_shapes(*(v.tensor for v in op.operands[:3]))
    return prod((*lead, *pairs))


def _flops(op: Op) -> int:
    """2 x pairs x (channels of keys + channels of values)."""
    return 2 * _pairs(op) * (op.operands[0].tensor.shape[-1] + op.operands[2].tensor.shape[-1])


def _backward_flops(op: Op) -> int:
    """2 x pairs x (3 x channels of keys + 2 x channels of values)."""
    return 2 * _pairs(op) * (3 * op.operands[0].tensor.shape[-1] + 2 * op.operands[2].tensor.shape[-1])


def _divided(op: Op) -> Labels:
    """Dimensions before the matrices are independent where no operand broadcasts along them."""
    lead, _ = attention_shapes(*(v.tensor for v in op.operands[:3]))
    shapes = [v.tensor.shape[: len(lead)] for v in op.operands[:3]]
    own: list[Label | None] = [d if all(s[d] == n for s in shapes) else None for d, n in enumerate(lead)]
    count = 6 if op.name == "graph.attention_backward" else 3
    names = op["others"]
    assert isinstance(names, tuple)
    operands = [(*own, *(None,) * (v.tensor.rank - len(lead))) for v in op.operands[:count]]
    for name, v in zip(names, op.operands[count:], strict=True):
        last = 1 if name == LSE_COTANGENT else 2
        whole = (*lead, *(1,) * last)
        shape = (*v.tensor.shape[: max(0, v.tensor.rank - last)], *(1,) * min(last, v.tensor.rank))
        labels = broadcast_labels(shape, whole, [*own, *(None,) * last])
        operands.append(labels)
    results = [(*own, *(None,) * (r.tensor.rank - len(lead))) for r in op.results]
    return Labels(tuple(operands), tuple(results))


def _same_batches(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Dimensions before the matrices broadcast where they did."""
    return broadcasts_as_before([dims[:-2] for dims in operands[:3]], attrs)


_ATTRS = {
    "scale": AttrDef("float", 1.0, "what products of queries and keys are multiplied by"),
    "hidden": AttrDef("float", float("-inf"), "the score of a key that is not seen"),
    "kept_scale": AttrDef("float", 1.0, "what weights that dropout keeps are multiplied by"),
    "others": AttrDef("strs", (), "what further operands are: bias, seen, kept, lse_cotangent"),
}
_FACTS = Facts(
    elements=Elements.CONTRACTS,
    flops=_flops,
    precision=Precision.NARROW_MATRICES,
    exact=False,
    division=_divided,
    extents=_same_batches,
    report=ReportClass.MATRIX_PRODUCT,
    gradient=Gradient.RULE,
)
define(
    "graph.attention",
    ("q", "k", "v", "others*"),
    "softmax(scale q k^T + bias) v over the last two dimensions, and the logarithms of the sums of the "
    "exponentials, in the dtype in which sums are held. Dimensions before the matrices broadcast. Further "
    "operands, which broadcast to the scores, by the names in `others`: bias, added to scores; seen (bool), "
    "where false the score is `hidden`; kept (bool), where false the weight is 0, else times `kept_scale`.",
    results=2,
    attrs=_ATTRS,
    infer=_infer,
    evaluate=_evaluate,
    facts=_FACTS,
)
define(
    "graph.attention_backward",
    ("q", "k", "v", "result", "lse", "cotangent", "others*"),
    "The gradients of attention by queries, keys and values, summed where they broadcast. Weights are "
    "computed again, as exp(score - lse). A further operand, lse_cotangent, is what comes back to lse.",
    results=3,
    attrs=_ATTRS,
    infer=_infer_backward,
    evaluate=_evaluate_backward,
    facts=Facts(
        elements=Elements.CONTRACTS,
        flops=_backward_flops,
        precision=Precision.NARROW_MATRICES,
        exact=False,
        division=_divided,
        extents=_same_batches,
        report=ReportClass.MATRIX_PRODUCT,
        gradient=Gradient.DERIVED,
    ),
)
