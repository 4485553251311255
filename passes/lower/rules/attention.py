"""Attention and its gradients: products, softmax along the keys, and on the way back weights made again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.attention import BIAS, KEPT, LSE_COTANGENT, SEEN, attention_shapes
from tilewright.ir.graph_ops.operands import accumulator_dtype
from tilewright.passes.lower.lowering import (
    added,
    converted,
    larger,
    lowering,
    mapped,
    multiply_add,
    reduced,
    result_type,
)
from tilewright.passes.lower.scalars import Scalar, Scalars

_Terms = Callable[[Scalars, dict[str, Scalar]], Scalar]


class _Pairs:
    """The pairs of queries `n` and keys `m` of one op, over which maps and contractions are written.

    c: channels of queries and keys; e: channels of values; b0, b1, ...: dimensions before the matrices.
    """

    def __init__(self, b: Builder, op: Op, x: Sequence[Value], others: Sequence[Value]) -> None:
        self.b, self.op = b, op
        q, k, v = (t.tensor for t in x[:3])
        self.lead, (queries, keys) = attention_shapes(q, k, v)
        self.dtype, self.acc = q.dtype, accumulator_dtype(q.dtype)
        self.batch = tuple(f"b{i}" for i in range(len(self.lead)))
        self.sizes = dict(zip(self.batch, self.lead, strict=True))
        self.sizes |= {"n": queries, "m": keys, "c": q.shape[-1], "e": v.shape[-1]}
        names = op["others"]
        assert isinstance(names, tuple)
        self.others = dict(zip(map(str, names), others, strict=True))

    def over(self, *dims: str) -> dict[str, int]:
        """Extents of dimensions, after those before the matrices."""
        return {d: self.sizes[d] for d in (*self.batch, *dims)}

    def read(self, v: Value, dims: Sequence[str]) -> tuple[Expr, ...]:
        """The index of an operand whose last dimensions broadcast to these."""
        shape = v.tensor.shape
        names = (*self.batch, *dims)[len(self.batch) + len(dims) - len(shape) :]
        return tuple(
            0 if n == 1 and self.sizes[d] != 1 else Sym(d) for d, n in zip(names, shape, strict=True)
        )

    def product(self, x: tuple[Value, str], y: tuple[Value, str], inner: str) -> Value:
        """[.., n, m]: the products of two operands, whose dimensions are given, summed over `inner`."""
        par = self.over("n", "m")
        reads = [self.read(v, dims) for v, dims in (x, y)]
        result = TensorType(self.acc, tuple(par.values()))
        red = {inner: self.sizes[inner]}
        return reduced(self.b, "tensor.contract", [x[0], y[0]], result, par, red, reads, multiply_add)

    def map(self, operands: Sequence[tuple[str, Value, str]], dims: str, dtype: str, terms: _Terms) -> Value:
        """[.., dims]: `terms` of elements of operands, each with its name and its dimensions."""
        par = self.over(*dims)
        names = [name for name, _, _ in operands]

        def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            return i.cast(terms(i, dict(zip(names, p, strict=True))), dtype)

        reads = [self.read(v, own) for _, v, own in operands]
        result = TensorType(dtype, tuple(par.values()))
        return mapped(self.b, [v for _, v, _ in operands], result, par, reads, body)

    def given(self, *names: str) -> list[tuple[str, Value, str]]:
        """Those of the further operands that there are."""
        return [(n, self.others[n], "nm") for n in names if n in self.others]

    def score(self, i: Scalars, x: dict[str, Scalar]) -> Scalar:
        """Return the score, of which softmax is taken, from the product of a query and a key."""
        out = x["product"]
        if self.op["scale"] != 1.0:
            out = out * self.op.number("scale")
        if BIAS in x:
            out = out + i.cast(x[BIAS], self.acc)
        if SEEN in x:
            out = x[SEEN].select(out, i.const(self.op.number("hidden"), self.acc))
        return out

    def kept(self, i: Scalars, value: Scalar, x: dict[str, Scalar]) -> Scalar:
        """A weight, or what comes back to it, where dropout keeps it."""
        if KEPT not in x:
            return value
        return x[KEPT].select(value * self.op.number("kept_scale"), i.const(0.0, value.dtype))

    def summed(self, x: tuple[Value, str], y: tuple[Value, str], result: TensorType, dims: str) -> Value:
        """Products of two operands summed over all but `dims`, and over what `result` does not repeat."""
        spread = [d for d, n in zip(self.batch, result.shape, strict=False) if n == 1 != self.sizes[d]]
        par = self.over(*dims) | dict.fromkeys(spread, 1)
        red = {f"r.{d}" if d in spread else d: self.sizes[d] for d in (*spread, *self.over("n", "m"))}
        red = {d: n for d, n in red.items() if d not in par}
        other = {d: Sym(f"r.{d}") for d in spread}
        reads = [
            tuple(other.get(str(e), e) if isinstance(e, Sym) else e for e in self.read(v, own))
            for v, own in (x, y)
        ]
        total = TensorType(self.acc, result.shape)
        total_of = reduced(self.b, "tensor.contract", [x[0], y[0]], total, par, red, reads, multiply_add)
        return converted(self.b, total_of, result)


@lowering("graph.attention")
def attention(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """lse = largest + log(sum of exp(score - largest)); weights = exp(score - lse); result = weights v.

    Weights follow from what is saved, as in the backward pass: so lse is a part of the forward pass.
    """
    q, k, v, *others = x
    p = _Pairs(b, op, x, others)
    product = p.product((q, "nc"), (k, "mc"), "c")
    scores = p.map([("product", product, "nm"), *p.given(BIAS, SEEN)], "nm", p.acc, p.score)
    rows, keys = p.over("n"), {"m": p.sizes["m"]}
    row_type = TensorType(p.acc, tuple(rows.values()))
    whole = [p.read(scores, "nm")]
    infinity = float("-inf")
    peak = reduced(b, "tensor.reduce", [scores], row_type, rows, keys, whole, larger, init=infinity)
    shifted = [("score", scores, "nm"), ("peak", peak, "n")]
    powers = p.map(shifted, "nm", p.acc, lambda i, s: (s["score"] - s["peak"]).apply("exp"))
    sums = reduced(b, "tensor.reduce", [powers], row_type, rows, keys, whole, added)
    totals = [("peak", peak, "n"), ("sum", sums, "n")]
    lse = p.map(totals, "n", p.acc, lambda i, s: s["peak"] + s["sum"].apply("log"))
    shares = [("score", scores, "nm"), ("lse", lse, "n"), *p.given(KEPT)]
    weights = p.map(shares, "nm", p.dtype, lambda i, s: p.kept(i, (s["score"] - s["lse"]).apply("exp"), s))
    return [p.summed((weights, "nm"), (v, "me"), result_type(op), "ne"), lse]


@lowering("graph.attention_backward")
def attention_backward(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """With weights p = exp(score - lse), g the cotangent, t = p (kept(g v^T) - sum(g result)) scale:
    dq = t k, dk = t^T q, dv = kept(p)^T g.
    """
    q, k, v, result, lse, g, *others = x
    p = _Pairs(b, op, x, others)
    rows = p.over("n")
    row_type = TensorType(p.acc, tuple(rows.values()))
    reads = [p.read(t, "ne") for t in (result, g)]
    inner = {"e": p.sizes["e"]}
    back = reduced(b, "tensor.reduce", [result, g], row_type, rows, inner, reads, multiply_add)
    if LSE_COTANGENT in p.others:
        parts = [("back", back, "n"), ("lse", p.others[LSE_COTANGENT], "n")]
        back = p.map(parts, "n", p.acc, lambda i, s: s["back"] - i.cast(s["lse"], p.acc))
    # keys come first, so that this is no common subexpression with the product of the forward pass, which
    # would have to be stored
    product = p.product((k, "mc"), (q, "nc"), "c")
    to_weights = p.product((g, "ne"), (v, "me"), "e")

    def power(i: Scalars, s: dict[str, Scalar]) -> Scalar:
        return (p.score(i, s) - s["lse"]).apply("exp")

    def slope(i: Scalars, s: dict[str, Scalar]) -> Scalar:
        out = s["power"] * (p.kept(i, s["given"], s) - s["back"])
        out = s[SEEN].select(out, i.const(0.0, p.acc)) if SEEN in s else out
        return out if op["scale"] == 1.0 else out * op.number("scale")

    powers = p.map([("product", product, "nm"), *p.given(BIAS, SEEN), ("lse", lse, "n")], "nm", p.acc, power)
    one = [("power", powers, "nm")]
    weights = p.map([*one, *p.given(KEPT)], "nm", p.dtype, lambda i, s: p.kept(i, s["power"], s))
    both = [*one, ("given", to_weights, "nm"), ("back", back, "n"), *p.given(SEEN, KEPT)]
    slopes = p.map(both, "nm", p.dtype, slope)
    return [
        p.summed((slopes, "nm"), (k, "mc"), result_type(op, 0), "nc"),
        p.summed((slopes, "nm"), (q, "nc"), result_type(op, 1), "mc"),
        p.summed((weights, "nm"), (g, "ne"), result_type(op, 2), "me"),
    ]
