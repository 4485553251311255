"""Running sums and products: one scan; 16-bit floats are held in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.nodes import Attr
from tilewright.passes.lower.lowering import accumulated, converted, dim_names, lowering, result_type
from tilewright.passes.lower.scalars import Body, Scalar, Scalars, written


def scanned(
    b: Builder,
    x: Value,
    result: TensorType,
    axis: int,
    body: Body,
    init: float | int | bool,
    *,
    exclusive: bool = False,
) -> Value:
    """A tensor.scan of `x` along `axis` into `result`; body(element, accumulator)."""
    names = dim_names(result.rank)
    block = written(b, [x.tensor.dtype, result.dtype], body)
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(zip(names, result.shape, strict=True))),
        "reads": (tuple(map(Sym, names)),),
        "dim": names[axis],
        "init": init,
        "exclusive": exclusive,
    }
    (out,) = b.emit("tensor.scan", [x], attrs, types=[result], body=block)
    return out


@lowering("graph.cumsum", "graph.cumprod")
def cumulative(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """A scan that adds or multiplies; or and and for bool."""
    t = result_type(op)
    acc = accumulated(t)
    total = op.name == "graph.cumsum"
    truth = t.dtype == "bool"
    scalar = ("or" if total else "and") if truth else ("add" if total else "mul")
    start: float | int | bool = not total if truth else 0 if total else 1
    whole = acc.dtype[0] in "iu" or truth

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        element = i.cast(i.cast(p[0], t.dtype), acc.dtype)
        return i.value(f"scalar.{scalar}", element, p[1])

    init = start if whole else float(start)
    exclusive = bool(op["exclusive"])
    out = scanned(b, x[0], acc, op.integer("axis") % t.rank, body, init, exclusive=exclusive)
    return [converted(b, out, t)]
