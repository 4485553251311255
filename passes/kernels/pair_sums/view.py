"""Sums over pairs as one kernel on tensor cores: what a kernel must be for the template to take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from tilewright.ir import Expr, Func, Sym
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, fills
from tilewright.passes.analysis.pair_sums import PairSum, PairSums, pair_sums
from tilewright.passes.analysis.position_masks import MOST_PAIRS, zero_at
from tilewright.passes.analysis.terms import (
    FLOATS,
    Position,
    Read,
    Reduction,
    Term,
    Terms,
    leaves,
    peeled,
    replaced,
    substituted,
)
from tilewright.passes.kernels.attention.epilogue import ResultTile
from tilewright.passes.kernels.attention.view import Output
from tilewright.passes.kernels.matrix.view import multiplies, on_tensor_cores
from tilewright.passes.kernels.term_factors import constant_factor, times

#: factors up to this, and down to its inverse, leave the weights of a sum
MOST_FACTOR = 64


@dataclass(frozen=True)
class PairView(PairSums):
    """Sums over pairs as all that a kernel computes, with factors of one type."""

    dtype: str
    #: results of each sum
    outputs: tuple[tuple[Output, ...], ...]

    def size(self, names: tuple[str, ...]) -> int:
        """Product of the extents of dimensions."""
        return prod(self.sizes[d] for d in names)

    @property
    def own(self) -> int:
        """Rows of one batch."""
        return self.size(self.rows)

    @property
    def others(self) -> int:
        """Members of the other side of one batch."""
        return self.size(self.other)

    @property
    def reads(self) -> tuple[Read, ...]:
        """Elements of parameters, each once, that weights depend on beside their products."""
        found = (x for s in self.sums for x in leaves(s.weight) if isinstance(x, Read))
        return tuple(dict.fromkeys(found))

    def result(self, index: int) -> ResultTile:
        """The results of one sum."""
        pair = self.sums[index]
        return ResultTile(self.sizes, self.rows, pair.width, pair.mixed, self.outputs[index])

    def shared_with(self, pair: PairSum) -> int | None:
        """The product whose factor of the other side is this sum's, its width in place of the inner one."""
        for i, p in enumerate(self.products):
            wide = [d for d in pair.width if self.sizes[d] > 1]
            if len(wide) != 1 or self.sizes[wide[0]] != self.sizes[p.inner]:
                continue
            ranges = {d: (0, n - 1) for d, n in self.sizes.items()}
            if substituted(p.other, {p.inner: Sym(wide[0])}, ranges) == pair.factor:
                return i
        return None


def pair_view(kernel: Func) -> PairView | None:
    """The kernel as sums over pairs; None where it is none, or tensor cores do not take its factors."""
    ops = kernel.body.ops[:-1]
    contracts = [op for op in ops if op.name == "tensor.contract"]
    if len(contracts) < 2 or any(op.name not in ("tensor.contract", "tensor.map") for op in ops):
        return None
    dtype = contracts[0].operands[0].tensor.dtype
    if dtype not in FLOATS:
        return None
    for op in contracts:
        unfilled = len(op.operands) == 2 and all(f is None for f in fills(op))
        alike = all(v.tensor.dtype == dtype for v in op.operands)
        if not unfilled or not alike or not multiplies(op) or not on_tensor_cores(op):
            return None
    found: list[tuple[Terms, Reduction, list[Output]]] = []
    for v in kernel.body.ops[-1].operands:
        names = [f"out.{i}" for i in range(len(v.tensor.shape))]
        ranges = {n: (0, size - 1) for n, size in zip(names, v.tensor.shape, strict=True)}
        term = Terms(kernel, ranges).element(v, tuple(map(Sym, names)))
        places = {x for x in leaves(term) if isinstance(x, Reduction)}
        if len(places) != 1 or not {x.value for x in leaves(term) if isinstance(x, Read)} <= set(
            kernel.params
        ):
            return None
        (place,) = places
        terms, mixed, outputs = next((f for f in found if f[1].op is place.op), (None, None, []))
        if terms is None or mixed is None:
            prefix = f"s{len(found)}."
            par = {f"{prefix}{d}": n for d, n in dims(place.op, "par").items()}
            terms = Terms(kernel, {d: (0, n - 1) for d, n in par.items()})
            mixed = Reduction(place.op, tuple(Sym(d) if n > 1 else 0 for d, n in par.items()))
            found.append((terms, mixed, outputs))
        env: dict[str, Expr] = {n: 0 for n, (_, high) in ranges.items() if high == 0}
        for e, own in zip(place.at, mixed.at, strict=True):
            if e == own == 0:
                continue
            if not isinstance(own, Sym) or not isinstance(e, Sym) or e.name in env:
                return None
            env[e.name] = own
        if set(env) != set(names):
            return None
        at = tuple(simplify(env[n], terms.ranges) for n in names)
        outputs.append(Output(v, substituted(term, env, terms.ranges), at))
    sums = pair_sums([(terms, mixed) for terms, mixed, _ in found])
    if sums is None or len(sums.sums) > len(sums.products):
        return None
    outputs_of = [tuple(found[0][2])]
    for (_, mixed, outputs), pair in zip(found[1:], sums.sums[1:], strict=True):
        renamed = {
            e.name: own
            for e, own in zip(mixed.at, pair.mixed.at, strict=True)
            if isinstance(e, Sym) and isinstance(own, Sym)
        }
        ranges = {d: (0, n - 1) for d, n in sums.sizes.items()}
        outputs_of.append(tuple(
            Output(o.value, substituted(o.term, renamed, ranges),
                   tuple(simplify(_put(e, renamed), ranges) for e in o.at))
            for o in outputs
        ))  # fmt: skip
    view = PairView(**vars(sums), dtype=dtype, outputs=tuple(outputs_of))
    return _unscaled(view) if _is_alone(kernel, view, len(contracts)) else None


