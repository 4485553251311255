"""Sums of a value and of its squared distances from its mean: which ops take both, by what they compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.tensor.ops import dims, fills
from tilewright.passes.analysis.terms import (
    Folded,
    Read,
    Reduction,
    Term,
    Terms,
    applied,
    both_orders,
    number,
    peeled,
    quotient,
)


@dataclass(frozen=True)
class Moments:
    """Two walks over the same elements: one adds them up, one their squared distances from the mean.

    value, at: what is read where, over the dimensions of `squares`. mean: of the elements, an operand of
    `squares`; its last map divides what `total` gives.
    """

    value: Value
    at: tuple[Expr, ...]
    total: Op
    mean: Value
    squares: Op


def moments_of(func: Func) -> Iterator[Moments]:
    """All moments of a function."""
    for op in func.body.ops:
        if op.name == "tensor.reduce" and len(op.operands) == 2 and len(op.results) == 1:
            found = _moments(func, op)
            if found is not None:
                yield found


def _moments(func: Func, op: Op) -> Moments | None:
    """The moments whose squares an op adds up; None for other ops."""
    if any(fill is not None for fill in fills(op)):
        return None
    value, mean = sorted(op.operands, key=lambda v: -v.tensor.size)
    par, red = dims(op, "par"), {d: n for d, n in dims(op, "red").items() if n > 1}
    terms = Terms(func, {d: (0, n - 1) for d, n in (*par.items(), *red.items())}, stop=(value,))
    squares = terms.folded(Reduction(op, tuple(map(Sym, par))), tuple(red))
    if squares is None or squares.kind != "add" or (factors := applied(squares.of, "mul")) is None:
        return None
    distance = applied(factors[0], "sub")
    if distance is None or not terms.same(factors[0], factors[1]):
        return None
    element = peeled(distance[0])
    total = _mean_of(terms, distance[1], element, squares)
    if total is None or not isinstance(element, Read) or element.value is not value:
        return None
    if mean.tensor.shape != tuple(par.values()) or mean.tensor != op.result.tensor:
        return None
    return Moments(value, element.at, total, mean, op)


def _mean_of(terms: Terms, mean: Term, element: Term, squares: Folded) -> Op | None:
    """The op that adds up what this is the mean of: an element over the dimensions of the squares."""
    names = [name for name, _ in squares.over]
    count = prod(extent for _, extent in squares.over)
    for sum_, divisor in _shares(mean):
        if not isinstance(sum_, Reduction) or abs(divisor * count - 1.0) > 1e-6:
            continue
        total = terms.folded(sum_, names)
        if total is not None and (total.kind, total.over) == ("add", squares.over):
            return sum_.op if terms.same(total.of, element) else None
    return None


def _shares(term: Term) -> Iterator[tuple[Term, float]]:
    """What a term is a constant share of, and the share."""
    if (parts := quotient(term)) is not None and (divisor := number(parts[1])):
        yield peeled(parts[0]), 1.0 / divisor
    for one, other in both_orders(term, "mul"):
        if (share := number(other)) is not None:
            yield peeled(one), share
