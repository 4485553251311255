"""Sorts, the first k, and places in sorted sequences: folds that count, merges for long axes."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import converted, dim_names, lowering, mapped, reduced, result_type
from tilewright.passes.lower.rules.binary_search import count_before
from tilewright.passes.lower.rules.orders import CHUNK, Order, chunk_order, gathered, merged, padded
from tilewright.passes.lower.rules.reduction import extreme_place
from tilewright.passes.lower.rules.shaping import moved
from tilewright.passes.lower.scalars import Scalar, Scalars

#: the longest sequence of which every element is compared with a value
COUNTED = 64


def first_places(b: Builder, x: Value, order: Order, k: int) -> Value:
    """Places (i32) along the axis of the first k elements in order."""
    n = x.tensor.shape[order.axis]
    if k == 0:
        t = order.resized(x.tensor, 0, "i32")
        return mapped(b, [], t, order.par(t), [], lambda i, p: i.const(0, "i32"))
    if k == 1 and (x.tensor.dtype not in FLOATS or not order.ascending):
        return extreme_place(b, x, [order.axis], keepdims=True, largest=not order.ascending)
    if n <= CHUNK:
        return chunk_order(b, x, order, n, k)
    if 2 * k <= CHUNK:
        return _selected(b, x, order, k)
    return _sorted(b, x, order, k)[1]


def _selected(b: Builder, x: Value, order: Order, k: int) -> Value:
    """The first k of every chunk, then the first k of those: equal elements stay in the order of places."""
    n = x.tensor.shape[order.axis]
    filled = padded(b, x, order, -(-n // CHUNK) * CHUNK)
    places = chunk_order(b, filled, order, CHUNK, k)
    chosen = first_places(b, gathered(b, filled, places, order.axis), order, k)
    return gathered(b, places, chosen, order.axis)


def _sorted(b: Builder, x: Value, order: Order, k: int) -> tuple[Value, Value]:
    """The first k elements of a long axis, and their places: sorted chunks, merged."""
    size = CHUNK
    while size < x.tensor.shape[order.axis]:
        size *= 2
    filled = padded(b, x, order, size)
    places = chunk_order(b, filled, order, CHUNK, CHUNK)
    keys, places = merged(b, gathered(b, filled, places, order.axis), places, order, CHUNK)
    read = order.at(x.tensor.rank, Sym(dim_names(x.tensor.rank)[order.axis]))
    values = moved(b, keys, order.resized(x.tensor, k), read)
    return values, moved(b, places, order.resized(x.tensor, k, "i32"), read)


def _order(op: Op, x: Value) -> Order:
    return Order(op.integer("axis") % x.tensor.rank, bool(op["is_ascend"]))


@lowering("graph.sort")
def sort(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The elements at the places in order."""
    order, n = _order(op, x[0]), x[0].tensor.shape[op.integer("axis")]
    if n > CHUNK:
        return [_sorted(b, x[0], order, n)[0]]
    return [gathered(b, x[0], first_places(b, x[0], order, n), order.axis)]


@lowering("graph.argsort")
def argsort(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The places in order."""
    order = _order(op, x[0])
    places = first_places(b, x[0], order, x[0].tensor.shape[order.axis])
    return [converted(b, places, result_type(op))]


@lowering("graph.topk")
def topk(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The first k places, and the elements there."""
    order, k = _order(op, x[0]), op.integer("k")
    places = first_places(b, x[0], order, k)
    return [gathered(b, x[0], places, order.axis), converted(b, places, result_type(op, 1))]


@lowering("graph.searchsorted")
def searchsorted(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Counts the elements of the sequence that come before each value; a long one is searched by halves."""
    ordered = x[0].tensor
    t = result_type(op)
    if ordered.shape[-1] > COUNTED:
        return [converted(b, count_before(b, *x, right=bool(op["right"])), t)]
    names = dim_names(t.rank)
    row: list[Expr] = [Sym(n) for n in names[:-1]] if ordered.rank > 1 else []
    order, right = Order(0, ascending=True), bool(op["right"])

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        before = order.precedes(i, p[0], p[1], i.const(right, "bool"))
        return i.cast(before, "i32") + p[2]

    reads = [(*row, Sym("j")), tuple(map(Sym, names))]
    par, red = dict(zip(names, t.shape, strict=True)), {"j": ordered.shape[-1]}
    counts = TensorType("i32", t.shape)
    return [converted(b, reduced(b, "tensor.reduce", x, counts, par, red, reads, body, init=0), t)]
