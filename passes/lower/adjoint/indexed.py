"""Transposes of tensor ops with addresses out of data, gather and scatter, and of joins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ir.expr import Expr, Sym, maximum, minimum
from tilewright.ir.nodes import Attr, Block, Op, Pairs, Value
from tilewright.ir.scalar_code import Scalar, Scalars
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.join_ops import boxes_of
from tilewright.ir.tensor.ops import reads
from tilewright.ir.types import TensorType
from tilewright.passes.lower.adjoint.bodies import Linearised, wide
from tilewright.passes.lower.adjoint.structured import folded_by
from tilewright.passes.lower.adjoint.terms import Input, Term, scatter_sum, summed_to
from tilewright.passes.lower.adjoint.transposes import Cotangents, at_points, of_points, par_of, transposes
from tilewright.passes.lower.lowering import elementwise, looked_up, mapped
from tilewright.passes.lower.scalars import written


@transposes("tensor.gather")
def of_gather(c: Cotangents, op: Op) -> None:
    """Cotangents are added where the elements were read; out of bounds as the gather takes them."""
    g = c.get(op.result)
    assert g is not None
    data, *indices = op.operands
    kind = TensorType(wide(data.tensor.dtype), data.tensor.shape)
    at: list[Expr] = list(op.exprs("at"))
    if op["mode"] == "clip":
        at = [maximum(0, minimum(e, n - 1)) for e, n in zip(at, kind.shape, strict=True)]
    elif op["mode"] == "wrap":
        at = [e % max(1, n) for e, n in zip(at, kind.shape, strict=True)]
    par = par_of(op)
    ranges = {k: (0, n - 1) for k, n in par.items()}
    at = [simplify(e, ranges) for e in at]  # a plain dimension needs no bounds: it stays a slice
    if data in c.active and kind.size and 0 not in par.values():
        c.add(data, scatter_sum(c.b, kind, g, indices, par, [tuple(map(Sym, par)), *reads(op)], at))


class _Scatter:
    """A scatter on the way back: its places, what is known of them, and the cotangent of its result."""

    def __init__(self, c: Cotangents, op: Op, g: Value) -> None:
        assert op.body is not None
        self.c, self.op, self.g, self.body = c, op, g, op.body
        self.init, self.updates, *self.indices = op.operands
        self.par = par_of(op)
        self.dtype = wide(op.result.tensor.dtype)
        self.point = tuple(map(Sym, self.par))

    def at_places(self, v: Value) -> Input:
        """The elements of a tensor like the result at the places of updates; zero for those outside."""
        where = reads(self.op)[1:]
        got = looked_up(self.c.b, v, self.indices, self.par, where, self.op.exprs("at"), "fill")
        return at_points(got, self.par)

    def scattered(self, init: Value, updates: Value, body: Block) -> Value:
        """A scatter to the same places, of updates with an element for each point."""
        attrs: dict[str, Attr] = {
            "par": Pairs.of(self.par),
            "reads": (self.point, *reads(self.op)[1:]),
            "at": self.op.exprs("at"),
        }
        operands = [init, updates, *self.indices]
        (out,) = self.c.b.emit("tensor.scatter", operands, attrs, types=[init.type], body=body)
        return out

    def full(self, value: float, dtype: str) -> Value:
        """A tensor like the result of one number."""
        t = TensorType(dtype, self.op.result.tensor.shape)
        return elementwise(self.c.b, [], t, lambda i, p: i.const(value, dtype))

    def at_update(self, inputs: Sequence[Input], seeds: Any) -> None:
        """Send back to the updates what comes back to values of the body at each point."""
        if self.updates not in self.c.active:
            return
        body = self.body

        def write(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            values = Linearised(i, body, [i.const(0, body.params[0].type.dtype), p[0]])
            back = values.cotangents(seeds(i, values, p[1:]), [body.params[1]])
            return back.get(body.params[1]) or i.const(0.0, wide(body.params[1].type.dtype))

        read = reads(self.op)[0]
        every = (Input(self.updates, read), *inputs)
        block = written(self.c.b, [x.tensor.dtype for x in every], write)
        self.c.add(self.updates, summed_to(self.c.b, Term(self.par, every, block), read, self.updates.tensor))


@transposes("tensor.scatter")
def of_scatter(c: Cotangents, op: Op) -> None:
    """By what joins an update with the old value: nothing (the last one stays), a sum, product or extreme."""
    g = c.get(op.result)
    assert g is not None
    assert op.body is not None
    if 0 in par_of(op).values():
        c.add(op.operands[0], g)
        return
    s = _Scatter(c, op, g)
    old = op.body.params[0]
    if not any(old in inner.operands for inner in op.body.ops):
        _of_overwriting(s)
        return
    name, element = folded_by(op, old)
    if name == "scalar.add":
        c.add(s.init, g)
        s.at_update([s.at_places(g)], lambda i, values, p: {element: i.cast(p[0], s.dtype)})
    elif name in ("scalar.max", "scalar.min"):
        _of_extreme(s, element)
    elif name == "scalar.mul":
        _of_product(s, element)
    else:
        raise c.refused(op, "that joins values neither by a sum, a product nor an extreme")


def _of_overwriting(s: _Scatter) -> None:
    """Places that are written send nothing to the initial values; of several updates the last one counts."""
    b, t = s.c.b, TensorType("i32", tuple(s.par.values()))
    number: Expr = 0
    for k, n in s.par.items():
        number = number * n + Sym(k)
    numbers = mapped(b, [], t, s.par, [], lambda i, p: i.index(number))
    nobody = elementwise(b, [], TensorType("i32", s.op.result.tensor.shape), lambda i, p: i.const(-1, "i32"))
    writers = s.scattered(nobody, numbers, written(b, ["i32", "i32"], lambda i, p: p[1]))
    kept = TensorType(s.dtype, s.op.result.tensor.shape)

    def unwritten(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return (p[1] < 0).select(i.cast(p[0], s.dtype), 0)

    if s.init in s.c.active:
        s.c.add(s.init, elementwise(b, [s.g, writers], kept, unwritten))
    (out,) = s.body.ops[-1].operands

    def seeds(i: Scalars, values: Linearised, p: Sequence[Scalar]) -> Mapping[Value, Scalar]:
        last = p[1].equals(i.index(number))
        return {out: last.select(i.cast(p[0], s.dtype), 0)}

    s.at_update([s.at_places(s.g), s.at_places(writers)], seeds)


def _elements(s: _Scatter, element: Value) -> Value:
    """What each update joins with the old value, for every point."""

    def write(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        values = Linearised(i, s.body, [i.const(0, s.body.params[0].type.dtype), p[0]])
        return i.cast(values.env[element], s.dtype)

    t = of_points(s.par, s.dtype)
    return mapped(s.c.b, [s.updates], t, s.par, [reads(s.op)[0]], write)


def _of_extreme(s: _Scatter, element: Value) -> None:
    """The cotangent is split evenly over all that equal the result, the initial value among them."""
    b, t = s.c.b, TensorType(s.dtype, s.op.result.tensor.shape)
    x, y = _elements(s, element), s.op.result

    def equal(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return i.cast(p[0], s.dtype).equals(i.cast(p[1], s.dtype)).select(i.const(1.0, s.dtype), 0)

    result = s.at_places(y)
    ties = mapped(b, [x, result.value], of_points(s.par, s.dtype), s.par, [s.point, s.point], equal)
    first = elementwise(b, [s.init, y], t, equal)
    count = s.scattered(first, ties, written(b, [s.dtype] * 2, lambda i, p: p[0] + p[1]))
    share = elementwise(b, [s.g, count], t, lambda i, p: i.cast(p[0], s.dtype) / p[1].max(1))
    if s.init in s.c.active:
        s.c.add(s.init, elementwise(b, [share, first], t, lambda i, p: p[0] * p[1]))
    s.at_update([s.at_places(share), at_points(ties, s.par)], lambda i, values, p: {element: p[0] * p[1]})


def _of_product(s: _Scatter, element: Value) -> None:
    """The cotangent times the product of all other factors: of those that are not zero, unless two are."""
    b, t, points = s.c.b, TensorType(s.dtype, s.op.result.tensor.shape), of_points(s.par, s.dtype)
    x = _elements(s, element)

    def nonzero(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        v = i.cast(p[0], s.dtype)
        return v.equals(0).select(1, v)

    def zero(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return p[0].equals(0).select(i.const(1.0, s.dtype), 0)

    product = s.scattered(
        elementwise(b, [s.init], t, nonzero),
        mapped(b, [x], points, s.par, [s.point], nonzero),
        written(b, [s.dtype] * 2, lambda i, p: p[0] * p[1]),
    )
    zeros = s.scattered(
        elementwise(b, [s.init], t, zero),
        mapped(b, [x], points, s.par, [s.point], zero),
        written(b, [s.dtype] * 2, lambda i, p: p[0] + p[1]),
    )

    def others(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        g, v, product_, zeros_ = (i.cast(q, s.dtype) for q in p)
        mine = v.equals(0)
        alone = zeros_.equals(mine.select(i.const(1.0, s.dtype), 0))
        return alone.select(g * (product_ / mine.select(1, v)), 0)

    if s.init in s.c.active:
        s.c.add(s.init, elementwise(b, [s.g, s.init, product, zeros], t, others))
    inputs = [s.at_places(s.g), at_points(x, s.par), s.at_places(product), s.at_places(zeros)]
    s.at_update(inputs, lambda i, values, p: {element: others(i, p)})


@transposes("tensor.join")
def of_join(c: Cotangents, op: Op) -> None:
    """Every operand takes back its box."""
    g = c.get(op.result)
    assert g is not None
    for v, (first, extents) in zip(op.operands, boxes_of(op), strict=True):
        if v not in c.active or not v.tensor.size:
            continue
        names = [f"i{d}" for d in range(v.tensor.rank)]
        par = dict(zip(names, v.tensor.shape, strict=True))
        place: Expr = 0
        for k, n in par.items():
            place = place * n + Sym(k)
        at: list[Expr] = []
        for start, n in reversed(list(zip(first, extents, strict=True))):
            at.append(place % n + start)
            place = place // n
        c.add(
            v,
            mapped(c.b, [g], TensorType(g.tensor.dtype, v.tensor.shape), par, [at[::-1]], lambda i, p: p[0]),
        )
