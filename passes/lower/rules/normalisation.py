"""Local response normalisation, softmax and log-softmax."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.passes.lower.lowering import (
    accumulated,
    added,
    dim_names,
    elementwise,
    lowering,
    mapped,
    reduced,
    result_type,
)
from tilewright.passes.lower.scalars import Scalar, Scalars


@lowering("graph.lrn")
def lrn(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x over a power of the sum of squares of its neighbours along one axis."""
    attrs = op.attributes
    t = result_type(op)
    acc = accumulated(t)
    names = dim_names(t.rank)
    axis, size = attrs["axis"] % t.rank, attrs["size"]
    par = dict(zip(names, t.shape, strict=True))
    near: list[Expr] = [Sym(n) for n in names]
    near[axis] = near[axis] + Sym("s") - size // 2

    def square(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        a = i.cast(p[0], acc.dtype)
        return a.fma(a, p[1])

    sums = reduced(b, "tensor.window", x, acc, par, {"s": size}, [tuple(near)], square, fill=(0.0,))

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        bias, scale, power = (
            i.const(v, acc.dtype) for v in (attrs["bias"], attrs["alpha"] / size, attrs["beta"])
        )
        base = p[1].fma(scale, bias)
        quotient = i.cast(p[0], acc.dtype) / base.apply("pow", power)
        return i.cast(quotient, t.dtype)

    whole = tuple(map(Sym, names))
    return [elementwise(b, [x[0], sums], t, body, [whole, whole])]


@lowering("graph.softmax", "graph.log_softmax")
def softmax(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """exp(x - max) over its sum along one axis, or the logarithm of it."""
    t = result_type(op)
    names = dim_names(t.rank)
    axis = op.integer("axis") % t.rank
    par = dict(zip(names, t.shape, strict=True))
    rows = {d: n for d, n in par.items() if d != names[axis]}
    column = {names[axis]: t.shape[axis]}
    whole, row = tuple(map(Sym, names)), tuple(map(Sym, rows))
    acc = accumulated(t)
    row_type = TensorType(acc.dtype, tuple(rows.values()))

    def largest(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return i.cast(p[0], acc.dtype).max(p[1])

    def shifted(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return i.cast(p[0], acc.dtype) - p[1]

    peak = reduced(b, "tensor.reduce", x, row_type, rows, column, [whole], largest, init=float("-inf"))
    if op.name == "graph.softmax":
        powers = mapped(b, [x[0], peak], acc, par, [whole, row], lambda i, p: shifted(i, p).apply("exp"))
        sums = reduced(b, "tensor.reduce", [powers], row_type, rows, column, [whole], added)
        # A division for every element takes longer than the exponential; sums are at least 1.
        inverse = elementwise(b, [sums], row_type, lambda i, p: 1.0 / p[0])
        return [
            elementwise(b, [powers, inverse], t, lambda i, p: i.cast(p[0] * p[1], t.dtype), [whole, row])
        ]  # fmt: skip
    centred = mapped(b, [x[0], peak], acc, par, [whole, row], shifted)
    sums = reduced(
        b, "tensor.reduce", [centred], row_type, rows, column, [whole],
        lambda i, p: p[0].apply("exp") + p[1],
    )  # fmt: skip

    def logarithm(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return i.cast(p[0] - p[1].apply("log"), t.dtype)

    return [elementwise(b, [centred, sums], t, logarithm, [whole, row])]
