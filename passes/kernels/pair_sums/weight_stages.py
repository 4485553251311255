"""How the weights of pairs are computed in stages: what one product alone determines comes before the others.

Of attention that is exp(score - logarithm): it is computed while another product is still multiplied, it is
the weight of one sum and a part of the weight of another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import e as euler
from math import log2

import numpy as np

from tilewright.ir.types import ScalarType
from tilewright.passes.analysis.position_masks import positional
from tilewright.passes.analysis.terms import Apply, Read, Reduction, Term, leaves
from tilewright.passes.kernels.pair_sums.view import PairView
from tilewright.passes.kernels.term_factors import times

#: powers of two without rare cases, as an op of a thread
POWER = "thread.power"
_F32 = ScalarType("f32")


@dataclass(frozen=True)
class WeightStages:
    """The weights of all sums as terms over products, and what is computed first.

    first: the product that is multiplied first. part: the term that depends on it alone and through which
    alone weights do; None where there is none. early: sums whose weights need no other product. whole: the
    same of tiles all of whose pairs count, where positions decide nothing; None where they never do.
    """

    weights: tuple[Term, ...]
    first: int
    part: Term | None
    early: tuple[int, ...]
    whole: WeightStages | None = None


def weight_stages(
    view: PairView, weights: Sequence[Term], limits: tuple[int, int] | None = None
) -> WeightStages:
    """The stages of the weights of a kernel; limits: the band of pairs that count, if positions decide."""
    stages = _stages(view, weights)
    if limits is None:
        return stages
    row, other = view.rows[-1], view.other[-1]
    own_at, other_at = np.arange(view.sizes[row])[:, None], np.arange(view.sizes[other])[None, :]
    counted = (other_at - own_at >= limits[0]) & (other_at - own_at <= limits[1])
    env: dict[str, np.ndarray | int] = {row: own_at, other: other_at}
    whole = [_settled(w, env, counted) for w in stages.weights]
    if tuple(whole) == stages.weights:
        return stages
    part = None if stages.part is None else _settled(stages.part, env, counted)
    return replace(stages, whole=WeightStages(tuple(whole), stages.first, part, stages.early))


def _settled(term: Term, env: Mapping[str, np.ndarray | int], counted: np.ndarray) -> Term:
    """The term at the counted places: what positions decide alike at all of them is decided."""
    if not isinstance(term, Apply):
        return term
    if term.type.dtype == "bool" and (known := positional(term, env)) is not None:
        values = np.broadcast_to(known, counted.shape)[counted]
        if values.all() or not values.any():
            return Apply("scalar.const", (("value", bool(values.all())), ("dtype", "bool")), term.type, ())
    args = tuple(_settled(a, env, counted) for a in term.args)
    if term.name == "scalar.select" and (chosen := _truth(args[0])) is not None:
        return args[1] if chosen else args[2]
    return replace(term, args=args)


def _truth(term: Term) -> bool | None:
    """The truth value that a constant is given as; None for other terms."""
    constant = isinstance(term, Apply) and term.name == "scalar.const" and term.type.dtype == "bool"
    return bool(dict(term.attrs)["value"]) if constant and isinstance(term, Apply) else None


def _stages(view: PairView, weights: Sequence[Term]) -> WeightStages:
    written = tuple(_in_powers_of_two(w) for w in weights)
    if len(view.products) == 1:
        return WeightStages(written, 0, None, ())
    found = [(i, part) for i, p in enumerate(view.products) if (part := _part(written, p.leaf)) is not None]
    if not found:
        return WeightStages(written, 0, None, ())
    first, part = max(found, key=lambda f: _size(f[1]))
    early = tuple(i for i, w in enumerate(written) if not list(_products_beside(w, part)))
    return WeightStages(written, first, part, early)


def _in_powers_of_two(term: Term) -> Term:
    """The term with exp(x) as a power of two: the factor log2(e) goes to where numbers of rows are read."""
    if not isinstance(term, Apply):
        return term
    args = tuple(map(_in_powers_of_two, term.args))
    if term.name == "scalar.exp" and term.type == _F32:
        return Apply(POWER, (), _F32, (times(args[0], log2(euler)),))
    if term.name == "scalar.exp2" and term.type == _F32:
        return replace(term, name=POWER, args=args)
    return replace(term, args=args)


def _part(weights: Sequence[Term], leaf: Reduction) -> Term | None:
    """The largest term over one product and no other, without which no weight would depend on it."""
    found = {t for w in weights for t in _inner(w) if set(_products(t)) == {leaf}}
    for term in sorted(found, key=_size, reverse=True):
        if term.type == _F32 and all(_only_through(w, term, leaf) for w in weights):
            return term
    return None


def _inner(term: Term) -> Iterator[Apply]:
    if isinstance(term, Apply):
        yield term
        for a in term.args:
            yield from _inner(a)


def _products(term: Term) -> Iterator[Reduction]:
    return (x for x in leaves(term) if isinstance(x, Reduction))


def _products_beside(term: Term, part: Term) -> Iterator[Reduction]:
    """Products that a term depends on beside those of a part of it."""
    if term == part:
        return
    if isinstance(term, Apply):
        for a in term.args:
            yield from _products_beside(a, part)
    else:
        yield from _products(term)


def _only_through(term: Term, part: Term, leaf: Reduction) -> bool:
    return leaf not in _products_beside(term, part)


def _size(term: Term) -> int:
    return sum(1 for _ in _inner(term))


def columns_read(terms: Sequence[Term], reads: Sequence[Read]) -> tuple[Read, ...]:
    """Which of these numbers terms depend on."""
    used = {x for t in terms for x in leaves(t)}
    return tuple(r for r in reads if r in used)
