"""Elementwise ops from the graph level's tables, activations, casts, ops that do nothing at inference."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tilewright.ir import Builder, Op, Sym, Value
from tilewright.ir.graph_ops.binary import BINARY, ROUNDED_DOWN, scalar_of
from tilewright.ir.graph_ops.unary import ROUNDINGS, UNARY
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import (
    accumulated,
    dim_names,
    elementwise,
    lowering,
    mapped,
    result_type,
)


def _unary(scalar: str, name: str, b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    if name in ROUNDINGS and x[0].tensor.dtype not in FLOATS:
        return [x[0]]
    return [elementwise(b, x, result_type(op), lambda i, p: i.value(f"scalar.{scalar}", p[0]))]


def _binary(name: str, b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    scalar = scalar_of(name, x[0].tensor.dtype)
    floor = name == ROUNDED_DOWN and x[0].tensor.dtype in FLOATS

    def body(i: Builder, p: Sequence[Value]) -> Value:
        v = i.value(f"scalar.{scalar}", p[0], p[1])
        return i.value("scalar.floor", v) if floor else v

    return [elementwise(b, x, result_type(op), body)]


for _name, (_scalar, *_) in UNARY.items():
    lowering(f"graph.{_name}")(partial(_unary, _scalar, _name))
for _name in BINARY:
    lowering(f"graph.{_name}")(partial(_binary, _name))


@lowering("graph.relu")
def relu(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """max(x, 0)."""
    t = result_type(op)
    return [elementwise(b, x, t, lambda i, p: i.value("scalar.max", p[0], i.const(0, t.dtype)))]


@lowering("graph.leaky_relu")
def leaky_relu(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x where positive, else alpha * x."""
    t = result_type(op)

    def body(i: Builder, p: Sequence[Value]) -> Value:
        positive = i.value("scalar.gt", p[0], i.const(0, t.dtype))
        scaled = i.value("scalar.mul", p[0], i.const(op["alpha"], t.dtype))  # type: ignore[arg-type]
        return i.value("scalar.select", positive, p[0], scaled)

    return [elementwise(b, x, t, body)]


@lowering("graph.prelu")
def prelu(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x where positive, else its channel's alpha * x."""
    t = result_type(op)
    names = dim_names(t.rank)
    reads = [tuple(map(Sym, names)), (Sym(names[op.integer("axis") % t.rank]),)]

    def body(i: Builder, p: Sequence[Value]) -> Value:
        positive = i.value("scalar.gt", p[0], i.const(0, t.dtype))
        return i.value("scalar.select", positive, p[0], i.value("scalar.mul", p[0], p[1]))

    return [mapped(b, x, t, dict(zip(names, t.shape, strict=True)), reads, body)]


@lowering("graph.clip")
def clip(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """min(max(x, a_min), a_max)."""
    t = result_type(op)

    def body(i: Builder, p: Sequence[Value]) -> Value:
        low = i.value("scalar.max", p[0], i.const(op["a_min"], t.dtype))  # type: ignore[arg-type]
        return i.value("scalar.min", low, i.const(op["a_max"], t.dtype))  # type: ignore[arg-type]

    return [elementwise(b, x, t, body)]


@lowering("graph.sigmoid")
def sigmoid(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """1 / (1 + exp(-x))."""
    return [elementwise(b, x, result_type(op), lambda i, p: i.value("scalar.sigmoid", p[0]))]


@lowering("graph.softplus")
def softplus(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """(max(s, 0) + log(1 + exp(-|s|))) / beta for s = beta * x: the exponential never overflows."""
    t, held = result_type(op), accumulated(result_type(op)).dtype
    attrs: dict[str, Any] = dict(op.attrs)
    beta, threshold = attrs["beta"], attrs["threshold"]

    def body(i: Builder, p: Sequence[Value]) -> Value:
        given = i.cast(p[0], held)
        scaled = i.value("scalar.mul", given, i.const(beta, held))
        small = i.value("scalar.exp", i.value("scalar.neg", i.value("scalar.abs", scaled)))
        curved = i.value("scalar.log", i.value("scalar.add", i.const(1.0, held), small))
        both = i.value("scalar.add", i.value("scalar.max", scaled, i.const(0.0, held)), curved)
        smooth = i.value("scalar.div", both, i.const(beta, held))
        if threshold is not None:
            above = i.value("scalar.gt", scaled, i.const(threshold, held))
            smooth = i.value("scalar.select", above, given, smooth)
        return i.cast(smooth, t.dtype)

    return [elementwise(b, x, t, body)]


@lowering("graph.hard_swish")
def hard_swish(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x * min(max(x + 3, 0), 6) / 6."""
    t, held = result_type(op), accumulated(result_type(op)).dtype

    def body(i: Builder, p: Sequence[Value]) -> Value:
        given = i.cast(p[0], held)
        above = i.value("scalar.max", i.value("scalar.add", given, i.const(3.0, held)), i.const(0.0, held))
        gate = i.value("scalar.min", above, i.const(6.0, held))
        gated = i.value("scalar.div", i.value("scalar.mul", given, gate), i.const(6.0, held))
        return i.cast(gated, t.dtype)

    return [elementwise(b, x, t, body)]


@lowering("graph.where")
def where(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """a where the condition is true (not zero), else b."""

    def body(i: Builder, p: Sequence[Value]) -> Value:
        kind = p[0].type.dtype
        true = p[0] if kind == "bool" else i.value("scalar.ne", p[0], i.const(0, kind))
        return i.value("scalar.select", true, p[1], p[2])

    return [elementwise(b, x, result_type(op), body)]


@lowering("graph.cast")
def cast(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The same values in another dtype."""
    t = result_type(op)
    if x[0].tensor.dtype == t.dtype:
        return [x[0]]
    return [elementwise(b, x, t, lambda i, p: i.cast(p[0], t.dtype))]


@lowering("graph.dropout", "graph.copy")
def nothing(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """At inference these pass their operand on."""
    return [x[0]]
