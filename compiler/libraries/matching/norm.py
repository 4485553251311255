"""Normalisations of rows, found by what their elements are computed from, as problems of cuDNN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import isclose, prod

from tilewright.ir import Expr, Func, Op, Sym
from tilewright.ir.tensor.ops import dims
from tilewright.libraries.matching.convolution import packed
from tilewright.libraries.matching.library_call import LibraryCall, region_of
from tilewright.libraries.matching.matmul import BUFFER_DTYPE
from tilewright.libraries.matching.strides import Merged, Strides, merged, steps_of_element
from tilewright.passes.analysis.terms import (
    Read,
    Reduction,
    Term,
    Terms,
    applied,
    both_orders,
    names_in,
    number,
    peeled,
)
from tilewright.runtime.libraries.convolution import Array4
from tilewright.runtime.libraries.norm import NormProblem
from tilewright.runtime.libraries.problem import POINTER_BYTES

#: ops that a kernel may have to be looked at: what fits one kernel has far fewer
_MOST_OPS = 64


@dataclass(frozen=True)
class _Norm:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over these dimensions of the result."""

    kind: str
    x: Term
    scale: Term
    bias: Term | None
    epsilon: float
    columns: tuple[str, ...]


def norms_in(kernel: Func) -> list[LibraryCall]:
    """The ways to leave a layer norm or RMS norm to cuDNN, those that take most ops along first."""
    ops = kernel.body.ops[:-1]
    roots = [op for op in ops if op.name == "tensor.map" and len(op.results) == 1]
    if len(ops) > _MOST_OPS or not any(op.name == "tensor.reduce" for op in ops) or not _has_root(ops):
        return []
    return [call for root in reversed(roots) for call in _calls(kernel, root)]


def _has_root(ops: Sequence[Op]) -> bool:
    bodies = (op.body.ops for op in ops if op.body is not None)
    return any(inner.name in ("scalar.sqrt", "scalar.rsqrt") for body in bodies for inner in body)


def _calls(kernel: Func, root: Op) -> Iterator[LibraryCall]:
    wide = {d: n for d, n in dims(root, "par").items() if n > 1}
    terms = Terms(kernel, {d: (0, n - 1) for d, n in wide.items()})
    index: list[Expr] = [Sym(d) if d in wide else 0 for d in dims(root, "par")]
    norm = norm_of(terms, terms.element(root.result, index), wide)
    by_dim = dict(zip(dims(root, "par"), root.result.tensor.strides, strict=True))
    steps = Strides({d: by_dim[d] for d in wide}, root.result.tensor.start)
    if norm is None:
        return
    biases: Sequence[Read | None] = terms.stored(norm.bias) if norm.bias is not None else (None,)
    for x, scale, bias in product(terms.stored(norm.x), terms.stored(norm.scale), biases):
        problem = _problem(terms, norm, x, scale, bias, steps, wide, root)
        values = tuple(r.value for r in (x, scale, bias) if r is not None)
        ops = region_of(kernel, root.results, values) if problem is not None else ()
        if problem is not None and ops:
            yield LibraryCall(problem, values, ops, "cudnn")
            return


def norm_of(terms: Terms, term: Term, wide: Mapping[str, int]) -> _Norm | None:
    """The normalisation that a term is, over which of the dimensions `wide` with their extents."""
    if applied(term, "add") is None:
        return _scaled(terms, term, None, wide)
    norms = (_scaled(terms, one, other, wide) for one, other in both_orders(term, "add"))
    return next((norm for norm in norms if norm is not None), None)


def _scaled(terms: Terms, term: Term, bias: Term | None, wide: Mapping[str, int]) -> _Norm | None:
    above, below = _factors(term)
    roots = [(t, r) for t in below if (r := applied(t, "sqrt"))]
    roots += [(t, r) for t in above if (r := applied(t, "rsqrt"))]
    if len(roots) != 1 or len(above) + len(below) != 3:
        return None
    ((used, (variance,)),) = roots
    rest = [t for t in above if t is not used]
    if len(rest) != 2:
        return None
    for x, scale in (rest, rest[::-1]):
        for kind, of in (("layer", _centred), ("rms", _plain)):
            parts = of(terms, x, variance, wide)
            if parts is not None:
                value, epsilon, columns = parts
                return _Norm(kind, value, scale, bias, epsilon, columns)
    return None


def _factors(term: Term) -> tuple[list[Term], list[Term]]:
    """The factors of a term above and below the line; 1 is left out."""
    if (factors := applied(term, "mul")) is not None:
        (a, b), (c, d) = map(_factors, factors)
        return a + c, b + d
    if (parts := applied(term, "div")) is not None:
        (a, b), (c, d) = map(_factors, parts)
        return a + d, b + c
    return ([], []) if number(term) == 1.0 else ([term], [])


