"""Places in sequences in order, found bit by bit: a gather and a comparison per bit of the length."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Sym, TensorType, Value
from tilewright.passes.lower.lowering import dim_names, elementwise, looked_up, point_names
from tilewright.passes.lower.rules.orders import Order
from tilewright.passes.lower.scalars import Body, Scalar, Scalars


def count_before(b: Builder, ordered: Value, values: Value, *, right: bool) -> Value:
    """Count (i32) the elements of the last dimension of `ordered` that come before each value, or equal it.

    ordered: ascending, of rank 1, or one sequence per row of `values`.
    """
    t = TensorType("i32", values.tensor.shape)
    length = ordered.tensor.shape[-1]
    count = _map(b, t, [], lambda i, p: i.const(0, "i32"))
    step = 1 << max(0, length.bit_length() - 1)
    while step and length:
        count = _advanced(b, ordered, values, count, step, right)
        step //= 2
    return count


def _advanced(b: Builder, ordered: Value, values: Value, count: Value, step: int, right: bool) -> Value:
    """`count + step` where so many elements come before the value, else `count`."""
    length, order = ordered.tensor.shape[-1], Order(0, ascending=True)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        more = p[0] + step
        exists = more <= length
        before = order.precedes(i, p[1], p[2], i.const(right, "bool"))
        return (exists & before).select(more, p[0])

    return _map(b, count.tensor, [count, _element(b, ordered, count, step - 1), values], body)


def _element(b: Builder, ordered: Value, place: Value, after: int) -> Value:
    """Elements `after` places behind `place`; the last one where there are none."""
    names = tuple(map(Sym, point_names(place.tensor.rank)))
    par = dict(zip(point_names(place.tensor.rank), place.tensor.shape, strict=True))
    at = (*names[: ordered.tensor.rank - 1], Sym("i0") + after)
    return looked_up(b, ordered, [place], par, [names], at)


def _map(b: Builder, t: TensorType, operands: Sequence[Value], body: Body) -> Value:
    names = dim_names(t.rank)
    reads = [tuple(map(Sym, names))] * len(operands)
    return elementwise(b, operands, t, body, reads)
