"""Coordinates of sparse tensors: maps that divide places by extents, which are elements of an operand."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, Value
from tilewright.passes.lower.lowering import dim_names, elementwise, lowering, mapped, result_type
from tilewright.passes.lower.scalars import Scalar, Scalars


def _coordinate(i: Scalars, place: Scalar, shape: Sequence[Scalar], which: Expr) -> Scalar:
    """Coordinate number `which` of a row-major place; the first one is all that is left."""
    rest: list[Scalar] = []
    for extent in reversed(shape[1:]):
        rest.insert(0, place % extent)
        place = place / extent
    out = place
    for d, value in enumerate(rest, 1):
        here = i.index(which).equals(d)
        out = here.select(value, out)
    return out


@lowering("graph.unravel_index")
def unravel_index(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Every point divides its index by the extents behind its coordinate."""
    indices, shape = x
    t = result_type(op)
    names = dim_names(t.rank)
    extents = range(shape.tensor.shape[0])

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        coordinate = _coordinate(i, p[0], p[1:], Sym(names[0]))
        first = i.index(Sym(names[0])).equals(0)
        # a result without coordinates has no points, but a body all the same
        return first.select(coordinate % p[1], coordinate) if extents else p[0]

    reads: list[tuple[Expr, ...]] = [tuple(map(Sym, names[1:])), *((d,) for d in extents)]
    return [elementwise(b, [indices, *[shape] * len(extents)], t, body, reads)]


@lowering("graph.sparse_reshape")
def sparse_reshape(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """First the new shape, then places in the old one and their coordinates in the new one."""
    indices, before, after = x
    old, new = before.tensor.shape[0], after.tensor.shape[0]
    dtype = indices.tensor.dtype

    def unknown(i: Scalars, v: Scalar) -> Scalar:
        return v.equals(i.value("scalar.cast", i.const(-1, "i32"), dtype=dtype))

    def resolve(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        rest = known = i.const(1, dtype)
        for v in p[1 : 1 + old]:
            rest = rest * v
        for v in p[1 + old :]:
            one = i.const(1, dtype)
            known = known * unknown(i, v).select(one, v)
        return unknown(i, p[0]).select(rest / known, p[0])

    columns: list[tuple[Expr, ...]] = [(d,) for d in range(old)]
    entries: list[tuple[Expr, ...]] = [(d,) for d in range(new)]
    operands = [after, *[before] * old, *[after] * new]
    shape = mapped(b, operands, after.tensor, {"i0": new}, [(Sym("i0"),), *columns, *entries], resolve)

    def place(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        total = i.const(0, dtype)
        for column, extent in zip(p[:old], p[old : 2 * old], strict=True):
            total = total * extent + column
        coordinate = _coordinate(i, total, p[2 * old : 2 * old + new], Sym("i1"))
        if new != old:
            return coordinate
        same = i.const(True, "bool")
        for extent, resolved in zip(p[old : 2 * old], p[2 * old :], strict=False):
            same = same & extent.equals(resolved)
        return same.select(p[-1], coordinate)

    t = result_type(op)
    rows: list[tuple[Expr, ...]] = [(Sym("i0"), d) for d in range(old)]
    operands = [*[indices] * old, *[before] * old, *[shape] * new]
    par = {"i0": t.shape[0], "i1": new}
    reads = [*rows, *columns, *entries]
    if new == old:
        operands.append(indices)
        reads.append((Sym("i0"), Sym("i1")))
    return [mapped(b, operands, t, par, reads, place), shape]
