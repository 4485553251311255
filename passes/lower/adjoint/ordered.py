"""Transposes of tensor ops with an order along a dimension: scans and recurrences, which run backwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.expr import Expr, Sym, substitute
from tilewright.ir.nodes import Attr, Op, Pairs, Value
from tilewright.ir.scalar_code import Scalar, Scalars
from tilewright.ir.tensor.ops import fills, reads
from tilewright.ir.tensor.recurrence_ops import history
from tilewright.ir.types import TensorType
from tilewright.passes.lower.adjoint.bodies import Linearised, substituted, wide
from tilewright.passes.lower.adjoint.structured import folded_by, is_sum
from tilewright.passes.lower.adjoint.terms import Input, Term, summed_to
from tilewright.passes.lower.adjoint.transposes import Cotangents, at_points, of_points, par_of, transposes
from tilewright.passes.lower.lowering import converted, mapped
from tilewright.passes.lower.scalars import Body, written


def _scan(
    c: Cotangents, x: Value, par: Mapping[str, int], dim: str, body: Body, init: float, *,
    exclusive: bool, reverse: bool,
) -> Value:  # fmt: skip
    """A scan along a dimension of a tensor with an element for each point of `par`."""
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(par)),
        "reads": (tuple(map(Sym, par)),),
        "dim": dim,
        "init": init,
        "exclusive": exclusive,
        "reverse": reverse,
    }
    block = written(c.b, [x.tensor.dtype] * 2, body)
    (out,) = c.b.emit("tensor.scan", [x], attrs, types=[x.type], body=block)
    return out


@transposes("tensor.scan")
def of_scan(c: Cotangents, op: Op) -> None:
    """A running sum sends back the running sum of its cotangents from the other end; a product, see there."""
    assert op.body is not None
    g = c.get(op.result)
    assert g is not None
    par, dim, dtype = par_of(op), str(op["dim"]), wide(op.result.tensor.dtype)
    exclusive, reverse = bool(op["exclusive"]), bool(op["reverse"])
    g = converted(c.b, g, of_points(par, dtype))
    (out,) = op.body.ops[-1].operands
    name, element = folded_by(op)
    if is_sum(op):
        element, back = (
            out,
            _scan(c, g, par, dim, lambda i, p: p[0] + p[1], 0.0, exclusive=exclusive, reverse=not reverse),
        )
    elif name == "scalar.mul":
        back = _of_products(c, op, element, g)
    else:
        raise c.refused(op, "whose body is neither a sum nor a product")
    c.spread(op, par, [at_points(back, par)], lambda i, values, p: {element: p[0]})


def _of_products(c: Cotangents, op: Op, element: Value, g: Value) -> Value:
    """Cotangents of the elements h of a running product: (product before j) * B(j).

    B(j) = g(j) + h(j + 1) * B(j + 1), and g(j + 1) instead of g(j) for an exclusive one: nothing is divided,
    so elements may be zero.
    """
    assert op.body is not None
    body, par, dim, dtype = op.body, par_of(op), str(op["dim"]), wide(op.result.tensor.dtype)
    exclusive, forwards = bool(op["exclusive"]), not op["reverse"]
    t, last = of_points(par, dtype), par[dim] - 1

    def elements(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        values = Linearised(i, body, [*p, i.const(1, op.result.tensor.dtype)])
        return i.cast(values.env[element], dtype)

    h = mapped(c.b, op.operands, t, par, reads(op), elements, fills(op))
    before = _scan(c, h, par, dim, lambda i, p: p[0] * p[1], 1.0, exclusive=True, reverse=bool(op["reverse"]))
    # u counts from the end: place(u) is the element j, place(u - 1) the one that comes after it
    place: Expr = last - Sym(dim) if forwards else Sym(dim)
    after: Expr = place + 1 if forwards else place - 1

    def line(at: Expr) -> tuple[Expr, ...]:
        return tuple(at if k == dim else Sym(k) for k in par)

    past = "past"
    while past in par:
        past += "_"
    start = mapped(c.b, [g], t, par, [line(after if exclusive else place)], lambda i, p: p[0], (0.0,))

    def step(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        factor, b, total = p
        direct = i.index(Sym(dim) - Sym(past)).equals(1)
        return direct.select(factor * b, 0) + total

    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(par)),
        "red": Pairs.of({past: par[dim]}),
        "reads": (tuple(map(Sym, par)), line(after)),
        "fill": (None, 0.0),
        "dim": dim,
    }
    block = written(c.b, [dtype] * 3, step)
    (backwards,) = c.b.emit("tensor.recur", [start, h], attrs, types=[t], body=block)
    point = tuple(map(Sym, par))
    return mapped(c.b, [before, backwards], t, par, [point, line(place)], lambda i, p: p[0] * p[1])


@transposes("tensor.recur")
def of_recur(c: Cotangents, op: Op) -> None:
    """The recurrence of the cotangents runs from the last result to the first.

    y(i) = start(i) + sum over t < i of f(x(i, t), y(t)) gives
    z(t) = g(t) + sum over i > t of z(i) df/dy(x(i, t), y(t)).
    """
    assert op.body is not None
    g = c.get(op.result)
    assert g is not None
    if not is_sum(op):
        raise c.refused(op, "whose body is no sum")
    body, par, dim, past = op.body, par_of(op), str(op["dim"]), history(op)
    dtype, last = wide(op.result.tensor.dtype), par[dim] - 1
    t = TensorType(dtype, op.result.tensor.shape)
    names = tuple(map(Sym, par))
    turned = tuple(last - Sym(k) if k == dim else Sym(k) for k in par)
    operands = [Input(*x) for x in zip(op.operands, reads(op), fills(op), strict=True)][1:]
    # result u of the new recurrence is z(last - u), its past v is z(last - v): i = last - v, t = last - u
    swap: dict[str, Expr] = {dim: last - Sym(past), past: last - Sym(dim)}
    back = [Input(x.value, tuple(substitute(e, swap) for e in x.read), x.fill) for x in operands]
    y = body.params[-2]

    def step(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        *elements, now, z, total_ = p
        values = Linearised(i, body, [*elements, now, i.const(0, op.result.tensor.dtype)])
        (out,) = body.ops[-1].operands
        sent = values.cotangents({out: z}, [y])
        return total_ + sent[y] if y in sent else total_

    start = mapped(c.b, [g], t, par, [turned], lambda i, p: i.cast(p[0], dtype))
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(par)),
        "red": Pairs.of({past: par[dim]}),
        "reads": (names, *(x.read for x in back), turned),
        "fill": (None, *(x.fill for x in back), None),
        "dim": dim,
    }
    types = [*(x.tensor.dtype for x in back), op.result.tensor.dtype, dtype, dtype]
    block = substituted(written(c.b, types, step), swap, {})
    (z,) = c.b.emit(
        "tensor.recur", [start, *(x.value for x in back), op.result], attrs, types=[t], body=block
    )
    z = mapped(c.b, [z], t, par, [turned], lambda i, p: p[0])
    if op.operands[0] in c.active:
        c.add(op.operands[0], _to_start(c, op, z))
    earlier = Input(op.result, tuple(Sym(past) if k == dim else Sym(k) for k in par))

    def seeds(i: Scalars, values: Linearised, p: Sequence[Scalar]) -> Mapping[Value, Scalar]:
        (out,) = body.ops[-1].operands
        return {out: (i.index(Sym(past)) < i.index(Sym(dim))).select(p[1], 0)}

    c.spread(op, {**par, past: par[dim]}, [earlier, at_points(z, par)], seeds, first=1, bound=1)


def _to_start(c: Cotangents, op: Op, z: Value) -> Value | None:
    """The cotangent of the first operand of a recurrence, which each result starts from."""
    par = par_of(op)
    block = written(c.b, [z.tensor.dtype], lambda i, p: p[0])
    term = Term(par, (at_points(z, par),), block)
    return summed_to(c.b, term, reads(op)[0], op.operands[0].tensor)
