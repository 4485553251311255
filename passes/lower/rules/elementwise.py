"""Elementwise ops from the graph level's tables, activations, casts, ops that do nothing at inference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.ir import Builder, Op, Sym, Value
from tilewright.ir.graph_ops.binary import BINARY, ROUNDED_DOWN, scalar_of
from tilewright.ir.graph_ops.unary import ROUNDINGS, UNARY
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import (
    accumulated,
    dim_names,
    elementwise,
    lowering,
    result_type,
)
from tilewright.passes.lower.scalars import Scalar, Scalars


def _unary(scalar: str, name: str, b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    if name in ROUNDINGS and x[0].tensor.dtype not in FLOATS:
        return [x[0]]
    return [elementwise(b, x, result_type(op), lambda i, p: i.value(f"scalar.{scalar}", p[0]))]


def _binary(name: str, b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    scalar = scalar_of(name, x[0].tensor.dtype)
    floor = name == ROUNDED_DOWN and x[0].tensor.dtype in FLOATS

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        v = i.value(f"scalar.{scalar}", p[0], p[1])
        return v.floor() if floor else v

    return [elementwise(b, x, result_type(op), body)]


for _name, (_scalar, *_) in UNARY.items():
    lowering(f"graph.{_name}")(partial(_unary, _scalar, _name))
for _name in BINARY:
    lowering(f"graph.{_name}")(partial(_binary, _name))


@lowering("graph.relu")
def relu(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """max(x, 0)."""
    t = result_type(op)
    return [elementwise(b, x, t, lambda i, p: p[0].max(0))]


@lowering("graph.leaky_relu")
def leaky_relu(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x where positive, else alpha * x."""
    t = result_type(op)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        positive = p[0] > 0
        scaled = p[0] * op.number("alpha")
        return positive.select(p[0], scaled)

    return [elementwise(b, x, t, body)]


@lowering("graph.prelu")
def prelu(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x where positive, else its channel's alpha * x."""
    t = result_type(op)
    names = dim_names(t.rank)
    reads = [tuple(map(Sym, names)), (Sym(names[op.integer("axis") % t.rank]),)]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        positive = p[0] > 0
        return positive.select(p[0], p[0] * p[1])

    return [elementwise(b, x, t, body, reads)]


@lowering("graph.clip")
def clip(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """min(max(x, a_min), a_max)."""
    t = result_type(op)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return p[0].max(op.number("a_min")).min(op.number("a_max"))

    return [elementwise(b, x, t, body)]


@lowering("graph.sigmoid")
def sigmoid(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """1 / (1 + exp(-x))."""
    return [elementwise(b, x, result_type(op), lambda i, p: p[0].apply("sigmoid"))]


@lowering("graph.softplus")
def softplus(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """(max(s, 0) + log(1 + exp(-|s|))) / beta for s = beta * x: the exponential never overflows."""
    t, acc = result_type(op), accumulated(result_type(op)).dtype
    attrs = op.attributes
    beta, threshold = attrs["beta"], attrs["threshold"]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        v = i.cast(p[0], acc)
        scaled = v * beta
        small = (-abs(scaled)).apply("exp")
        curved = (1.0 + small).apply("log")
        both = scaled.max(0.0) + curved
        smooth = both / beta
        if threshold is not None:
            above = scaled > threshold
            smooth = above.select(v, smooth)
        return i.cast(smooth, t.dtype)

    return [elementwise(b, x, t, body)]


@lowering("graph.hard_swish")
def hard_swish(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x * min(max(x + 3, 0), 6) / 6."""
    t, acc = result_type(op), accumulated(result_type(op)).dtype

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        v = i.cast(p[0], acc)
        above = (v + 3.0).max(0.0)
        gate = above.min(6.0)
        gated = v * gate / 6.0
        return i.cast(gated, t.dtype)

    return [elementwise(b, x, t, body)]


@lowering("graph.where")
def where(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """a where the condition is true (not zero), else b."""

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        kind = p[0].type.dtype
        true = p[0] if kind == "bool" else p[0].apply("ne", 0)
        return true.select(p[1], p[2])

    return [elementwise(b, x, result_type(op), body)]


@lowering("graph.cast")
def cast(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The same values in another dtype."""
    t = result_type(op)
    if x[0].tensor.dtype == t.dtype:
        return [x[0]]
    return [elementwise(b, x, t, lambda i, p: i.cast(p[0], t.dtype))]


@lowering("graph.dropout", "graph.copy", "graph.stop_gradient")
def nothing(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """At inference these pass their operand on."""
    return [x[0]]
