"""Attention by what the elements of a kernel are computed from: softmax(score) v, its score of q k^T."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.tensor.ops import dims
from tilewright.passes.analysis.terms import (
    Reduction,
    Term,
    Terms,
    applied,
    leaves,
    names_in,
    peeled,
    quotient,
)

#: names of the dimension of the keys, and of those that scores are summed over (further ones get a number)
KEY, INNER = "attention.key", "attention.inner"


@dataclass(frozen=True)
class Attention:
    """The sum of softmax(score) v over the keys, where `score` is a term of the product of q and k.

    All terms are over the dimensions of the result (`rows` of queries, `width` of values, `batch` of both),
    KEY and `summed`, whose extents are `sizes`. product: the leaf of `score` that is summed over q k;
    mixed: the sum of weights and values.
    """

    sizes: Mapping[str, int]
    rows: tuple[str, ...]
    width: tuple[str, ...]
    batch: tuple[str, ...]
    summed: tuple[str, ...]
    q: Term
    k: Term
    v: Term
    score: Term
    product: Reduction
    mixed: Reduction


def attention_of(terms: Terms, mixed: Reduction) -> Attention | None:
    """The attention whose result is this sum of products; None where it is another sum.

    terms: over the dimensions of the result, all of which are in its ranges.
    """
    sizes = {d: high + 1 for d, (_, high) in terms.ranges.items()}
    factors = factors_of(terms, mixed, (KEY,))
    if factors is None:
        return None
    for weight, value in (factors, factors[::-1]):
        score = _softmax_argument(terms, weight)
        if score is not None:
            return _attention(terms, sizes, score, value, mixed)
    return None


def factors_of(terms: Terms, reduction: Reduction, names: Sequence[str]) -> tuple[Term, Term] | None:
    """Both operands of a sum of products over dimensions of these names; None for another reduction.

    The products are those of the operands as they are, in whatever floating type.
    """
    fold = terms.folded(reduction, names)
    factors = None if fold is None or fold.kind != "add" else applied(fold.of, "mul")
    operands = None if factors is None else terms.operands(reduction, names)
    if factors is None or operands is None or len(operands) != 2:
        return None
    for a, b in (factors, factors[::-1]):
        if terms.same(a, operands[0]) and terms.same(b, operands[1]):
            return operands[0], operands[1]
    return None


def _softmax_argument(terms: Terms, weight: Term) -> Term | None:
    """The term that `weight` is the softmax of along KEY, the largest one subtracted or not; else None."""
    parts = quotient(weight)
    if parts is None or (power := applied(parts[0], "exp")) is None:
        return None
    total = _along_keys(terms, parts[1], "add")
    if total is None or not terms.same(parts[0], total):
        return None
    if (difference := applied(power[0], "sub")) is None:
        return power[0]
    largest = _along_keys(terms, difference[1], "max")
    if largest is None:
        return power[0]
    return difference[0] if terms.same(difference[0], largest) else None


def _along_keys(terms: Terms, term: Term, kind: str) -> Term | None:
    """The term that a sum or maximum over the keys is of; None for anything else."""
    inner = peeled(term)
    fold = terms.folded(inner, (KEY,)) if isinstance(inner, Reduction) else None
    return fold.of if fold is not None and fold.kind == kind else None


def _attention(
    terms: Terms, sizes: Mapping[str, int], score: Term, v: Term, mixed: Reduction
) -> Attention | None:
    products = [p for x in dict.fromkeys(leaves(score)) if (p := _product(terms, x)) is not None]
    if len(products) != 1:
        return None
    ((product, summed, q, k),) = products
    from_values, from_queries = names_in(v) - {KEY}, (names_in(score) | names_in(q)) - {KEY, *summed}
    rows = tuple(d for d in sizes if d in from_queries - from_values)
    width = tuple(d for d in sizes if d in from_values - from_queries)
    batch = tuple(d for d in sizes if d not in rows + width)
    if not all(d in from_queries & from_values or sizes[d] == 1 for d in batch):
        return None
    if names_in(k) & {*rows, *width}:
        return None
    extents = {d: terms.ranges[d][1] + 1 for d in (*sizes, KEY, *summed)}
    return Attention(extents, rows, width, batch, summed, q, k, v, score, product, mixed)


def _product(terms: Terms, leaf: Term) -> tuple[Reduction, tuple[str, ...], Term, Term] | None:
    """A leaf of scores as a sum of products of queries and keys, the dimensions of the sum, queries, keys."""
    if not isinstance(leaf, Reduction):
        return None
    count = sum(n > 1 for n in dims(leaf.op, "red").values())
    summed = (INNER, *(f"{INNER}.{i}" for i in range(1, count)))[:count]
    factors = factors_of(terms, leaf, summed)
    if factors is None:
        return None
    keyed = [KEY in names_in(f) for f in factors]
    if keyed not in ([False, True], [True, False]):
        return None
    q, k = factors if keyed[1] else factors[::-1]
    return leaf, summed, q, k
