"""Pass form-attention: softmax(q k^T) v becomes one op whose gradient needs no matrix of weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

import numpy as np

from tilewright.ir.graph_ops.attention import BIAS, KEPT, SEEN
from tilewright.ir.nodes import Attr, Level, Module, Op, Value
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module

#: products of matrices whose dimensions before the last two are batches
_PRODUCTS = frozenset({"graph.matmul", "graph.batch_matmul"})


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def form_attention(module: Module, ctx: PassContext) -> Module:
    """Write the product of a softmax of scores with values as `graph.attention`.

    rewrite:  %s = graph.matmul(%q, %k, transpose_b = true); %t = graph.add(graph.multiply(%s, 0.125), %mask)
              %o = graph.matmul(graph.softmax(%t, axis = -1), %v)
        -->   %o, %lse = graph.attention(%q, %k, %v, %mask, scale = 0.125, others = ["bias"])

    Scores may be multiplied or divided by numbers, have something added and be chosen by `where`; weights may
    be dropped (`where` with zeros) once softmax is taken; dimensions before the matrices may be reshaped in
    between; heads that are repeated for several queries are read where they are. What other ops read of all
    that stays as it is. Differentiation follows: the gradient computes weights again instead of reading them.
    """
    return rewrite_module(module, [Pattern("attention", _PRODUCTS, _formed)], level="graph")


@dataclass
class _Scores:
    """What has been found on the way from the weights up to the product of queries and keys."""

    lead: tuple[int, ...]
    scale: float = 1.0
    hidden: float = -inf
    kept_scale: float = 1.0
    others: dict[str, Value] = field(default_factory=dict)


class _Walk:
    """One walk up from weights, through values that nothing else reads."""

    def __init__(self, rewriter: Rewriter) -> None:
        self.r = rewriter

    def maker(self, v: Value) -> Op | None:
        """The op that makes a value which has no other reader."""
        return self.r.producer(v) if self.r.uses(v) == 1 else None

    def number(self, v: Value) -> float | None:
        """The number that a value without dimensions, or of one element repeated, is."""
        op = self.r.producer(v)
        array = self.r.constant(v)
        if array is not None:
            return float(array.reshape(-1)[0]) if array.size == 1 and array.dtype != np.bool_ else None
        if op is not None and op.name in ("graph.cast", "graph.broadcast_to", "graph.reshape"):
            return self.number(op.operands[0])
        if op is not None and op.name == "graph.divide":
            parts = [self.number(x) for x in op.operands]
            return None if parts[0] is None or not parts[1] else parts[0] / parts[1]
        return None

    def unshaped(self, v: Value) -> Value:
        """Return the value that this one is a reshape of, where that leaves its matrices as they are."""
        op = self.maker(v)
        while op is not None and op.name == "graph.reshape" and _same_matrices(op.operands[0], v):
            v = op.operands[0]
            op = self.maker(v)
        return v

    def weights(self, v: Value, lead: tuple[int, ...]) -> tuple[Value, _Scores] | None:
        """The scores that weights are the softmax of, and how these are dropped."""
        found = _Scores(lead)
        v = self.unshaped(v)
        op = self.maker(v)
        if op is not None and op.name == "graph.where":
            kept, value, nothing = op.operands
            if self.number(nothing) != 0.0 or kept.tensor.dtype != "bool":
                return None
            product = self.maker(value)
            if value.type != v.type or product is None:
                return None
            if product.name == "graph.multiply":
                factors = [(a, self.number(b)) for a, b in _orders(product) if a.type == v.type]
                known = [(a, n) for a, n in factors if n is not None]
                if not known:
                    return None
                value, found.kept_scale = known[0]
            found.others[KEPT] = kept
            found.lead = v.tensor.shape[:-2]
            v = self.unshaped(value)
            if v.tensor.shape[:-2] != found.lead and kept.tensor.rank > 2:
                return None
            op = self.maker(v)
        if op is None or op.name != "graph.softmax":
            return None
        if op.integer("axis") % v.tensor.rank != v.tensor.rank - 1:
            return None
        found.lead = v.tensor.shape[:-2]
        return op.operands[0], found

    def product(self, v: Value, found: _Scores) -> Op | None:
        """The product of queries and keys that scores are made of; `found` gets what is done to it."""
        while (op := self.maker(v)) is not None:
            if op.name in _PRODUCTS:
                return op
            if op.name == "graph.reshape" and _same_matrices(op.operands[0], v):
                v = op.operands[0]
                continue
            step = self.step(op, v, found)
            if step is None:
                return None
            v = step
        return None

    def step(self, op: Op, v: Value, found: _Scores) -> Value | None:
        """The operand of a map of scores that is made from the product; None where it is another map."""
        local = v.tensor.shape[:-2] == found.lead
        if op.name in ("graph.multiply", "graph.divide"):
            for one, other in _orders(op)[: 2 if op.name == "graph.multiply" else 1]:
                factor = self.number(other)
                if factor is None or factor <= 0 or one.type != v.type:
                    continue
                factor = factor if op.name == "graph.multiply" else 1 / factor
                found.scale *= factor
                return one
        if op.name == "graph.add" and BIAS not in found.others and found.scale == 1.0:
            for one, other in _orders(op):
                if one.type == v.type and self.towards(one) and (local or other.tensor.rank <= 2):
                    found.others[BIAS] = other
                    return one
        if op.name == "graph.where" and not {SEEN, BIAS} & set(found.others) and found.scale == 1.0:
            seen, one, other = op.operands
            hidden = self.number(other)
            if hidden is not None and one.type == v.type and (local or seen.tensor.rank <= 2):
                found.others[SEEN], found.hidden = seen, hidden
                return one
        return None

    def towards(self, v: Value) -> bool:
        """Return whether a value is made of a product of matrices by maps, as far as this pass follows."""
        op = self.maker(v)
        if op is None:
            return False
        if op.name in _PRODUCTS:
            return True
        steps = ("graph.reshape", "graph.multiply", "graph.divide", "graph.add", "graph.where")
        return op.name in steps and any(self.towards(x) for x in op.operands)


def _formed(op: Op, r: Rewriter) -> Sequence[Value] | None:
    weights, v = op.operands
    if op["transpose_a"] or op["out_dtype"] is not None or weights.tensor.rank != v.tensor.rank:
        return None
    walk = _Walk(r)
    start = walk.weights(weights, op.result.tensor.shape[:-2])
    if start is None:
        return None
    scores, found = start
    product = walk.product(scores, found)
    if product is None or product["transpose_a"] or product["out_dtype"] is not None:
        return None
    q, k = product.operands
    if q.tensor.rank != k.tensor.rank or not scores.tensor.shape[-1]:
        return None
    lead = found.lead
    if not product["transpose_b"]:
        k = _transposed(r, k)
    if op["transpose_b"]:
        v = _transposed(r, v)
    factors = []
    for t, whole in ((q, product.result), (k, product.result), (v, op.result)):
        own = t.tensor.shape[:-2]
        if own != lead and own != whole.tensor.shape[:-2] and whole.tensor.shape[:-2] != lead:
            return None  # it broadcasts, and the dimensions that it does that along are reshaped
        if whole.tensor.shape[:-2] != lead:
            t = _reshaped(r, t, (*lead, *t.tensor.shape[-2:]))
        factors.append(t)
    q, k, v = factors
    (q, k, v), others, lead = _shared(r, (q, k, v), found.others, lead)
    names = tuple(n for n in (BIAS, SEEN, KEPT) if n in others)
    attrs: dict[str, Attr] = {
        "scale": found.scale, "hidden": found.hidden, "kept_scale": found.kept_scale, "others": names
    }  # fmt: skip
    result, _ = r.emit("graph.attention", (q, k, v, *(others[n] for n in names)), attrs)
    return [_reshaped(r, result, op.result.tensor.shape)]


def _orders(op: Op) -> list[tuple[Value, Value]]:
    a, b = op.operands
    return [(a, b), (b, a)]


def _same_matrices(a: Value, b: Value) -> bool:
    return min(a.tensor.rank, b.tensor.rank) >= 2 and a.tensor.shape[-2:] == b.tensor.shape[-2:]


def _reshaped(r: Rewriter, v: Value, shape: tuple[int, ...]) -> Value:
    return v if v.tensor.shape == shape else r.value("graph.reshape", v, newshape=shape)


def _transposed(r: Rewriter, v: Value) -> Value:
    """The value with its matrices transposed; what it is the transpose of, where it is one."""
    rank = v.tensor.rank
    axes = (*range(rank - 2), rank - 1, rank - 2)
    op = r.producer(v)
    if op is not None and op.name == "graph.transpose":
        before = op.integers("axes")
        if before:
            together = tuple(before[a] for a in axes)
            source = op.operands[0]
            same = together == tuple(range(rank))
            return source if same else r.value("graph.transpose", source, axes=together)
    return r.value("graph.transpose", v, axes=axes)


def _shared(
    r: Rewriter, factors: tuple[Value, Value, Value], others: dict[str, Value], lead: tuple[int, ...]
) -> tuple[tuple[Value, Value, Value], dict[str, Value], tuple[int, ...]]:
    """Heads of keys and values that are repeated for several heads of queries, read where they are.

    rewrite:  %r = graph.reshape(graph.broadcast_to(%k [b, h, 1, m, c], [b, h, g, m, c]), [b, h * g, m, c])
        -->   queries [b, h, g, n, c] and keys %k
    """
    q, k, v = factors
    of_keys, of_values = _before_repetition(r, k), _before_repetition(r, v)
    if of_keys is None or of_values is None or len(lead) < 1:
        return factors, others, lead
    (k_source, times), (v_source, v_times) = of_keys, of_values
    heads = lead[-1]
    if times != v_times or q.tensor.shape[:-2] != lead or heads % times:
        return factors, others, lead
    cut = (*lead[:-1], heads // times, times)
    new = {}
    for name, t in others.items():
        shape = t.tensor.shape
        if len(shape) > 2:
            middle = (1, 1) if shape[-3] == 1 else cut[-2:]
            t = _reshaped(r, t, (*shape[:-3], *middle, *shape[-2:]))
        new[name] = t
    q = _reshaped(r, q, (*cut, *q.tensor.shape[-2:]))
    one = (*cut[:-1], 1)
    k, v = (_reshaped(r, t, (*one, *t.tensor.shape[-2:])) for t in (k_source, v_source))
    return (q, k, v), new, cut


def _before_repetition(r: Rewriter, v: Value) -> tuple[Value, int] | None:
    """What a value [.., heads, m, c] repeats along its heads, several times in a row, and how often."""
    op, shape = r.producer(v), v.tensor.shape
    if op is None or len(shape) < 3:
        return None
    if op.name == "graph.repeat" and op.integer("axis") % len(shape) == len(shape) - 3:
        source = op.operands[0]
        return source, shape[-3] // source.tensor.shape[-3]
    if op.name != "graph.reshape":
        return None
    spread = op.operands[0]
    inner = r.producer(spread)
    if inner is None or inner.name != "graph.broadcast_to":
        return None
    source, wide = inner.operands[0], spread.tensor.shape
    fits = len(wide) == len(shape) + 1 and wide == (*shape[:-3], *wide[-4:-2], *shape[-2:])
    if not fits or source.tensor.shape != (*wide[:-3], 1, *wide[-2:]):
        return None
    return source, wide[-3]
