"""Attention by what the elements of a kernel are computed from: softmax(score) v, its score of q k^T."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.tensor.ops import dims
from tilewright.passes.analysis.terms import (
    Reduction,
    Term,
    Terms,
    applied,
    both_orders,
    leaves,
    names_in,
    number,
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
    total: Reduction
    largest: Reduction | None
    kept: Term | None
    kept_scale: float


@dataclass(frozen=True)
class Softmax:
    """exp(score - largest) / total along KEY, kept where a condition holds: see `Attention`."""

    score: Term
    total: Reduction
    largest: Reduction | None
    kept: Term | None = None
    kept_scale: float = 1.0


def attention_of(terms: Terms, mixed: Reduction) -> Attention | None:
    """The attention whose result is this sum of products; None where it is another sum.

    terms: over the dimensions of the result, all of which are in its ranges.
    """
    sizes = {d: high + 1 for d, (_, high) in terms.ranges.items()}
    factors = factors_of(terms, mixed, (KEY,))
    if factors is None:
        return None
    for weight, value in (factors, factors[::-1]):
        softmax = _dropped_softmax(terms, weight)
        if softmax is not None:
            return _attention(terms, sizes, softmax, value, mixed)
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


def _dropped_softmax(terms: Terms, weight: Term) -> Softmax | None:
    """The softmax that weights are, which dropout may keep or not; None for other terms."""
    choice = applied(weight, "select")
    if choice is None or number(choice[2]) != 0.0:
        return _softmax(terms, weight)
    kept, value, _ = choice
    for one, factor in both_orders(value, "mul"):
        scale = number(factor)
        if scale is not None and (softmax := _softmax(terms, one)) is not None:
            return replace(softmax, kept=kept, kept_scale=scale)
    softmax = _softmax(terms, value)
    return None if softmax is None else replace(softmax, kept=kept)


def _softmax(terms: Terms, weight: Term) -> Softmax | None:
    """What `weight` is the softmax of along KEY, the largest one subtracted or not; else None.

    That is exp(score - largest) / total, or exp(score - (largest + log(total))).
    """
    if (softmax := _by_logarithm(terms, weight)) is not None:
        return softmax
    parts = quotient(weight)
    if parts is None or (power := applied(parts[0], "exp")) is None:
        return None
    total = _along_keys(terms, parts[1], "add")
    if total is None or not terms.same(parts[0], total[1]):
        return None
    if (difference := applied(power[0], "sub")) is None:
        return Softmax(power[0], total[0], None)
    largest = _along_keys(terms, difference[1], "max")
    if largest is None:
        return Softmax(power[0], total[0], None)
    same = terms.same(difference[0], largest[1])
    return Softmax(difference[0], total[0], largest[0]) if same else None


def _by_logarithm(terms: Terms, weight: Term) -> Softmax | None:
    """Softmax as exp(score - (largest + log(total))), which subtracts the logarithm of the sum."""
    power = applied(weight, "exp")
    difference = None if power is None else applied(power[0], "sub")
    if difference is None:
        return None
    score = difference[0]
    for peak, logarithm in both_orders(difference[1], "add"):
        sums = applied(logarithm, "log")
        total = None if sums is None else _along_keys(terms, sums[0], "add")
        largest = _along_keys(terms, peak, "max")
        if total is None or largest is None or not terms.same(largest[1], score):
            continue
        inner = applied(total[1], "exp")
        shifted = None if inner is None else applied(inner[0], "sub")
        if shifted is None or not terms.same(shifted[0], score) or not terms.same(shifted[1], largest[0]):
            continue
        return Softmax(score, total[0], largest[0])
    return None


def _along_keys(terms: Terms, term: Term, kind: str) -> tuple[Reduction, Term] | None:
    """A sum or maximum over the keys, and the term that it is of; None for anything else."""
    inner = peeled(term)
    if not isinstance(inner, Reduction):
        return None
    fold = terms.folded(inner, (KEY,))
    return (inner, fold.of) if fold is not None and fold.kind == kind else None


def _attention(
    terms: Terms, sizes: Mapping[str, int], softmax: Softmax, v: Term, mixed: Reduction
) -> Attention | None:
    score = softmax.score
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
    if softmax.kept is not None and names_in(softmax.kept) & set(width):
        return None
    return Attention(
        extents, rows, width, batch, summed, q, k, v, score, product, mixed,
        softmax.total, softmax.largest, softmax.kept, softmax.kept_scale,
    )  # fmt: skip


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
