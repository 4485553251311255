"""The table of lowering rules graph op -> tensor ops, and the pieces rules are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.ir import Attr, Builder, Expr, Op, Pairs, Sym, TensorType, Value, structured
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.operands import zero
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.scalars import Body, Scalar, Scalars, written

#: (builder, graph op, lowered operands) -> lowered results
Rule = Callable[[Builder, Op, Sequence[Value]], Sequence[Value]]
RULES: dict[str, Rule] = {}


def lowering(*names: str) -> Callable[[Rule], Rule]:
    """Register a lowering rule for graph ops by full name; a second rule for one op is an error."""

    def register(rule: Rule) -> Rule:
        for name in names:
            if name in RULES:
                raise InputError(
                    f"'{name}' has two lowering rules: {RULES[name].__module__} and {rule.__module__}"
                )
            RULES[name] = rule
        return rule

    return register


def dim_names(rank: int) -> tuple[str, ...]:
    """Names of the dimensions of an elementwise domain: i0, i1, ..."""
    return tuple(f"i{d}" for d in range(rank))


def point_names(rank: int) -> tuple[str, ...]:
    """Dimensions of a domain with addresses out of data: i0, i1, ... name values of indices there."""
    return tuple(f"d{d}" for d in range(rank))


def broadcast_read(shape: Sequence[int], names: Sequence[str], domain: Sequence[int]) -> tuple[Expr, ...]:
    """The index at which a point of a domain reads an operand broadcast to it.

    Trailing dimensions align; extents of 1 stay at 0.
    """
    tail = list(zip(names, domain, strict=True))[len(domain) - len(shape) :]
    return tuple(0 if extent == 1 and n != 1 else Sym(d) for extent, (d, n) in zip(shape, tail, strict=True))


#: the value each operand has outside its bounds; none where it is always read inside
Fill = Sequence[float | int | bool | None]


def elementwise(
    b: Builder,
    operands: Sequence[Value],
    result: TensorType,
    body: Body,
    reads: Sequence[Sequence[Expr]] | None = None,
    fill: Fill = (),
) -> Value:
    """A tensor.map over i0, i1, ... of the result; operands broadcast to it where no reads are given."""
    names = dim_names(result.rank)
    if reads is None:
        reads = [broadcast_read(v.tensor.shape, names, result.shape) for v in operands]
    return mapped(b, operands, result, dict(zip(names, result.shape, strict=True)), reads, body, fill)


def mapped(
    b: Builder,
    operands: Sequence[Value],
    result: TensorType,
    par: Mapping[str, int],
    reads: Sequence[Sequence[Expr]],
    body: Body,
    fill: Fill = (),
) -> Value:
    """A tensor.map with one result. Operands without elements are no operands: their reads give `fill`."""
    operands, reads, fill, body = _with_elements(operands, reads, fill, body)
    block = written(b, [v.tensor.dtype for v in operands], body)
    (out,) = structured(
        b, "tensor.map", operands, par=par, reads=reads, fill=fill, types=[result], body=block
    )
    return out


def reduced(
    b: Builder,
    name: str,
    operands: Sequence[Value],
    result: TensorType,
    par: Mapping[str, int],
    red: Mapping[str, int],
    reads: Sequence[Sequence[Expr]],
    body: Body,
    *,
    init: float | int | bool = 0.0,
    fill: Fill = (),
) -> Value:
    """A tensor.reduce, tensor.window or tensor.contract with one result.

    The body's last parameter is the accumulator. No kernel walks along an empty dimension: a fold of nothing
    is a map that gives `init`, and operands without elements are no operands.
    """
    start = type(zero(result.dtype))(init)
    if 0 in red.values() or not result.size:
        return mapped(b, [], result, par, [], lambda i, p: i.const(start, result.dtype))
    if any(not v.tensor.size for v in operands):
        name = "tensor.reduce"
        operands, reads, fill, body = _with_elements(operands, reads, fill, body)
    block = written(b, [*(v.tensor.dtype for v in operands), result.dtype], body)
    (out,) = structured(
        b, name, operands, par=par, red=red, reads=reads, fill=fill, init=(start,), types=[result], body=block
    )
    return out


def _with_elements(
    operands: Sequence[Value], reads: Sequence[Sequence[Expr]], fill: Fill, body: Body
) -> tuple[Sequence[Value], Sequence[Sequence[Expr]], Fill, Body]:
    """Operands that hold elements, and a body in which the others are constants: their fill values."""
    if all(v.tensor.size for v in operands):
        return operands, reads, fill, body
    full = [k for k, v in enumerate(operands) if v.tensor.size]
    outside = fill or (None,) * len(operands)

    def completed(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        values = iter(p)
        every = [
            next(values) if k in full else i.const(outside[k] or zero(v.tensor.dtype), v.tensor.dtype)
            for k, v in enumerate(operands)
        ]
        return body(i, [*every, *values])

    kept_fill = [outside[k] for k in full] if fill else ()
    return [operands[k] for k in full], [reads[k] for k in full], kept_fill, completed


def nothing(b: Builder, result: TensorType) -> Value:
    """An empty tensor: a map without points."""
    return elementwise(b, [], result, lambda i, p: i.const(zero(result.dtype), result.dtype))


def looked_up(
    b: Builder,
    data: Value,
    indices: Sequence[Value],
    par: Mapping[str, int],
    reads: Sequence[Sequence[Expr]],
    at: Sequence[Expr],
    mode: str = "clip",
) -> Value:
    """A tensor.gather of `data[at]` over `par`; symbols i0, i1, ... in `at` are the indices, read at `reads`.

    mode: clip, wrap, or fill (with zero) for addresses out of bounds.
    """
    t = TensorType(data.tensor.dtype, tuple(par.values()))
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(par)), "reads": tuple(map(tuple, reads)), "at": tuple(at), "mode": mode
    }  # fmt: skip
    if mode == "fill":
        attrs["fill_value"] = zero(t.dtype)
    (out,) = b.emit("tensor.gather", [data, *indices], attrs, types=[t])
    return out


def multiply_add(i: Scalars, p: Sequence[Scalar]) -> Scalar:
    """Body of a contraction: acc + a * b in the accumulator's type."""
    a, w, acc = p
    return i.cast(a, acc.dtype).fma(i.cast(w, acc.dtype), acc)


def added(i: Scalars, p: Sequence[Scalar]) -> Scalar:
    """Body of a sum in the accumulator's type."""
    return i.cast(p[0], p[1].dtype) + p[1]


def larger(i: Scalars, p: Sequence[Scalar]) -> Scalar:
    """Body of a maximum."""
    return p[0].max(p[1])


def quotient(b: Builder, total: Value, divisor: int, result: TensorType) -> Value:
    """`total / divisor` as type `result`; integers round towards zero."""
    division = "div" if total.tensor.dtype in FLOATS else "truncdiv"
    return elementwise(b, [total], result, lambda i, p: i.cast(p[0].apply(division, divisor), result.dtype))


def accumulated(result: TensorType) -> TensorType:
    """The type sums of products are kept in: float32 for half precisions."""
    wide = {"f16": "f32", "bf16": "f32"}.get(result.dtype, result.dtype)
    return TensorType(wide, result.shape)


def converted(b: Builder, v: Value, result: TensorType) -> Value:
    """`v` in the dtype of `result`; itself when it already is."""
    if v.tensor.dtype == result.dtype:
        return v
    return elementwise(b, [v], result, lambda inner, p: inner.cast(p[0], result.dtype))


def result_type(op: Op, index: int = 0) -> TensorType:
    """Tensor type of a result of the graph op."""
    return op.results[index].tensor
