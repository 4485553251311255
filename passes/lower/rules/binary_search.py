"""Places in sequences in order, found bit by bit: a gather and a comparison per bit of the length."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Pairs, Sym, TensorType, Value
from tilewright.ir.nodes import Attr
from tilewright.passes.lower.lowering import Body, dim_names, mapped
from tilewright.passes.lower.rules.orders import Order


def count_before(b: Builder, ordered: Value, values: Value, *, right: bool) -> Value:
    """How many (i32) elements of the last dimension of `ordered` come before each value, or equal it (right).

    ordered: ascending, of rank 1, or one sequence per row of `values`.
    """
    t = TensorType("i32", values.tensor.shape)
    length = ordered.tensor.shape[-1]
    found = _map(b, t, [], lambda i, p: i.const(0, "i32"))
    step = 1 << max(0, length.bit_length() - 1)
    while step and length:
        found = _advanced(b, ordered, values, found, step, right)
        step //= 2
    return found


def _advanced(b: Builder, ordered: Value, values: Value, found: Value, step: int, right: bool) -> Value:
    """`found + step` where so many elements come before the value, else `found`."""
    length, order = ordered.tensor.shape[-1], Order(0, ascending=True)

    def body(i: Builder, p: Sequence[Value]) -> Value:
        more = i.value("scalar.add", p[0], i.const(step, "i32"))
        exists = i.value("scalar.le", more, i.const(length, "i32"))
        before = order.precedes(i, p[1], p[2], i.const(right, "bool"))
        return i.value("scalar.select", i.value("scalar.and", exists, before), more, p[0])

    return _map(b, found.tensor, [found, _element(b, ordered, found, step - 1), values], body)


def _element(b: Builder, ordered: Value, found: Value, after: int) -> Value:
    """Elements `after` places behind `found`; the last one where there are none."""
    names = [f"d{d}" for d in range(found.tensor.rank)]
    rows: list[Expr] = list(map(Sym, names[: ordered.tensor.rank - 1]))
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(zip(names, found.tensor.shape, strict=True))),
        "reads": (tuple(map(Sym, names)),),
        "at": (*rows, Sym("i0") + after),
    }
    t = TensorType(ordered.tensor.dtype, found.tensor.shape)
    (out,) = b.emit("tensor.gather", [ordered, found], attrs, types=[t])
    return out


def _map(b: Builder, t: TensorType, operands: Sequence[Value], body: Body) -> Value:
    names = dim_names(t.rank)
    reads = [tuple(map(Sym, names))] * len(operands)
    return mapped(b, operands, t, dict(zip(names, t.shape, strict=True)), reads, body)