def _centred(
    terms: Terms, x: Term, variance: Term, wide: Mapping[str, int]
) -> tuple[Term, float, tuple[str, ...]] | None:
    """(element, epsilon, columns) where `x` is an element less the mean of its row."""
    difference, parts = applied(x, "sub"), _epsilon(variance)
    mean = None if difference is None else _mean(terms, difference[1])
    squares = None if parts is None else _mean(terms, parts[0])
    if difference is None or parts is None or mean is None or squares is None:
        return None
    for columns, inside in _along(terms, mean, wide):
        if terms.same(difference[0], inside):
            fits = any(set(names) == set(columns) and _is_square_of(terms, inner, x)
                       for names, inner in _along(terms, squares, wide))  # fmt: skip
            return (difference[0], parts[1], columns) if fits else None
    return None


def _plain(
    terms: Terms, x: Term, variance: Term, wide: Mapping[str, int]
) -> tuple[Term, float, tuple[str, ...]] | None:
    """The same where nothing is subtracted."""
    parts = _epsilon(variance)
    squares = None if parts is None else _mean(terms, parts[0])
    if parts is None or squares is None or not terms.stored(x):
        return None
    along = _along(terms, squares, wide)
    columns = next((names for names, inside in along if _is_square_of(terms, inside, x)), None)
    return None if columns is None else (x, parts[1], columns)


def _epsilon(variance: Term) -> tuple[Term, float] | None:
    for one, other in both_orders(variance, "add"):
        if (value := number(other)) is not None and value >= 0:
            return one, value
    return None


def _mean(terms: Terms, term: Term) -> Reduction | None:
    """The sum that a mean divides by the number of its terms."""
    divided = applied(term, "div")
    for one, other in both_orders(term, "mul") if divided is None else (divided,):
        sum_, value = peeled(one), number(other)
        fold = terms.folded(sum_) if isinstance(sum_, Reduction) else None
        if isinstance(sum_, Reduction) and fold is not None and fold.kind == "add" and fold.over and value:
            count = value if divided is not None else 1 / value
            if isclose(count, prod(n for _, n in fold.over), rel_tol=1e-6):
                return sum_
    return None


def _along(terms: Terms, sum_: Reduction, wide: Mapping[str, int]) -> Iterator[tuple[tuple[str, ...], Term]]:
    """The terms that a sum adds, with dimensions of the result as those that it adds along."""
    free = [d for d in wide if d not in names_in(sum_)]
    count = sum(n > 1 for n in dims(sum_.op, "red").values())
    for names in permutations(free, count):
        fold = terms.folded(sum_, names)
        if fold is not None:
            yield names, fold.of


def _is_square_of(terms: Terms, term: Term, root: Term) -> bool:
    """True where a term is the square of another one."""
    if (factors := applied(term, "mul")) is not None:
        return all(terms.same(f, root) for f in factors)
    power = applied(term, "pow")
    return power is not None and number(power[1]) == 2.0 and terms.same(power[0], root)


def _problem(
    terms: Terms, norm: _Norm, x: Read, scale: Read, bias: Read | None, result: Strides,
    wide: Mapping[str, int], root: Op,
) -> NormProblem | None:  # fmt: skip
    dtypes = [BUFFER_DTYPE.get(v.value.tensor.dtype) for v in (x, scale, bias or scale)]
    stored = BUFFER_DTYPE.get(root.result.tensor.dtype)
    steps = [steps_of_element(r, terms.ranges) for r in (x, scale, bias or scale)]
    known = [s for s in steps if s is not None]
    if None in dtypes or stored is None or dtypes[1] != dtypes[2] or len(known) != 3:
        return None
    rows = merged([d for d in wide if d not in norm.columns], wide, (result, known[0]))
    columns = merged(norm.columns, wide, (result, *known))
    if len(rows) > 1 or len(columns) != 1 or columns[0].steps[2:] != (1, 1) or not columns[0].steps[1]:
        return None
    vectors_of = known[1:]
    if any(s.start or any(s[d] for d in wide if d not in norm.columns) for s in vectors_of):
        return None
    row = rows[0] if rows else Merged((), 1, (0, 0))
    if row.dims and not row.steps[1]:
        return None
    extents = (row.extent, columns[0].extent, 1, 1)
    d, x_ = (
        Array4(extents, packed(extents, (row.steps[i], columns[0].steps[i], 0, 0), (0, 2, 3, 1)), s.start)
        for i, s in enumerate((result, known[0]))
    )
    dtype, vectors = str(dtypes[0]), str(dtypes[1])
    for array, kind in ((d, stored), (x_, dtype)):
        if array.start * (4 if kind == "float32" else 2) % POINTER_BYTES:
            return None
    if norm.kind == "layer" and bias is None:
        return None
    return NormProblem(norm.kind, x_, d, dtype, stored, vectors, norm.epsilon, bias is not None)
