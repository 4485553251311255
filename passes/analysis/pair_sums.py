"""Sums over pairs by what the elements of a kernel are computed from: weights are maps of products of pairs.

The gradients of attention are of this form: with s = q k^T and t = g v^T, which are products of a query and a
key, dq sums w(s, t) k over keys, dk sums w(s, t) q over queries, and dv sums u(s) g over queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import Expr, Op, Sym
from tilewright.ir.tensor.ops import dims
from tilewright.passes.analysis.attention import factors_of
from tilewright.passes.analysis.terms import Reduction, Term, Terms, leaves, names_in, substituted


@dataclass(frozen=True)
class PairProduct:
    """An element `leaf` of weights: the sum over `inner` of a factor of own rows and one of others."""

    leaf: Reduction
    inner: str
    own: Term
    other: Term


@dataclass(frozen=True)
class PairSum:
    """The sum `mixed` over all others of a weight and a factor, which has the dimensions `width`."""

    mixed: Reduction
    weight: Term
    factor: Term
    width: tuple[str, ...]


@dataclass(frozen=True)
class PairSums:
    """Sums over the dimensions `other` for each of `rows` and of `batch`, whose extents are `sizes`."""

    sizes: Mapping[str, int]
    rows: tuple[str, ...]
    other: tuple[str, ...]
    batch: tuple[str, ...]
    products: tuple[PairProduct, ...]
    sums: tuple[PairSum, ...]


def pair_sums(kernel_terms: Sequence[tuple[Terms, Reduction]]) -> PairSums | None:
    """What these sums of products are over the same pairs; None where they are not.

    Each comes with terms over the dimensions of its result, as symbols of their own.
    """
    inner: dict[Op, str] = {}
    found = [_one(terms, mixed, inner) for terms, mixed in kernel_terms]
    if not found or found[0] is None:
        return None
    first = found[0]
    sizes, sums, products = dict(first.sizes), list(first.sums), {p.leaf.op: p for p in first.products}
    for other in found[1:]:
        env = None if other is None else _same_pairs(first, other)
        if other is None or env is None:
            return None
        ranges = {d: (0, n - 1) for d, n in (*first.sizes.items(), *other.sizes.items())}
        (pair,) = other.sums
        sizes |= {d: n for d, n in other.sizes.items() if env.get(d, Sym(d)) == Sym(d)}

        def renamed(
            t: Term, env: Mapping[str, Expr] = env, ranges: dict[str, tuple[int, int]] = ranges
        ) -> Term:
            return substituted(t, env, ranges)

        mixed = renamed(pair.mixed)
        assert isinstance(mixed, Reduction)
        sums.append(PairSum(mixed, renamed(pair.weight), renamed(pair.factor), pair.width))
        for p in other.products:
            leaf = renamed(p.leaf)
            assert isinstance(leaf, Reduction)
            own = products.setdefault(p.leaf.op, PairProduct(leaf, p.inner, renamed(p.own), renamed(p.other)))
            if own.leaf != leaf:
                return None
    return PairSums(sizes, first.rows, first.other, first.batch, tuple(products.values()), tuple(sums))


def _one(terms: Terms, mixed: Reduction, inner: dict[Op, str]) -> PairSums | None:
    """A sum as sums over pairs; inner: names of summed dimensions of products, by op."""
    own = dict(terms.ranges)
    count = sum(n > 1 for n in dims(mixed.op, "red").values())
    others = tuple(f"{next(iter(own), '')}.other.{i}" for i in range(count))
    factors = factors_of(terms, mixed, others)
    if factors is None or not others:
        return None
    made = [f for f in factors if any(isinstance(x, Reduction) for x in leaves(f))]
    if len(made) != 1:
        return None
    weight = made[0]
    value = factors[0] if factors[1] is weight else factors[1]
    products = []
    for leaf in dict.fromkeys(x for x in leaves(weight) if isinstance(x, Reduction)):
        name = inner.setdefault(leaf.op, f"inner.{len(inner)}")
        parts = factors_of(terms, leaf, (name,))
        if parts is None:
            return None
        for a, b in (parts, parts[::-1]):
            if not names_in(a) & set(others) and names_in(b) & set(others):
                products.append(PairProduct(leaf, name, a, b))
                break
        else:
            return None
    if len({p.leaf.op for p in products}) != len(products):
        return None
    from_pairs = names_in(weight).union(*(names_in(t) for p in products for t in (p.own, p.other)))
    from_value = names_in(value)
    rows = tuple(d for d in own if d in from_pairs - from_value)
    width = tuple(d for d in own if d in from_value - from_pairs)
    batch = tuple(d for d in own if d not in rows + width)
    if not rows or not width or any(names_in(p.other) & set(rows) for p in products):
        return None
    if not all(d in from_pairs & from_value or own[d][1] == 0 for d in batch):
        return None
    sizes = {d: high + 1 for d, (_, high) in terms.ranges.items()}
    pair = PairSum(mixed, weight, value, width)
    return PairSums(sizes, rows, others, batch, tuple(products), (pair,))


def _same_pairs(first: PairSums, second: PairSums) -> dict[str, Expr] | None:
    """The dimensions of the second sum's pairs in those of the first; None where the pairs are others."""
    known = {p.leaf.op: p.leaf for p in first.products}
    env: dict[str, Expr] = {}
    for p in second.products:
        place = known.get(p.leaf.op)
        for e, own in zip(p.leaf.at, place.at if place is not None else (), strict=False):
            if isinstance(e, Sym) and isinstance(own, Sym):
                if env.setdefault(e.name, own) != own:
                    return None
            elif e != own:
                return None
    for name in ("rows", "other", "batch"):
        wide = [d for d in getattr(second, name) if second.sizes[d] > 1]
        places = (env.get(d) for d in wide)
        mapped = {place.name for place in places if isinstance(place, Sym)}
        if len(mapped) != len(wide) or mapped != {d for d in getattr(first, name) if first.sizes[d] > 1}:
            return None
    if any(isinstance(e, Sym) and second.sizes[d] != first.sizes[e.name] for d, e in env.items()):
        return None
    inner = {p.inner for p in second.products}
    return {**env, **{d: Sym(d) for d in inner}}
