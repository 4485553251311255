"""Transposes of maps and of folds over reduced dimensions: sums, extremes and products."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.ir.expr import Expr, Sym, substitute
from tilewright.ir.nodes import Attr, Op, Pairs, Value
from tilewright.ir.scalar_code import Scalar, Scalars
from tilewright.ir.tensor.ops import dims, domain, fills, reads
from tilewright.passes.lower.adjoint.bodies import Linearised, wide
from tilewright.passes.lower.adjoint.terms import Input
from tilewright.passes.lower.adjoint.transposes import (
    Cotangents,
    Seeds,
    at_points,
    of_points,
    par_of,
    transposes,
)
from tilewright.passes.lower.lowering import elementwise, mapped, reduced
from tilewright.passes.lower.scalars import written


def _seeded(op: Op, c: Cotangents) -> tuple[list[Input], Seeds]:
    """The cotangents of the results as inputs, and as those of what the body yields."""
    assert op.body is not None
    yielded = op.body.ops[-1].operands
    pairs = [(v, g) for v, g in zip(yielded, map(c.get, op.results), strict=True) if g is not None]

    def seeds(i: Scalars, values: Linearised, p: Sequence[Scalar]) -> Mapping[Value, Scalar]:
        out: dict[Value, Scalar] = {}
        for (v, _), g in zip(pairs, p, strict=True):
            g = i.cast(g, wide(v.type.dtype))
            out[v] = out[v] + g if v in out else g
        return out

    return [at_points(g, par_of(op)) for _, g in pairs], seeds


@transposes("tensor.map")
def of_map(c: Cotangents, op: Op) -> None:
    """Each read takes back the cotangents of the points that read it, times the derivatives there."""
    extra, seeds = _seeded(op, c)
    c.spread(op, par_of(op), extra, seeds)


@transposes("tensor.reduce", "tensor.window", "tensor.contract")
def of_fold(c: Cotangents, op: Op) -> None:
    """A sum sends its cotangent to every element; an extreme to those equal to it; a product divides none."""
    if is_sum(op):
        extra, seeds = _seeded(op, c)
        c.spread(op, domain(op), extra, seeds)
        return
    name, element = folded_by(op)
    if name in ("scalar.max", "scalar.min"):
        _of_extreme(c, op, element)
    elif name == "scalar.mul":
        _of_product(c, op, element)
    else:
        raise c.refused(op, "whose body is neither a sum nor an extreme nor a product")


def _accumulators(op: Op) -> Sequence[Value]:
    assert op.body is not None
    return op.body.params[len(op.operands) :]


def is_sum(op: Op) -> bool:
    """Whether every result is its accumulator plus something that no accumulator takes part in."""
    assert op.body is not None
    made = {v: v for v in _accumulators(op)}  # a value -> the accumulator that it is plus something
    for inner in op.body.ops[:-1]:
        used = [v for v in inner.operands if v in made]
        if not used:
            continue
        addend = inner.operands[-1] if inner.name == "scalar.fma" else used[0]
        plain = inner.name == "scalar.add" or (inner.name == "scalar.fma" and addend in made)
        if len(used) > 1 or not plain:
            return False
        made[inner.result] = made[addend]
    return [made.get(v) for v in op.body.ops[-1].operands] == list(_accumulators(op))


def folded_by(op: Op, accumulator: Value | None = None) -> tuple[str, Value]:
    """The scalar op that folds and the element it folds; no name where the body is not of that form.

    accumulator: the parameter of the body that is folded into, its last one by default.
    """
    assert op.body is not None
    accumulator = accumulator or op.body.params[-1]
    (out, *more) = op.body.ops[-1].operands
    last = next((x for x in op.body.ops if out in x.results), None)
    if more or last is None or len(last.operands) != 2:
        return "", out
    readers = [x for x in op.body.ops if accumulator in x.operands]
    elements = [v for v in last.operands if v is not accumulator]
    if readers != [last] or len(elements) != 1:
        return "", out
    return last.name, elements[0]


def _of_extreme(c: Cotangents, op: Op, element: Value) -> None:
    """The cotangent is split evenly over the elements that equal the result."""
    assert op.body is not None
    g = c.get(op.result)
    assert g is not None
    par, dtype, body = par_of(op), wide(op.result.tensor.dtype), op.body
    result = at_points(op.result, par)

    def equal(i: Scalars, values: Linearised, y: Scalar) -> Scalar:
        return i.cast(values.env[element], y.dtype).equals(y)

    def count(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        values = Linearised(i, body, [*p[: len(op.operands)], p[-2]])
        return equal(i, values, p[-2]).select(i.const(1.0, dtype), 0) + p[-1]

    ties = reduced(
        c.b, "tensor.reduce", [*op.operands, op.result], of_points(par, dtype), par, dims(op, "red"),
        [*reads(op), result.read], count, fill=(*fills(op), None),
    )  # fmt: skip
    share = elementwise(c.b, [g, ties], of_points(par, dtype), lambda i, p: i.cast(p[0], dtype) / p[1].max(1))

    def seeds(i: Scalars, values: Linearised, p: Sequence[Scalar]) -> Mapping[Value, Scalar]:
        return {element: equal(i, values, p[1]).select(p[0], 0)}

    c.spread(op, domain(op), [at_points(share, par), result], seeds)


def _of_product(c: Cotangents, op: Op, element: Value) -> None:
    """The cotangent times the product of all other elements, from both ends: right where some are zero."""
    assert op.body is not None
    g = c.get(op.result)
    assert g is not None
    par, red, dtype, body = par_of(op), dims(op, "red"), wide(op.result.tensor.dtype), op.body
    line, count = "line", prod(red.values())
    while line in par:
        line += "_"
    step = count
    places: dict[str, Expr] = {}
    for k, n in red.items():
        step //= n
        places[k] = Sym(line) // step % n if len(places) else Sym(line) // step
    at: dict[str, Expr] = {**{k: Sym(k) for k in par}, **places}
    lines = {**par, line: count}

    def elements(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        values = Linearised(i, body, [*p, i.const(1, op.result.tensor.dtype)])
        return i.cast(values.env[element], dtype)

    flat = [tuple(substitute(e, at) for e in read) for read in reads(op)]
    x = mapped(c.b, op.operands, of_points(lines, dtype), lines, flat, elements, fills(op))
    sides = [_running_products(c, x, lines, line, reverse=side) for side in (False, True)]
    here: Expr = 0
    for k, n in red.items():
        here = here * n + Sym(k)
    beside = [Input(v, (*map(Sym, par), here)) for v in sides]

    def seeds(i: Scalars, values: Linearised, p: Sequence[Scalar]) -> Mapping[Value, Scalar]:
        return {element: i.cast(p[0], dtype) * (p[1] * p[2])}

    c.spread(op, domain(op), [at_points(g, par), *beside], seeds)


def _running_products(
    c: Cotangents, x: Value, lines: Mapping[str, int], line: str, *, reverse: bool
) -> Value:
    """For every element the product of those before it (behind it when reverse) on its line."""
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(lines)),
        "reads": (tuple(map(Sym, lines)),),
        "dim": line,
        "init": 1.0,
        "exclusive": True,
        "reverse": reverse,
    }
    block = written(c.b, [x.tensor.dtype] * 2, lambda i, p: p[0] * p[1])
    (out,) = c.b.emit("tensor.scan", [x], attrs, types=[x.type], body=block)
    return out
