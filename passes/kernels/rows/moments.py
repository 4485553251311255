"""Sums of a value and of its squared distances from its mean: which ops take both, by what they compute, and
ops that take both of parts in one walk and join them (Chan, Golub and LeVeque 1983).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilewright.ir import Builder, Expr, Func, Op, Sym, TensorType, Value, scalar_body, structured
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


def shifted_sums(
    b: Builder,
    value: Value,
    over: Mapping[str, int],
    within: Mapping[str, int],
    every: tuple[Expr, ...],
    first: tuple[Expr, ...],
    dtype: str,
) -> tuple[Value, Value]:
    """Append the sums of `x - k` and of its square, of each part.

    over: dimensions of the parts and columns; within: those that are added up. every, first: where `x` and
    `k` are read; with `k` among the elements of a part no element is far from it.
    """
    t, source = TensorType(dtype, tuple(over.values())), value.tensor.dtype

    def summed(*, squared: bool) -> Value:
        inner, (x, k, acc) = scalar_body([source, source, dtype])
        away = inner.value("scalar.sub", inner.cast(x, dtype), inner.cast(k, dtype))
        folded = ("scalar.fma", away, away, acc) if squared else ("scalar.add", away, acc)
        inner.do("scalar.yield", inner.value(*folded))
        (out,) = structured(
            b, "tensor.reduce", [value, value], par=over, red=within, reads=[every, first], init=(0.0,),
            body=inner.block((x, k, acc)), types=[t],
        )  # fmt: skip
        return out

    return summed(squared=False), summed(squared=True)


def joined_moments(
    b: Builder,
    value: Value,
    first: tuple[Expr, ...],
    shifted: tuple[Value, Value],
    of_part: tuple[Expr, ...],
    over: Mapping[str, int],
    part: tuple[str, int],
    length: int,
) -> tuple[Value, Value]:
    """Append the mean of all parts, and the sum of squared distances from it, from the sums of each part.

    shifted: as `shifted_sums` gives them, read at `of_part`. first: where `k` of a part is read. over: the
    dimensions of the results; part: that of the parts; length: elements of a part.
    """
    (s, q), red = shifted, dict([part])
    dtype, source = s.tensor.dtype, value.tensor.dtype
    t, columns = TensorType(dtype, tuple(over.values())), tuple(map(Sym, over))
    inner, (k, v, acc) = scalar_body([source, dtype, dtype])
    mean = inner.value("scalar.fma", v, inner.const(1.0 / length, dtype), inner.cast(k, dtype))
    inner.do("scalar.yield", inner.value("scalar.add", mean, acc))
    (total,) = structured(
        b, "tensor.reduce", [value, s], par=over, red=red, reads=[first, of_part], init=(0.0,),
        body=inner.block((k, v, acc)), types=[t],
    )  # fmt: skip
    mean = _share(b, total, over, part[1])
    inner, (k, v, w, m, acc) = scalar_body([source, *[dtype] * 4])
    share = inner.value("scalar.mul", v, inner.const(1.0 / length, dtype))
    own = inner.value("scalar.fma", inner.value("scalar.neg", v), share, w)
    away = inner.value("scalar.sub", inner.value("scalar.add", inner.cast(k, dtype), share), m)
    square = inner.value("scalar.mul", away, away)
    own = inner.value("scalar.fma", square, inner.const(float(length), dtype), own)
    inner.do("scalar.yield", inner.value("scalar.add", own, acc))
    (squares,) = structured(
        b, "tensor.reduce", [value, s, q, mean], par=over, red=red,
        reads=[first, of_part, of_part, columns], init=(0.0,), body=inner.block((k, v, w, m, acc)), types=[t],
    )  # fmt: skip
    return mean, squares


def joined_means(
    b: Builder,
    means: Value,
    squares: Value,
    of_part: tuple[Expr, ...],
    over: Mapping[str, int],
    part: tuple[str, int],
    length: int,
) -> tuple[Value, Value]:
    """Append the mean of all parts, and the sum of squared distances from it, from those of each part.

    means, squares: of parts of `length` elements, read at `of_part`. over: the dimensions of the results;
    part: that of the parts.
    """
    dtype, red = means.tensor.dtype, dict([part])
    t, columns = TensorType(dtype, tuple(over.values())), tuple(map(Sym, over))
    inner, (m, acc) = scalar_body([dtype] * 2)
    inner.do("scalar.yield", inner.value("scalar.add", m, acc))
    (total,) = structured(
        b, "tensor.reduce", [means], par=over, red=red, reads=[of_part], init=(0.0,),
        body=inner.block((m, acc)), types=[t],
    )  # fmt: skip
    mean = _share(b, total, over, part[1])
    inner, (m, w, whole, acc) = scalar_body([dtype] * 4)
    away = inner.value("scalar.sub", m, whole)
    square = inner.value("scalar.mul", away, away)
    own = inner.value("scalar.fma", square, inner.const(float(length), dtype), w)
    inner.do("scalar.yield", inner.value("scalar.add", own, acc))
    (total_squares,) = structured(
        b, "tensor.reduce", [means, squares, mean], par=over, red=red, reads=[of_part, of_part, columns],
        init=(0.0,), body=inner.block((m, w, whole, acc)), types=[t],
    )  # fmt: skip
    return mean, total_squares


def _share(b: Builder, total: Value, over: Mapping[str, int], parts: int) -> Value:
    """Append a sum divided by the number of its parts."""
    dtype = total.tensor.dtype
    inner, (v,) = scalar_body([dtype])
    inner.do("scalar.yield", inner.value("scalar.div", v, inner.const(float(parts), dtype)))
    (mean,) = structured(
        b, "tensor.map", [total], par=over, reads=[tuple(map(Sym, over))], body=inner.block((v,)),
        types=[total.type],
    )  # fmt: skip
    return mean
