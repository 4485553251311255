"""A product by parts of its longest sum: what may be cut, and the ops that compute the parts and add them."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir import Builder, Expr, Op, Pairs, Sym, TensorType, Value, scalar_body, structured
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.nodes import Attr
from tilewright.ir.tensor.ops import dims, domain, reads
from tilewright.passes.analysis.copies import copied
from tilewright.passes.kernels.matrix.view import NARROW, multiplies
from tilewright.passes.rewriting.names import unused

#: parts that one map adds; more of them are summed
MAX_READS = 8


def split(op: Op, b: Builder, parts: int) -> Value:
    """The same product by parts of its longest plain sum."""
    channel = channel_of(op)
    length = dims(op, "red")[channel] // parts
    part = unused("part", domain(op))
    whole = Sym(part) * length + Sym(channel)
    first, second = reads(op)[:2]
    at = second.index(Sym(channel))
    w = op.operands[1]
    names = [f"i{i}" for i in range(w.tensor.rank)]
    shape: dict[str, int] = {}
    for name, extent in zip(names, w.tensor.shape, strict=True):
        shape |= {part: parts, name: length} if name == names[at] else {name: extent}
    where: list[Expr] = [Sym(d) for d in names]
    where[at] = Sym(part) * length + Sym(names[at])
    view = copied(b, w, shape, where)
    par = {part: parts, **dims(op, "par")}
    attrs: dict[str, Attr] = {
        **dict(op.attrs),
        "par": Pairs.of(dict(par)),
        "red": Pairs.of({**dims(op, "red"), channel: length}),
        "reads": (
            tuple(substitute(e, {channel: whole}) for e in first),
            (*second[:at], Sym(part), *second[at:]),
        ),
    }
    t = op.result.tensor
    partial = TensorType(t.dtype, (parts, *t.shape))
    (sums,) = b.emit("tensor.contract", [op.operands[0], view], attrs, types=[partial], body=op.body)
    return added(b, sums, dims(op, "par"))


def split_along(op: Op, b: Builder, dim: str, parts: int) -> Value:
    """The same product or sum by parts of its sum along one reduced dimension."""
    length = dims(op, "red")[dim] // parts
    part = unused("part", domain(op))
    whole = Sym(part) * length + Sym(dim)
    attrs: dict[str, Attr] = {
        **dict(op.attrs),
        "par": Pairs.of({part: parts, **dims(op, "par")}),
        "red": Pairs.of({**dims(op, "red"), dim: length}),
        "reads": tuple(tuple(substitute(e, {dim: whole}) for e in at) for at in reads(op)),
    }
    t = op.result.tensor
    partial = TensorType(t.dtype, (parts, *t.shape))
    (sums,) = b.emit(op.name, op.operands, attrs, types=[partial], body=op.body)
    return added(b, sums, dims(op, "par"))


def added(b: Builder, sums: Value, par: Mapping[str, int]) -> Value:
    """Append the sum of a tensor over its first dimension, for each point of `par`."""
    t = TensorType(sums.tensor.dtype, sums.tensor.shape[1:])
    parts = sums.tensor.shape[0]
    if parts > MAX_READS:
        part = unused("part", par)
        inner, (v, acc) = scalar_body([t.dtype] * 2)
        inner.do("scalar.yield", inner.value("scalar.add", v, acc))
        (out,) = structured(
            b, "tensor.reduce", [sums], par=par, red={part: parts}, reads=[(Sym(part), *map(Sym, par))],
            init=(0.0,), body=inner.block((v, acc)), types=[t],
        )  # fmt: skip
        return out
    body, values = scalar_body([t.dtype] * parts)
    total = values[0]
    for v in values[1:]:
        total = body.value("scalar.add", total, v)
    body.do("scalar.yield", total)
    rest = tuple(map(Sym, par))
    (out,) = structured(
        b, "tensor.map", [sums] * parts, par=par, reads=[(i, *rest) for i in range(parts)],
        body=body.block(values), types=[t],
    )  # fmt: skip
    return out


def channel_of(op: Op) -> str:
    """The longest reduced dimension that both operands read by itself; '' where there is none."""
    found = ""
    red = dims(op, "red")
    for d in red:
        plain = all(
            at.count(Sym(d)) == 1 and all(d not in symbols(e) or e == Sym(d) for e in at) for at in reads(op)
        )
        if plain and red[d] > red.get(found, 0):
            found = d
    return found


def sums_products(op: Op) -> bool:
    """Return whether the body adds the product of both factors, widened if of 16 bits, to a sum from 0."""
    assert op.body is not None
    if op["init"] != (0.0,):  # every part would start from it
        return False
    dtypes = {v.tensor.dtype for v in op.operands}
    if dtypes == {op.result.tensor.dtype}:
        return [o.name for o in op.body.ops] == ["scalar.fma", "scalar.yield"]
    return len(dtypes) == 1 and dtypes <= set(NARROW) and multiplies(op)
