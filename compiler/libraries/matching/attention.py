"""Attention in a kernel, found by what its elements are computed from, as problems of cuDNN."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.tensor.ops import dims
from tilewright.libraries.matching.convolution import packed
from tilewright.libraries.matching.known import causal_values
from tilewright.libraries.matching.matmul import BUFFER_DTYPE
from tilewright.libraries.matching.region import copies_behind, region_of
from tilewright.libraries.matching.spread import with_spread_mask
from tilewright.libraries.matching.strides import Merged, Strides, merged
from tilewright.libraries.matching.terms import (
    Apply,
    Fold,
    Number,
    Read,
    Term,
    Terms,
    depends,
    leaves,
    peeled,
    quotient,
    sources,
)
from tilewright.libraries.program import Call
from tilewright.passes.kernels.attention.reach import HIDDEN
from tilewright.runtime.libraries.attention import ATTENTION_DTYPES, AttentionProblem
from tilewright.runtime.libraries.convolution import Array4
from tilewright.runtime.libraries.problem import POINTER_BYTES

#: times that a dimension of the result is split where indices divide it
_SPLITS = 4


@dataclass(frozen=True)
class Scores:
    """scale * sum over a product [+ bias], `causal` where later keys are masked."""

    product: Fold
    scale: float = 1.0
    bias: Term | None = None
    causal: bool = False


@dataclass(frozen=True)
class _Operands:
    """Elements that are read, and the dimension of the keys."""

    q: Read
    k: Read
    v: Read
    bias: Read | None
    key: str

    def present(self) -> list[Read]:
        return [r for r in (self.q, self.k, self.v, self.bias) if r is not None]


def attentions_in(kernel: Func) -> list[Call]:
    """The ways to leave softmax(scale * q k^T + bias) v to cuDNN, those that take most ops along first."""
    contracts = [op for op in kernel.body.ops if op.name == "tensor.contract"]
    if len(contracts) < 2:
        return []
    found: list[Call] = []
    for mix in reversed(contracts):
        for root in reversed(copies_behind(kernel, mix)):
            for call in _calls(kernel, root):
                found += [call, *_with_spread_mask(kernel, call)]
    return found


def _with_spread_mask(kernel: Func, call: Call) -> list[Call]:
    """The same with a mask that is written out, where it is one for all queries."""
    problem = call.problem
    assert isinstance(problem, AttentionProblem)
    if problem.bias is None or problem.bias.dims[2] == problem.q.dims[2]:
        return []
    found = with_spread_mask(kernel, call.operands[3])
    if found is None:
        return []
    other, spread = found
    roots = (op for op in other.body.ops if op.results == (call.result,))
    return [replace(c, kernel=other) for root in roots for c in _calls(other, root, {spread})]


def _calls(kernel: Func, root: Op, stop: Collection[Value] = ()) -> Iterator[Call]:
    if BUFFER_DTYPE.get(root.result.tensor.dtype) not in ATTENTION_DTYPES:
        return
    terms, steps = _result_terms(kernel, root, stop)
    sum_ = peeled(terms.element(root.result, _index(root, terms)))
    found = _matched(terms, sum_, causal_values(kernel))
    if found is None:
        return
    scores, value, key = found
    for operands in _chosen(terms, scores, value, key):
        problem = _problem(terms, scores, operands, steps, root)
        if problem is None:
            continue
        values = tuple(r.value for r in operands.present())
        ops = region_of(kernel, root, values)
        if ops:
            yield Call(problem, values, ops, "cudnn")
            return


def _index(root: Op, terms: Terms) -> list[Expr]:
    """The index of the result in the dimensions of the terms: split ones are put together again."""
    out: list[Expr] = []
    for d, n in dims(root, "par").items():
        parts = [p for p in terms.ranges if p == d or p.startswith(f"{d}.")]
        e: Expr = 0
        for p in sorted(parts):
            e = e * (terms.ranges[p][1] + 1) + Sym(p)
        out.append(e if n > 1 else 0)
    return out


def _result_terms(kernel: Func, root: Op, stop: Collection[Value]) -> tuple[Terms, Strides]:
    """Terms over the dimensions of the result, those that indices divide being split; steps of the result."""
    wide = {d: n for d, n in dims(root, "par").items() if n > 1}
    by_dim = dict(zip(dims(root, "par"), root.result.tensor.strides, strict=True))
    ranges = {d: (0, n - 1) for d, n in wide.items()}
    for _ in range(_SPLITS):
        terms = Terms(kernel, ranges, stop)
        own = list(leaves(terms.element(root.result, _index(root, terms))))
        split = quotient(own, ranges)
        if split is None:
            break
        d, size = split
        extent = ranges.pop(d)[1] + 1
        ranges |= {f"{d}.hi": (0, extent // size - 1), f"{d}.lo": (0, size - 1)}
        by_dim |= {f"{d}.hi": by_dim[d] * size, f"{d}.lo": by_dim[d]}
    terms = Terms(kernel, ranges, stop)
    return terms, Strides({d: by_dim[d] for d in ranges}, root.result.tensor.start)


def _matched(terms: Terms, sum_: Term, causal: set[Value]) -> tuple[Scores, Term, str] | None:
    """Scores, element of the values and dimension of the keys of a sum that is attention."""
    if not isinstance(sum_, Fold) or sum_.kind != "sum" or len(sum_.over) != 1:
        return None
    factors = peeled(sum_.of)
    if not isinstance(factors, Apply) or factors.name != "mul":
        return None
    key = sum_.over[0][0]
    for weight, value in (factors.args, factors.args[::-1]):
        raw = softmax_of(terms, weight, key)
        scores = None if raw is None else scores_of(raw, key, causal)
        if scores is not None:
            return scores, value, key
    return None


def softmax_of(terms: Terms, weight: Term, key: str) -> Term | None:
    """What `weight` is the softmax of along `key`; None where it is none."""
    parts = _quotient(peeled(weight))
    if parts is None:
        return None
    above, below = map(peeled, parts)
    extent = terms.ranges[key][1] + 1
    if not (isinstance(below, Fold) and below.kind == "sum" and [n for _, n in below.over] == [extent]):
        return None
    if not isinstance(above, Apply) or above.name != "exp":
        return None
    if not terms.same(above, below.of, {below.over[0][0]: Sym(key)}):
        return None
    inside = peeled(above.args[0])
    if isinstance(inside, Apply) and inside.name == "sub":
        largest = peeled(inside.args[1])
        if isinstance(largest, Fold) and largest.kind == "max" and [n for _, n in largest.over] == [extent]:
            same = terms.same(inside.args[0], largest.of, {largest.over[0][0]: Sym(key)})
            return inside.args[0] if same else None
    return above.args[0]


def _quotient(term: Term) -> tuple[Term, Term] | None:
    """What is divided by what, also where the inverse is multiplied."""
    if isinstance(term, Apply) and term.name == "div":
        return term.args[0], term.args[1]
    if isinstance(term, Apply) and term.name == "mul":
        for one, other in (term.args, term.args[::-1]):
            inverse = peeled(other)
            if (
                isinstance(inverse, Apply)
                and inverse.name == "div"
                and peeled(inverse.args[0]) == Number(1.0)
            ):
                return one, inverse.args[1]
    return None


def scores_of(term: Term, key: str, causal: set[Value]) -> Scores | None:
    """The parts of scores; numbers that are added to all of a row change nothing in their softmax."""
    term = peeled(term)
    if isinstance(term, Fold):
        inner = peeled(term.of)
        is_product = term.kind == "sum" and isinstance(inner, Apply) and inner.name == "mul"
        return Scores(replace(term, of=inner)) if is_product else None
    if not isinstance(term, Apply):
        return None
    pairs = [term.args, term.args[::-1]] if term.name in ("add", "mul") else [term.args]
    if term.name == "select":
        return _selected(term, key, causal)
    for one, other in pairs:
        found = scores_of(one, key, causal)
        if found is None:
            continue
        number = peeled(other)
        if term.name in ("mul", "div") and isinstance(number, Number) and found.bias is None:
            factor = number.value if term.name == "mul" else 1 / number.value
            return replace(found, scale=found.scale * factor) if factor > 0 else None
        if term.name == "add" and isinstance(number, Number):
            return found
        if term.name == "add" and isinstance(other, Read):
            if sources(other)[0].value in causal and _square(sources(other)[0], key):
                return replace(found, causal=True)
            return replace(found, bias=other) if found.bias is None and not found.causal else None
    return None


def _selected(term: Apply, key: str, causal: set[Value]) -> Scores | None:
    """select(key <= query, scores, something very negative)."""
    seen, scores, masked = term.args[0], term.args[1], peeled(term.args[2])
    found = scores_of(scores, key, causal)
    mask = sources(seen)
    fits = mask and mask[0].value in causal and _square(mask[0], key)
    masks = isinstance(masked, Number) and masked.value <= HIDDEN
    return replace(found, causal=True) if found is not None and fits and masks else None


def _square(mask: Read, key: str) -> bool:
    """Whether a mask is read as [..., query, key]."""
    return len(mask.at) >= 2 and mask.at[-1] == Sym(key) and isinstance(mask.at[-2], Sym)


def _chosen(terms: Terms, scores: Scores, value: Term, key: str) -> Iterator[_Operands]:
    """Sets of elements to begin with: as they are stored where the element types agree."""
    factors = scores.product.of
    assert isinstance(factors, Apply)
    for left, right in (factors.args, factors.args[::-1]):
        of_queries, of_keys = sources(left), sources(right)
        if any(depends(r, key) for r in of_queries) or not all(depends(r, key) for r in of_keys):
            continue
        biases: Sequence[Read | None] = sources(scores.bias) if scores.bias is not None else (None,)
        for q, k, v, bias in product(of_queries, of_keys, sources(value), biases):
            dtypes = {r.value.tensor.dtype for r in (q, k, v)}
            if len(dtypes) == 1:
                yield _Operands(q, k, v, bias, key)


def _problem(
    terms: Terms, scores: Scores, operands: _Operands, result: Strides, root: Op
) -> AttentionProblem | None:
    dtype = BUFFER_DTYPE[root.result.tensor.dtype]
    steps = [terms.steps(r) for r in (operands.q, operands.k, operands.v)]
    bias = terms.steps(operands.bias) if operands.bias is not None else Strides({})
    if BUFFER_DTYPE.get(operands.q.value.tensor.dtype) != dtype or bias is None or None in steps:
        return None
    q, k, v = (s for s in steps if s is not None)
    sizes = {d: high + 1 for d, (_, high) in terms.ranges.items()}
    roles = _roles(operands.key, [d for d, _ in scores.product.over], (q, k, v, result, bias), sizes)
    if roles is None:
        return None
    arrays = {
        "q": _array(roles, ("batch", "heads", "query", "inner"), q, sizes),
        "k": _array(roles, ("batch", "heads", "key", "inner"), k, sizes),
        "v": _array(roles, ("batch", "heads", "key", "width"), v, sizes),
        "d": _array(roles, ("batch", "heads", "query", "width"), result, sizes),
    }
    mask, mask_dtype = None, ""
    if operands.bias is not None:
        mask_dtype = BUFFER_DTYPE.get(operands.bias.value.tensor.dtype, "")
        mask = _array(roles, ("batch", "heads", "query", "key"), bias, sizes, spread=True)
        if mask_dtype not in (dtype, "float32") or not bias[operands.key]:
            return None
    causal_fits = not scores.causal or arrays["q"].dims[2] == arrays["k"].dims[2]
    found = [(a, 2) for a in arrays.values()]
    found += [(mask, 4 if mask_dtype == "float32" else 2)] if mask is not None else []
    if not causal_fits or any(a.start * size % POINTER_BYTES for a, size in found):
        return None
    return AttentionProblem(
        **arrays, dtype=dtype, scale=scores.scale, bias=mask, bias_dtype=mask_dtype, causal=scores.causal
    )


def _roles(
    key: str, inner: Sequence[str], steps: tuple[Strides, ...], sizes: Mapping[str, int]
) -> dict[str, Merged] | None:
    """What plays batch, heads, queries, keys and sizes; None where one has not one step per operand."""
    q, k, v, d, bias = steps
    par = list(d.by_dim)
    groups = {
        "batch": [n for n in par if q[n] and k[n] and v[n]],
        "query": [n for n in par if q[n] and not k[n] and not v[n]],
        "width": [n for n in par if v[n] and not q[n] and not k[n]],
        "inner": list(inner),
        "key": [key],
    }
    known = {n for g in groups.values() for n in g}
    if known != {n for s in steps for n in s.by_dim} | known or len(known) != len(par) + len(inner) + 1:
        return None
    if any(not (q[n] and k[n]) or v[n] or bias[n] for n in inner) or not (k[key] and v[key]) or q[key]:
        return None
    if any(bias[n] for n in groups["width"]):
        return None
    found = {name: merged(group, sizes, steps) for name, group in groups.items()}
    most = {"batch": 2}
    if any(len(m) > most.get(name, 1) for name, m in found.items()):
        return None
    one = Merged((), 1, (0,) * len(steps))
    out = {name: m[-1] if m else one for name, m in found.items() if name != "batch"}
    batch = found["batch"]
    out["heads"] = batch[-1] if batch else one
    out["batch"] = batch[0] if len(batch) == 2 else one
    return out


def _array(
    roles: Mapping[str, Merged], names: Sequence[str], steps: Strides, sizes: Mapping[str, int],
    *, spread: bool = False,
) -> Array4:  # fmt: skip
    """An operand with these roles as dimensions; `spread`: those it does not depend on get the extent 1."""
    found = [(m.extent, steps[m.dims[-1]] if m.dims else 0) for m in (roles[n] for n in names)]
    extents = tuple(1 if spread and not s else n for n, s in found)
    return Array4(extents, packed(extents, [s for _, s in found], (0, 1, 2, 3)), steps.start)
