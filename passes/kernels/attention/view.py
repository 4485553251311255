"""Attention as one kernel on tensor cores: what a kernel must be for the attention template to take it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, isfinite, prod

import numpy as np

from tilewright.ir import Expr, Func, ScalarType, Sym, Value
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, fills
from tilewright.ir.types import FLOAT8, storage_dtype
from tilewright.passes.analysis.attention import INNER, KEY, Attention, attention_of
from tilewright.passes.analysis.position_masks import HIDDEN, MOST_PAIRS, hidden_at
from tilewright.passes.analysis.terms import (
    Apply,
    Position,
    Read,
    Reduction,
    Term,
    Terms,
    applied,
    both_orders,
    constant,
    leaves,
    peeled,
    replaced,
    substituted,
)
from tilewright.passes.kernels.matrix.view import EXACT, multiplies, on_tensor_cores
from tilewright.passes.kernels.term_factors import times

_F32 = ScalarType("f32")


@dataclass(frozen=True)
class Output:
    """A result of the kernel: its element at `at`, over the dimensions of the mix or others of extent 1."""

    value: Value
    term: Term
    at: tuple[Expr, ...]


@dataclass(frozen=True)
class AttentionView(Attention):
    """softmax(scale * score) v as all that a kernel computes, with factors of one type.

    The dimensions of the result are those of the second contraction; `score` is without `scale`.
    lse: results that hold the logarithms of the sums of exp(scale * score), indexed by rows and batch.
    """

    dtype: str
    scale: float
    outputs: tuple[Output, ...]
    lse: tuple[Output, ...]

    def size(self, names: tuple[str, ...]) -> int:
        """Product of the extents of dimensions."""
        return prod(self.sizes[d] for d in names)

    @property
    def keys(self) -> int:
        return self.sizes[KEY]

    @property
    def inner(self) -> int:
        return self.sizes[INNER]

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        return {d: (0, n - 1) for d, n in self.sizes.items()}

    @property
    def score_reads(self) -> tuple[Read, ...]:
        """Elements of parameters, each once, that scores depend on beside their product."""
        return tuple(dict.fromkeys(x for x in leaves(self.score) if isinstance(x, Read)))

    @property
    def dropped(self) -> Term:
        """A weight, written as `product`, or zero where dropout takes it away; without the factor."""
        if self.kept is None:
            return self.product
        zero = constant(0.0)
        return Apply("scalar.select", (), _F32, (self.kept, self.product, zero))

    @property
    def kept_reads(self) -> tuple[Read, ...]:
        """Elements of parameters, each once, that decide which weights are kept."""
        terms = () if self.kept is None else leaves(self.kept)
        return tuple(dict.fromkeys(x for x in terms if isinstance(x, Read)))


def attention_view(kernel: Func) -> AttentionView | None:
    """The kernel as attention; None where it is none, or tensor cores do not take its factors."""
    ops = kernel.body.ops[:-1]
    contracts = [op for op in ops if op.name == "tensor.contract"]
    reductions = [op for op in ops if op.name == "tensor.reduce"]
    maps = [op for op in ops if op.name == "tensor.map"]
    if (len(contracts), len(reductions)) != (2, 2) or len(ops) - 4 != len(maps):
        return None
    mix = contracts[1]
    dtype = mix.operands[0].tensor.dtype
    if any(v.tensor.dtype != dtype for op in contracts for v in op.operands):
        return None
    for op in contracts:
        unfilled = len(op.operands) == 2 and all(f is None for f in fills(op))
        if not unfilled or dtype in (*EXACT, *FLOAT8) or not multiplies(op) or not on_tensor_cores(op):
            return None
    par = dims(mix, "par")
    terms = Terms(kernel, {d: (0, n - 1) for d, n in par.items()})
    match = attention_of(terms, Reduction(mix, tuple(Sym(d) if n > 1 else 0 for d, n in par.items())))
    if match is None or match.product.op is not contracts[0] or match.summed != (INNER,):
        return None
    if not match.rows or not match.width or not _is_alone(kernel, match):
        return None
    outputs = _outputs(kernel, match, terms)
    if outputs is None:
        return None
    factors, moved = _unscaled_factors(match, dtype)
    scale, score = without_scale(moved)
    mixes, sums = outputs
    fields = vars(match) | factors
    fields |= {"score": score, "dtype": dtype, "scale": scale, "outputs": mixes, "lse": sums}
    return AttentionView(**fields)


def _unscaled_factors(match: Attention, dtype: str) -> tuple[dict[str, Term], Term]:
    """Queries and keys without the constants they are multiplied by, and the score that has these.

    rewrite:  (0.35 q) (0.35 k)   -->   0.1225 (q k)

    Sums are in float32, so they hold what is not scaled before. What is left is an element of a parameter:
    the copy engine brings it, where a product of it would pass through registers.
    """
    factors, scale = {"q": match.q, "k": match.k}, 1.0
    for name, term in factors.items():
        number, rest = _taken(term)
        inner = peeled(rest)
        if isfinite(number) and isinstance(inner, Read) and inner.value.tensor.dtype == dtype:
            factors[name], scale = inner, scale * number
    if scale == 1.0:
        return factors, match.score
    return factors, replaced(match.score, match.product, times(match.product, scale))


def _is_alone(kernel: Func, match: Attention) -> bool:
    """True where all but the product is computed from parameters of the kernel."""
    terms = [t for t in (match.q, match.k, match.v, match.score, match.kept) if t is not None]
    sources = [x for t in terms for x in leaves(t) if x != match.product]
    return all(isinstance(x, Position) or (isinstance(x, Read) and x.value in kernel.params) for x in sources)


def _outputs(
    kernel: Func, match: Attention, terms: Terms
) -> tuple[tuple[Output, ...], tuple[Output, ...]] | None:
    """The results as terms over the dimensions of the mix, and those that are logarithms of sums; None where
    one is neither a map of the mix nor such logarithms, or none is a map of the mix.
    """
    outputs, sums = [], []
    for v in kernel.body.ops[-1].operands:
        names = [f"out.{i}" for i in range(len(v.tensor.shape))]
        ranges = {n: (0, size - 1) for n, size in zip(names, v.tensor.shape, strict=True)}
        term = Terms(kernel, ranges).element(v, tuple(Sym(n) for n in names))
        places = {x for x in leaves(term) if isinstance(x, Reduction)}
        read = {x.value for x in leaves(term) if isinstance(x, Read)}
        if not read <= set(kernel.params):
            return None
        total = next((x for x in places if x.op is match.total.op), None)
        place, whole = (total, match.total) if total is not None else (next(iter(places), None), match.mixed)
        if place is None or place.op is not whole.op:
            return None
        env = _inverse(place, whole, match.sizes, ranges)
        if env is None:
            return None
        at = tuple(simplify(env[n], terms.ranges) for n in names)
        output = Output(v, substituted(term, env, terms.ranges), at)
        if total is not None and _is_lse(output.term, match) and v.tensor.dtype == "f32":
            sums.append(output)
        elif len(places) == 1 and total is None:
            outputs.append(output)
        else:
            return None
    return (tuple(outputs), tuple(sums)) if outputs else None


def _is_lse(term: Term, match: Attention) -> bool:
    """Return whether a term is largest + log(total)."""
    if match.largest is None:
        return applied(term, "log") == (match.total,)
    sums = both_orders(term, "add")
    return any(a == match.largest and applied(b, "log") == (match.total,) for a, b in sums)


def _inverse(
    place: Reduction, whole: Reduction, sizes: Mapping[str, int], ranges: Mapping[str, tuple[int, int]]
) -> dict[str, Expr] | None:
    """The dimensions of a result in those of the mix; None where they are not the same in some order.

    place, whole: an element of the same reduction, in the dimensions of the result and in those of the mix,
    whose extents are `sizes`.
    """
    env: dict[str, Expr] = {n: 0 for n, (_, high) in ranges.items() if high == 0}
    for e, own in zip(place.at, whole.at, strict=True):
        if e == own == 0:
            continue
        if not isinstance(own, Sym) or not isinstance(e, Sym) or e.name in env:
            return None
        if ranges[e.name][1] != sizes[own.name] - 1:
            return None
        env[e.name] = own
    return env if set(env) == set(ranges) else None


def without_scale(score: Term) -> tuple[float, Term]:
    """`scale`, and the term that times `scale` is the score.

    rewrite:  product * 0.125 + (k <= q ? 0 : -inf)   -->   0.125, (k <= q ? product : -inf)
    rewrite:  (k <= q ? product * 0.125 : -1e30)      -->   0.125, (k <= q ? product : -8e30)

    Softmax is that of the score, whatever it is: what is minus infinity stays so under a positive scale, and
    another number that hides becomes one that times the scale is the same number again.
    """
    scale, term = _taken(score)
    return (scale, term) if isfinite(scale) and scale > 0 else (1.0, score)


def _taken(term: Term) -> tuple[float, Term]:
    inner = peeled(term)
    if isinstance(inner, Apply):
        first, *others = inner.args or (inner,)
        if inner.name == "scalar.mul":
            for one, other in ((first, others[0]), (others[0], first)):
                number = _number(other)
                if number is not None and number > 0:
                    scale, rest = _taken(one)
                    return scale * number, rest
        if inner.name == "scalar.div" and (_number(others[0]) or 0.0) > 0:
            scale, rest = _taken(first)
            return scale / (_number(others[0]) or 1.0), rest
        if inner.name == "scalar.select" and (value := _number(others[1])) is not None:
            scale, hiding = _hidden_where(first, others[0], value)
            return (1.0, term) if hiding is None else (scale, hiding)
        if inner.name == "scalar.add":
            for one, other in ((first, others[0]), (others[0], first)):
                mask = peeled(other)
                if isinstance(mask, Apply) and mask.name == "scalar.select":
                    seen, shown, hidden = mask.args
                    if _number(shown) == 0.0 and _number(hidden) == -inf:
                        scale, hiding = _hidden_where(seen, one, -inf)
                        return (1.0, term) if hiding is None else (scale, hiding)
    return (1.0, inner) if isinstance(inner, Reduction) else (1.0, term)


def _hidden_where(seen: Term, score: Term, hidden: float) -> tuple[float, Term | None]:
    """The scale of a score that is `hidden` where it is not seen, and the rest of it in float32; None where
    there is no such rest.
    """
    scale, rest = _taken(score)
    value = _before_scale(hidden, scale)
    if value is None:
        return 1.0, None
    if not isinstance(rest, Reduction) and not (isinstance(rest, Apply) and rest.type == _F32):
        rest = Apply("scalar.cast", (("dtype", "f32"),), _F32, (rest,))
    return scale, Apply("scalar.select", (), _F32, (seen, rest, constant(value)))


def _before_scale(hidden: float, scale: float) -> float | None:
    """A float32 that hides and that times the scale, in float32, is `hidden`; None where there is none.

    Rows without any key that is seen have `hidden` as their largest score: gradients compare it with theirs.
    """
    if hidden == -inf:
        return hidden
    if hidden > HIDDEN or not scale > 0:
        return None
    with np.errstate(over="ignore"):
        nearest, factor = np.float32(hidden / scale), np.float32(scale)
        near = (nearest, np.nextafter(nearest, np.float32(-inf)), np.nextafter(nearest, np.float32(0)))
        found = [x for x in near if np.isfinite(x) and x <= HIDDEN and x * factor == np.float32(hidden)]
    return float(found[0]) if found else None


def _number(term: Term) -> float | None:
    """The number that a constant holds in its type."""
    inner = peeled(term)
    if not isinstance(inner, Apply) or inner.name != "scalar.const":
        return None
    value = dict(inner.attrs)["value"]
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(storage_dtype(inner.type.dtype)))


def reach(view: AttentionView) -> int | None:
    """The largest key - query that counts; None where positions hide no key, or queries are no one dimension.

    Keys after a query's position plus this have scores that are chosen as, or had added, a number of at most
    `HIDDEN`, whatever the parameters of the kernel hold.
    """
    wide = [d for d in view.rows if view.sizes[d] > 1]
    if len(wide) != 1 or not any(isinstance(x, Position) for x in leaves(view.score)):
        return None
    queries = view.sizes[wide[0]]
    if queries * view.keys > MOST_PAIRS:
        return None
    row, key = np.arange(queries)[:, None], np.arange(view.keys)[None, :]
    env: dict[str, np.ndarray | int] = {**dict.fromkeys(view.rows, 0), wide[0]: row, KEY: key}
    hidden = np.broadcast_to(hidden_at(view.score, env), (queries, view.keys))
    if hidden.all(axis=1).any():  # such a row is not a number, or the mean of all values
        return None
    furthest = int(np.where(hidden, -queries, key - row).max())
    return furthest if furthest < view.keys - 1 else None
