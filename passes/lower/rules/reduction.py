"""Reductions over axes as folds; the position of an extreme is a fold for it and one over its places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.operands import highest, lowest, zero
from tilewright.ir.graph_ops.reduction import MAX_POSITIONS, count, moment_dtype, reduced_shape
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import (
    accumulated,
    added,
    broadcast_read,
    converted,
    dim_names,
    lowering,
    quotient,
    reduced,
    result_type,
)
from tilewright.passes.lower.scalars import Body, Scalar, Scalars


def axes_of_op(op: Op) -> tuple[int, ...]:
    """The reduced axes, in increasing order."""
    return tuple(sorted(a % max(1, op.operands[0].tensor.rank) for a in op.integers("axis")))


def folded(
    b: Builder,
    x: Sequence[Value],
    axes: Sequence[int],
    keepdims: bool,
    reads: Sequence[Sequence[Expr]],
    dtype: str,
    body: Body,
    init: float | int | bool,
) -> Value:
    """Fold of `body` over `axes` of the first operand; they stay with extent 1 if `keepdims`.

    Reads are over dimensions i0, i1, ... of the first operand.
    """
    shape = x[0].tensor.shape
    names = dim_names(len(shape))
    red = {n: shape[d] for d, n in enumerate(names) if d in axes} or {"once": 1}
    # a kept axis of extent 1 is a dimension of its own, which nothing reads
    every = [f"one{d}" if d in axes else n for d, n in enumerate(names) if keepdims or d not in axes]
    result = TensorType(dtype, reduced_shape(shape, axes, keepdims))
    par = dict(zip(every, result.shape, strict=True))
    return reduced(b, "tensor.reduce", x, result, par, red, reads, body, init=init)


def _folded_op(
    b: Builder,
    op: Op,
    x: Sequence[Value],
    reads: Sequence[Sequence[Expr]],
    dtype: str,
    body: Body,
    init: float | int | bool,
) -> Value:
    return folded(b, x, axes_of_op(op), bool(op["keepdims"]), reads, dtype, body, init)


def _whole(x: Value) -> tuple[Expr, ...]:
    return tuple(map(Sym, dim_names(x.tensor.rank)))


def _step(scalar: str) -> Body:
    """One step of a fold in the accumulator's dtype."""

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return i.value(f"scalar.{scalar}", i.cast(p[0], p[1].type.dtype), p[1])

    return body


#: graph op -> scalar op for numbers, scalar op for bool, neutral element of a dtype
_FOLDS: dict[str, tuple[str, str, Callable[[str], float | int | bool]]] = {
    "sum": ("add", "or", zero),
    "prod": ("mul", "and", lambda dtype: True if dtype == "bool" else 1),
    "max": ("max", "or", lowest),
    "min": ("min", "and", highest),
    "any": ("or", "or", zero),
    "all": ("and", "and", highest),
}


def _fold(name: str, b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    t = result_type(op)
    if not axes_of_op(op):
        return [x[0]]
    number, truth, neutral = _FOLDS[name]
    acc = accumulated(t).dtype if name in ("sum", "prod") else t.dtype
    body = _step(truth if t.dtype == "bool" else number)
    return [converted(b, _folded_op(b, op, x, [_whole(x[0])], acc, body, neutral(acc)), t)]


for _name in _FOLDS:
    lowering(f"graph.{_name}")(partial(_fold, _name))


@lowering("graph.mean")
def mean(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The sum over its number of elements."""
    t = result_type(op)
    if not axes_of_op(op):
        return [x[0]]
    acc = moment_dtype(t.dtype)
    total = _folded_op(b, op, x, [_whole(x[0])], acc, added, zero(acc))
    return [quotient(b, total, count(x[0].tensor, op.attributes), t)]


@lowering("graph.variance")
def variance(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The sum of squared distances to the mean over their number."""
    t, shape = result_type(op), x[0].tensor.shape
    acc = moment_dtype(t.dtype)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        centred = i.cast(p[0], acc) - i.cast(p[1], acc)
        return centred * centred + p[2]

    reads = [_whole(x[0]), broadcast_read(x[1].tensor.shape, dim_names(len(shape)), shape)]
    total = _folded_op(b, op, x, reads, acc, body, zero(acc))
    return [quotient(b, total, count(x[0].tensor, op.attributes) - bool(op["unbiased"]), t)]


@lowering("graph.argmax", "graph.argmin")
def position(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The first place of the extreme, or its last."""
    largest, keepdims, last = op.name == "graph.argmax", bool(op["keepdims"]), bool(op["select_last_index"])
    return [extreme_place(b, x[0], axes_of_op(op), keepdims, largest=largest, last=last)]


def extreme_place(
    b: Builder, x: Value, axes: Sequence[int], keepdims: bool, *, largest: bool, last: bool = False
) -> Value:
    """The row-major place (i32) over `axes` of an extreme, as which a nan counts.

    One fold finds the extreme, a second one the first or last of the places that hold it.
    """
    t = x.tensor
    number, truth, neutral = _FOLDS["max" if largest else "min"]
    best = _step(truth if t.dtype == "bool" else number)
    extreme = folded(b, [x], axes, keepdims, [_whole(x)], t.dtype, best, neutral(t.dtype))
    names = dim_names(t.rank)
    place: Expr = 0
    for d in axes:
        place = place * t.shape[d] + Sym(names[d])
    nowhere = -1 if last else MAX_POSITIONS

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        here = p[0].equals(p[1])
        if t.dtype in FLOATS:
            here = here | p[0].apply("isnan")
        candidate = here.select(i.index(place), nowhere)
        return i.value("scalar.max" if last else "scalar.min", candidate, p[2])

    at = [0 if d in axes else Sym(n) for d, n in enumerate(names) if keepdims or d not in axes]
    return folded(b, [x, extreme], axes, keepdims, [_whole(x), at], "i32", body, nowhere)
