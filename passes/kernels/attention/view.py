"""Attention in a kernel of several ops: scores of queries and keys, softmax along keys, a mix of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilewright.ir import Expr, Func, Op, Sym, UnsupportedError, Value
from tilewright.ir.expr import substitute
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.passes.kernels.attention.scale import without_scale
from tilewright.passes.kernels.attention.terms import (
    Apply,
    Read,
    Reduction,
    Term,
    Terms,
    is_number,
    leaves,
    names_in,
    peeled,
)
from tilewright.passes.kernels.matrix.plan import multiplies, on_tensor_cores
from tilewright.passes.kernels.rows.lowering import combiner

#: names of the dimension of the keys, and of the one that scores are summed over
KEY, INNER = "attention.key", "attention.inner"


@dataclass(frozen=True)
class Output:
    """A result of the kernel: its element at `dims`, the dimensions of the mix or others of extent 1."""

    value: Value
    term: Term
    at: tuple[Expr, ...]


@dataclass(frozen=True)
class AttentionView:
    """softmax(scale * score) v, where `score` is a term of the product of q and k.

    All terms are over the dimensions of the mix (`rows` of queries, `width` of values, `batch`), KEY and
    INNER; `product` is the leaf of `score` that the first contraction gives, `mixed` that of the outputs
    which the second gives.
    """

    sizes: Mapping[str, int]
    rows: tuple[str, ...]
    width: tuple[str, ...]
    batch: tuple[str, ...]
    dtype: str
    q: Term
    k: Term
    v: Term
    score: Term
    scale: float
    product: Reduction
    mixed: Reduction
    outputs: tuple[Output, ...]

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
        found = dict.fromkeys(x for x in leaves(self.score) if isinstance(x, Read))
        return tuple(found)


def attention_view(kernel: Func) -> AttentionView | None:
    """The kernel as attention; None where it is none, or tensor cores do not take its factors."""
    ops = kernel.body.ops[:-1]
    contracts = [op for op in ops if op.name == "tensor.contract"]
    folds = [op for op in ops if op.name == "tensor.reduce"]
    if len(contracts) != 2 or len(folds) != 2 or len(ops) - 4 != sum(op.name == "tensor.map" for op in ops):
        return None
    try:
        return _Match(kernel, *contracts).found()
    except UnsupportedError:
        return None


class _Match:
    def __init__(self, kernel: Func, scores: Op, mix: Op) -> None:
        self.kernel, self.scores, self.mix = kernel, scores, mix
        self.par = dims(mix, "par")
        self.sizes = dict(self.par)
        for name, op in ((KEY, mix), (INNER, scores)):
            self.sizes[name] = prod(dims(op, "red").values())
        self.terms = Terms(kernel, {d: (0, n - 1) for d, n in self.sizes.items()})

    def found(self) -> AttentionView | None:
        if not all(_is_product(op) for op in (self.scores, self.mix)):
            return None
        env: dict[str, Expr] = {d: Sym(d) for d in self.par}
        factors = self._factors(self.mix, env, KEY)
        for weight, value in (factors, factors[::-1]):
            score = self._score(weight)
            if score is not None:
                return self._view(score, value)
        return None

    def _factors(self, op: Op, env: Mapping[str, Expr], along: str) -> tuple[Term, Term]:
        """Both factors of a product at a point, the summed dimension being `along`."""
        summed = {d: (Sym(along) if n > 1 else 0) for d, n in dims(op, "red").items()}
        at = {**env, **summed}
        a, b = (
            self.terms.element(v, tuple(substitute(e, at) for e in index))
            for v, index in zip(op.operands, reads(op), strict=True)
        )
        return a, b

    def _score(self, weight: Term) -> Term | None:
        """What `weight` is the softmax of along KEY; None where it is none."""
        parts = _quotient(peeled(weight))
        if parts is None:
            return None
        above, below = map(peeled, parts)
        if not isinstance(above, Apply) or above.name != "scalar.exp" or self._folded(below, "add") != above:
            return None
        apart = peeled(above.args[0])
        if not isinstance(apart, Apply) or apart.name != "scalar.sub":
            return None
        score, largest = apart.args
        return score if self._folded(peeled(largest), "max") == peeled(score) else None

    def _folded(self, term: Term, kind: str) -> Term | None:
        """What a reduction over KEY adds up or takes the largest of; None for anything else."""
        if not isinstance(term, Reduction) or term.op.name != "tensor.reduce":
            return None
        op = term.op
        wide = [d for d, n in dims(op, "red").items() if n > 1]
        init: object = op["init"]
        if combiner(op) != f"scalar.{kind}" or len(wide) != 1 or dims(op, "red")[wide[0]] != self.sizes[KEY]:
            return None
        if kind == "add" and init != (0.0,):
            return None
        assert op.body is not None
        if op.body.ops[-2].name == "scalar.fma":
            return None
        env: dict[str, Expr] = dict(zip(dims(op, "par"), term.at, strict=True))
        env |= {d: (Sym(KEY) if d in wide else 0) for d in dims(op, "red")}
        (inside,) = self.terms.body(op, env)
        return peeled(inside)

    def _view(self, score: Term, value: Term) -> AttentionView | None:
        products = {x for x in leaves(score) if isinstance(x, Reduction)}
        if len(products) != 1:
            return None
        (product,) = products
        if product.op is not self.scores:
            return None
        env = dict(zip(dims(self.scores, "par"), product.at, strict=True))
        factors = self._factors(self.scores, env, INNER)
        keyed = [KEY in names_in(f) for f in factors]
        if keyed not in ([False, True], [True, False]):
            return None
        q, k = factors if keyed[1] else factors[::-1]
        given, queried = names_in(value) - {KEY}, (names_in(score) | names_in(q)) - {KEY, INNER}
        rows = tuple(d for d in self.par if d in queried - given)
        width = tuple(d for d in self.par if d in given - queried)
        batch = tuple(d for d in self.par if d not in rows + width)
        dtype = self.mix.operands[0].tensor.dtype
        fits = all(v.tensor.dtype == dtype for op in (self.scores, self.mix) for v in op.operands)
        alone = all(d in queried & given or self.par[d] == 1 for d in batch)
        if (
            not all(map(on_tensor_cores, (self.scores, self.mix)))
            or not fits
            or not alone
            or names_in(k) & {*rows, *width}
        ):
            return None
        if any(isinstance(x, Reduction) for f in (q, k, value) for x in leaves(f)) or not rows or not width:
            return None
        outputs = self._outputs()
        if outputs is None:
            return None
        mixed = Reduction(self.mix, tuple(Sym(d) for d in self.par))
        scale, raw = without_scale(score)
        return AttentionView(
            self.sizes, rows, width, batch, dtype, q, k, value, raw, scale, product, mixed, outputs
        )

    def _outputs(self) -> tuple[Output, ...] | None:
        """The results as terms over the dimensions of the mix; None where one is no map of it."""
        found = []
        for v in self.kernel.body.ops[-1].operands:
            names = [f"out.{i}" for i in range(len(v.tensor.shape))]
            ranges = {n: (0, size - 1) for n, size in zip(names, v.tensor.shape, strict=True)}
            term = Terms(self.kernel, ranges).element(v, tuple(Sym(n) for n in names))
            places = {x for x in leaves(term) if isinstance(x, Reduction)}
            if len(places) != 1:
                return None
            (place,) = places
            env = self._inverse(place, ranges)
            if place.op is not self.mix or env is None:
                return None
            at = tuple(simplify(env[n], self.terms.ranges) for n in names)
            found.append(Output(v, _substituted(term, env, self.terms.ranges), at))
        return tuple(found)

    def _inverse(self, place: Reduction, ranges: Mapping[str, tuple[int, int]]) -> dict[str, Expr] | None:
        """The dimensions of a result in those of the mix; None where they are not the same in some order."""
        env: dict[str, Expr] = {n: 0 for n, (_, high) in ranges.items() if high == 0}
        for e, (d, size) in zip(place.at, self.par.items(), strict=True):
            if size == 1 and e == 0:
                continue
            if not isinstance(e, Sym) or e.name in env or ranges[e.name][1] != size - 1:
                return None
            env[e.name] = Sym(d)
        return env if set(env) == set(ranges) else None


def _is_product(op: Op) -> bool:
    wide = [n for n in dims(op, "red").values() if n > 1]
    init: object = op["init"]
    unfilled = all(f is None for f in fills(op))
    return len(op.operands) == 2 and len(wide) == 1 and init == (0.0,) and unfilled and multiplies(op)


def _quotient(term: Term) -> tuple[Term, Term] | None:
    """What is divided by what, also where the inverse is multiplied."""
    if not isinstance(term, Apply):
        return None
    if term.name == "scalar.div":
        return term.args[0], term.args[1]
    if term.name == "scalar.mul":
        for one, other in (term.args, term.args[::-1]):
            inverse = peeled(other)
            if (
                isinstance(inverse, Apply)
                and inverse.name == "scalar.div"
                and is_number(inverse.args[0], 1.0)
            ):
                return one, inverse.args[1]
    return None


def _substituted(term: Term, env: Mapping[str, Expr], ranges: Mapping[str, tuple[int, int]]) -> Term:
    """The term over other symbols."""
    if isinstance(term, Apply):
        return Apply(term.name, term.attrs, term.type, tuple(_substituted(a, env, ranges) for a in term.args))
    if isinstance(term, Reduction):
        return Reduction(term.op, tuple(simplify(substitute(e, env), ranges) for e in term.at))
    if isinstance(term, Read):
        return Read(term.value, tuple(simplify(substitute(e, env), ranges) for e in term.at))
    return type(term)(simplify(substitute(term.at, env), ranges), term.type)


def depends(term: Term, names: tuple[str, ...]) -> bool:
    """Whether some index of a term depends on one of these dimensions."""
    return bool(names_in(term) & set(names))