def _unscaled(view: PairView) -> PairView:
    """The view with constant factors of weights, which all pairs have in common, in the maps of the results.

    rewrite:  sum(0.125 w f)   -->   0.125 sum(w f)

    Weights are rounded to the type of the factors: constants far from 1 stay, for the sake of its range.
    """
    sums, outputs_of = [], []
    for pair, outputs in zip(view.sums, view.outputs, strict=True):
        factor, weight = constant_factor(peeled(pair.weight))
        if factor == 1.0 or not 1 <= abs(factor) * MOST_FACTOR <= MOST_FACTOR**2:
            sums.append(pair)
            outputs_of.append(outputs)
            continue
        sums.append(replace(pair, weight=weight))
        scaled = times(pair.mixed, factor)
        outputs_of.append(tuple(replace(o, term=replaced(o.term, pair.mixed, scaled)) for o in outputs))
    return replace(view, sums=tuple(sums), outputs=tuple(outputs_of))


def _put(e: Expr, env: Mapping[str, Expr]) -> Expr:
    return env.get(e.name, e) if isinstance(e, Sym) else e


def _is_alone(kernel: Func, view: PairView, contracts: int) -> bool:
    """True where all but products and sums is computed from parameters of the kernel, and nothing else is."""
    if len(view.products) + len(view.sums) != contracts:
        return False
    known = {p.leaf for p in view.products}
    terms: list[Term] = [t for p in view.products for t in (p.own, p.other)]
    terms += [t for s in view.sums for t in (s.weight, s.factor)]
    found = [x for t in terms for x in leaves(t) if x not in known]
    return all(isinstance(x, Position) or (isinstance(x, Read) and x.value in kernel.params) for x in found)


def band(view: PairView) -> tuple[int, int] | None:
    """The least and the largest other - own that counts; None where positions take away no pair.

    Pairs further apart have weights that are zero whatever the parameters of the kernel hold. own and other
    are numbers in the last dimensions of the two sides, whose further dimensions do not matter.
    """
    row, other = view.rows[-1], view.other[-1]
    if not any(isinstance(x, Position) for s in view.sums for x in leaves(s.weight)):
        return None
    rows, others = view.sizes[row], view.sizes[other]
    if rows * others > MOST_PAIRS:
        return None
    own_at, other_at = np.arange(rows)[:, None], np.arange(others)[None, :]
    env: dict[str, np.ndarray | int] = {row: own_at, other: other_at}
    hidden = np.ones((rows, others), dtype=bool)
    for s in view.sums:
        hidden &= np.broadcast_to(zero_at(s.weight, env), (rows, others))
    if not hidden.any() or hidden.all():
        return None
    apart = (other_at - own_at)[~hidden]
    return int(apart.min()), int(apart.max())
