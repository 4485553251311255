"""Batch, layer, group and instance norm, and normalisation by length: moments of folds, then one map."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.normalisation import channel_groups
from tilewright.passes.lower.lowering import (
    accumulated,
    added,
    dim_names,
    elementwise,
    lowering,
    quotient,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.shaping import reshaped
from tilewright.passes.lower.scalars import Body, Scalar, Scalars


def _kept(rank: int, axes: Sequence[int]) -> tuple[Sym, ...]:
    """The dimensions of a domain of `rank` that a fold over `axes` leaves."""
    return tuple(Sym(n) for d, n in enumerate(dim_names(rank)) if d not in axes)


def _folded(b: Builder, x: Sequence[Value], axes: Sequence[int], body: Body) -> Value:
    """Sum of body over `axes` of x[0]; further operands lack those axes. 16-bit floats sum in float32."""
    t = accumulated(x[0].tensor)
    names = dim_names(t.rank)
    par = {n: t.shape[d] for d, n in enumerate(names) if d not in axes}
    red = {n: t.shape[d] for d, n in enumerate(names) if d in axes}
    others = _kept(t.rank, axes)
    reads = [tuple(map(Sym, names)), *[others] * (len(x) - 1)]
    result = TensorType(t.dtype, tuple(par.values()))
    return reduced(b, "tensor.reduce", x, result, par, red, reads, body)


def _moments(b: Builder, x: Value, axes: Sequence[int]) -> tuple[Value, Value]:
    """Mean and biased variance over `axes`, without them."""
    count = prod(x.tensor.shape[d] for d in axes)

    def squared(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        a, mean, acc = p
        centred = i.cast(a, acc.type.dtype) - mean
        return centred.fma(centred, acc)

    total = _folded(b, [x], axes, added)
    mean = quotient(b, total, count, total.tensor)
    return mean, quotient(b, _folded(b, [x, mean], axes, squared), count, total.tensor)


def _inverse_roots(b: Builder, op: Op, moments: tuple[Value, Value]) -> tuple[Value, Value]:
    """Mean, and 1 / sqrt(variance + epsilon) in the type of sums in place of the variance.

    Elements are multiplied by it: a root and a division for every one took twice the time that its traffic
    takes on an H200, and two thirds of a norm of few rows.
    """
    mean, variance = moments

    t = accumulated(variance.tensor)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return 1.0 / (i.cast(p[0], t.dtype) + op.number("epsilon")).apply("sqrt")

    return mean, elementwise(b, [variance], t, body)


def _standardised(
    b: Builder,
    op: Op,
    x: Sequence[Value],
    moments: Sequence[Value],
    at: Sequence[Expr],
) -> Value:
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta; mean and inverse root are read at `at`."""
    t = result_type(op)
    acc = accumulated(t).dtype
    names = dim_names(t.rank)
    axis = (Sym(names[op.integer("axis") % t.rank]),)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        a, gamma, beta, mean, inverse = (i.cast(v, acc) for v in p)
        a = (a - mean) * inverse
        a = a * gamma if op["scale"] else a
        return i.cast(a + beta if op["center"] else a, t.dtype)

    reads = [tuple(map(Sym, names)), axis, axis, tuple(at), tuple(at)]
    return elementwise(b, [*x, *moments], t, body, reads)


@lowering("graph.layer_norm", "graph.instance_norm")
def layer_norm(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Moments along the axis (layer), or over all axes but the samples and the axis (instance)."""
    rank = x[0].tensor.rank
    axis = op.integer("axis") % rank
    axes = [axis] if op.name == "graph.layer_norm" else [d for d in range(1, rank) if d != axis]
    moments = _inverse_roots(b, op, _moments(b, x[0], axes))
    return [_standardised(b, op, x, moments, _kept(rank, axes))]


@lowering("graph.group_norm")
def group_norm(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Moments per sample and group of channels, from a view with the channels split into groups."""
    t = x[0].tensor
    axis = op.integer("axis") % t.rank
    groups = op.integer("num_groups")
    view = reshaped(b, x[0], TensorType(t.dtype, channel_groups(t, axis, groups)))
    axes = [d for d in range(1, t.rank + 1) if d != axis]
    names = dim_names(t.rank)
    group = Sym(names[axis]) // max(1, t.shape[axis] // groups)
    moments = _inverse_roots(b, op, _moments(b, view, axes))
    return [_standardised(b, op, x, moments, (Sym(names[0]), group))]


@lowering("graph.batch_norm")
def batch_norm(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """By moments of channels that are known."""
    *normed, mean, variance = x
    rank = x[0].tensor.rank
    axis = Sym(dim_names(rank)[op.integer("axis") % rank])
    return [_standardised(b, op, normed, _inverse_roots(b, op, (mean, variance)), (axis,))]


@lowering("graph.batch_norm_training")
def batch_norm_training(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Moments over all axes but the channels, which are results too."""
    rank = x[0].tensor.rank
    axes = [d for d in range(rank) if d != op.integer("axis") % rank]
    moments = _moments(b, x[0], axes)
    return [_standardised(b, op, x, _inverse_roots(b, op, moments), _kept(rank, axes)), *moments]


@lowering("graph.l2_normalize")
def l2_normalize(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x / sqrt(max(sum of squares, eps))."""
    t = result_type(op)
    acc = accumulated(t).dtype
    axes = [d % t.rank for d in op.integers("axis")] or list(range(t.rank))

    def square(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        a = i.cast(p[0], acc)
        return a.fma(a, p[1])

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        length = p[1].max(op.number("eps")).apply("sqrt")
        return i.cast(i.cast(p[0], acc) / length, t.dtype)

    names = dim_names(t.rank)
    reads = [tuple(map(Sym, names)), _kept(t.rank, axes)]
    squares = _folded(b, x, axes, square)
    return [elementwise(b, [x[0], squares], t, body, reads)]
