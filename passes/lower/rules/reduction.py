"""Reductions over axes as folds; the position of an extreme is a fold for it and one over its places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.expr import binary
from tilewright.ir.graph_ops.operands import highest, lowest, zero
from tilewright.ir.graph_ops.reduction import MAX_POSITIONS, count, moment_dtype
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import (
    Body,
    accumulated,
    broadcast_read,
    converted,
    dim_names,
    elementwise,
    lowering,
    reduced,
    result_type,
)


def axes_of_op(op: Op) -> tuple[int, ...]:
    """The reduced axes, in increasing order."""
    axes: Sequence[int] = op["axis"]  # type: ignore[assignment]
    return tuple(sorted(a % max(1, op.operands[0].tensor.rank) for a in axes))


def folded(
    b: Builder,
    op: Op,
    x: Sequence[Value],
    reads: Sequence[Sequence[Expr]],
    dtype: str,
    body: Body,
    init: float | int | bool,
) -> Value:
    """Fold of `body` over the axes of the op, in the shape of its result.

    Reads are over dimensions i0, i1, ... of the first operand.
    """
    axes, shape, result = axes_of_op(op), x[0].tensor.shape, result_type(op)
    names = dim_names(len(shape))
    red = {n: shape[d] for d, n in enumerate(names) if d in axes} or {"once": 1}
    # a kept axis of extent 1 is a dimension of its own: its name says that nothing reads it
    every = [f"one{d}" if d in axes else n for d, n in enumerate(names) if op["keepdims"] or d not in axes]
    par = dict(zip(every, result.shape, strict=True))
    return reduced(b, "tensor.reduce", x, TensorType(dtype, result.shape), par, red, reads, body, init=init)


def _whole(x: Value) -> tuple[Expr, ...]:
    return tuple(map(Sym, dim_names(x.tensor.rank)))


def _step(scalar: str) -> Body:
    """One step of a fold in the accumulator's dtype."""

    def body(i: Builder, p: Sequence[Value]) -> Value:
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
    held = accumulated(t).dtype if name in ("sum", "prod") else t.dtype
    body = _step(truth if t.dtype == "bool" else number)
    return [converted(b, folded(b, op, x, [_whole(x[0])], held, body, neutral(held)), t)]


for _name in _FOLDS:
    lowering(f"graph.{_name}")(partial(_fold, _name))


def _over(b: Builder, total: Value, divisor: int, t: TensorType) -> Value:
    """`total / divisor` as type `t`; integers round towards zero."""
    held = total.tensor.dtype
    division = "scalar.div" if held in FLOATS else "scalar.truncdiv"

    def body(i: Builder, p: Sequence[Value]) -> Value:
        return i.cast(i.value(division, p[0], i.const(divisor, held)), t.dtype)

    return elementwise(b, [total], t, body)


@lowering("graph.mean")
def mean(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The sum over its number of elements."""
    t = result_type(op)
    if not axes_of_op(op):
        return [x[0]]
    held = moment_dtype(t.dtype)
    total = folded(b, op, x, [_whole(x[0])], held, _step("add"), zero(held))
    return [_over(b, total, count(x[0].tensor, dict(op.attrs)), t)]


@lowering("graph.variance")
def variance(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The sum of squared distances to the mean over their number."""
    t, shape = result_type(op), x[0].tensor.shape
    held = moment_dtype(t.dtype)

    def body(i: Builder, p: Sequence[Value]) -> Value:
        centred = i.value("scalar.sub", i.cast(p[0], held), i.cast(p[1], held))
        return i.value("scalar.add", i.value("scalar.mul", centred, centred), p[2])

    reads = [_whole(x[0]), broadcast_read(x[1].tensor.shape, dim_names(len(shape)), shape)]
    total = folded(b, op, x, reads, held, body, zero(held))
    return [_over(b, total, count(x[0].tensor, dict(op.attrs)) - bool(op["unbiased"]), t)]


@lowering("graph.argmax", "graph.argmin")
def position(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The extreme by one fold, then the first or last place that holds it by a second."""
    t = x[0].tensor
    number, truth, neutral = _FOLDS["max" if op.name == "graph.argmax" else "min"]
    best = _step(truth if t.dtype == "bool" else number)
    extreme = folded(b, op, x, [_whole(x[0])], t.dtype, best, neutral(t.dtype))
    axes, names = axes_of_op(op), dim_names(t.rank)
    place: Expr = 0
    for d in axes:
        place = binary("+", binary("*", place, t.shape[d]), Sym(names[d]))
    last = bool(op["select_last_index"])
    nowhere = -1 if last else MAX_POSITIONS

    def body(i: Builder, p: Sequence[Value]) -> Value:
        here = i.value("scalar.eq", p[0], p[1])
        if t.dtype in FLOATS:
            here = i.value("scalar.or", here, i.value("scalar.isnan", p[0]))
        found = i.value("scalar.select", here, i.index(place), i.const(nowhere, "i32"))
        return i.value("scalar.max" if last else "scalar.min", found, p[2])

    at = [0 if d in axes else Sym(n) for d, n in enumerate(names) if op["keepdims"] or d not in axes]
    return [folded(b, op, [x[0], extreme], [_whole(x[0]), at], "i32", body, nowhere)]
