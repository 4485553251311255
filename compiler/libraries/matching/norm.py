"""Normalisations of rows, found by what their elements are computed from, as problems of cuDNN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import isclose, prod

from tilewright.ir import Expr, Func, Op, Sym
from tilewright.ir.tensor.ops import dims
from tilewright.libraries.matching.convolution import packed
from tilewright.libraries.matching.matmul import BUFFER_DTYPE
from tilewright.libraries.matching.region import region_of
from tilewright.libraries.matching.strides import Merged, Strides, merged
from tilewright.libraries.matching.terms import Apply, Fold, Number, Read, Term, Terms, peeled, sources
from tilewright.libraries.program import Call
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


def norms_in(kernel: Func) -> list[Call]:
    """The ways to leave a layer norm or RMS norm to cuDNN, those that take most ops along first."""
    ops = kernel.body.ops[:-1]
    roots = [op for op in ops if op.name == "tensor.map" and len(op.results) == 1]
    if len(ops) > _MOST_OPS or not any(op.name == "tensor.reduce" for op in ops) or not _has_root(ops):
        return []
    return [call for root in reversed(roots) for call in _calls(kernel, root)]


def _has_root(ops: Sequence[Op]) -> bool:
    bodies = (op.body.ops for op in ops if op.body is not None)
    return any(inner.name in ("scalar.sqrt", "scalar.rsqrt") for body in bodies for inner in body)


def _calls(kernel: Func, root: Op) -> Iterator[Call]:
    wide = {d: n for d, n in dims(root, "par").items() if n > 1}
    terms = Terms(kernel, {d: (0, n - 1) for d, n in wide.items()})
    index: list[Expr] = [Sym(d) if d in wide else 0 for d in dims(root, "par")]
    found = norm_of(terms, terms.element(root.result, index), wide)
    by_dim = dict(zip(dims(root, "par"), root.result.tensor.strides, strict=True))
    steps = Strides({d: by_dim[d] for d in wide}, root.result.tensor.start)
    if found is None:
        return
    biases: Sequence[Read | None] = sources(found.bias) if found.bias is not None else (None,)
    for x, scale, bias in product(sources(found.x), sources(found.scale), biases):
        problem = _problem(terms, found, x, scale, bias, steps, wide, root)
        values = tuple(r.value for r in (x, scale, bias) if r is not None)
        ops = region_of(kernel, root, values) if problem is not None else ()
        if problem is not None and ops:
            yield Call(problem, values, ops, "cudnn")
            return


def norm_of(terms: Terms, term: Term, wide: Mapping[str, int]) -> _Norm | None:
    """The normalisation that a term is, over which of the dimensions `wide` with their extents."""
    term = peeled(term)
    if isinstance(term, Apply) and term.name == "add":
        for one, other in (term.args, term.args[::-1]):
            found = _scaled(terms, one, other, wide)
            if found is not None:
                return found
        return None
    return _scaled(terms, term, None, wide)


def _scaled(terms: Terms, term: Term, bias: Term | None, wide: Mapping[str, int]) -> _Norm | None:
    above, below = _factors(term)
    roots = [(t, peeled(t).args[0]) for t in below if _is(peeled(t), "sqrt")]  # type: ignore[union-attr]
    roots += [(t, peeled(t).args[0]) for t in above if _is(peeled(t), "rsqrt")]  # type: ignore[union-attr]
    if len(roots) != 1 or len(above) + len(below) != 3:
        return None
    ((used, variance),) = roots
    rest = [t for t in above if t is not used]
    if len(rest) != 2:
        return None
    for x, scale in (rest, rest[::-1]):
        for kind, of in (("layer", _centred), ("rms", _plain)):
            found = of(terms, x, variance, wide)
            if found is not None:
                value, epsilon, columns = found
                return _Norm(kind, value, scale, bias, epsilon, columns)
    return None


def _factors(term: Term) -> tuple[list[Term], list[Term]]:
    """The factors of a term above and below the line; 1 is left out."""
    inner = peeled(term)
    if isinstance(inner, Apply) and inner.name in ("mul", "div"):
        (a, b), (c, d) = map(_factors, inner.args)
        return (a + c, b + d) if inner.name == "mul" else (a + d, b + c)
    return ([], []) if inner == Number(1.0) else ([term], [])


def _is(term: Term, name: str) -> bool:
    return isinstance(term, Apply) and term.name == name


def _centred(
    terms: Terms, x: Term, variance: Term, wide: Mapping[str, int]
) -> tuple[Term, float, tuple[str, ...]] | None:
    """(element, epsilon, columns) where `x` is an element less the mean of its row."""
    difference = peeled(x)
    found = _epsilon(variance)
    if not isinstance(difference, Apply) or difference.name != "sub" or found is None:
        return None
    value, mean = difference.args
    sum_ = _mean(mean)
    columns = None if sum_ is None else _columns(terms, value, sum_, wide)
    squares = _squares(terms, difference, found[0], columns, wide)
    return (value, found[1], columns) if columns is not None and squares else None


def _plain(
    terms: Terms, x: Term, variance: Term, wide: Mapping[str, int]
) -> tuple[Term, float, tuple[str, ...]] | None:
    """The same where nothing is subtracted."""
    found = _epsilon(variance)
    sum_ = None if found is None else _mean(found[0])
    if found is None or sum_ is None or not isinstance(x, Read):
        return None
    square = _root_of_square(terms, sum_)
    columns = None if square is None else _columns(terms, x, Fold("sum", sum_.over, square), wide)
    return None if columns is None else (x, found[1], columns)


def _epsilon(variance: Term) -> tuple[Term, float] | None:
    variance = peeled(variance)
    if isinstance(variance, Apply) and variance.name == "add":
        for one, other in (variance.args, variance.args[::-1]):
            number = peeled(other)
            if isinstance(number, Number) and number.value >= 0:
                return one, number.value
    return None


def _mean(term: Term) -> Fold | None:
    """The sum that a mean divides by the number of its terms."""
    term = peeled(term)
    if not isinstance(term, Apply) or term.name not in ("div", "mul"):
        return None
    for one, other in (term.args, term.args[::-1]) if term.name == "mul" else (term.args,):
        sum_, number = peeled(one), peeled(other)
        if isinstance(sum_, Fold) and sum_.kind == "sum" and isinstance(number, Number) and number.value:
            count = number.value if term.name == "div" else 1 / number.value
            if sum_.over and isclose(count, prod(n for _, n in sum_.over), rel_tol=1e-6):
                return sum_
    return None


def _columns(terms: Terms, value: Term, sum_: Fold, wide: Mapping[str, int]) -> tuple[str, ...] | None:
    """The dimensions of the result along which the sum adds `value`."""
    for names in permutations(wide, len(sum_.over)):
        if all(wide[d] == n for d, (_, n) in zip(names, sum_.over, strict=True)):
            moved = {inner: Sym(d) for d, (inner, _) in zip(names, sum_.over, strict=True)}
            if terms.same(value, sum_.of, moved):
                return names
    return None


def _root_of_square(terms: Terms, sum_: Fold) -> Term | None:
    inner = peeled(sum_.of)
    if isinstance(inner, Apply) and inner.name == "mul" and terms.same(inner.args[0], inner.args[1], {}):
        return inner.args[0]
    if isinstance(inner, Apply) and inner.name == "pow" and peeled(inner.args[1]) == Number(2.0):
        return inner.args[0]
    return None


def _squares(
    terms: Terms, difference: Term, variance: Term, columns: tuple[str, ...] | None, wide: Mapping[str, int]
) -> bool:
    """Whether the variance is the mean of the squares of the difference over these columns."""
    sum_ = _mean(variance)
    square = None if sum_ is None else _root_of_square(terms, sum_)
    if sum_ is None or square is None or columns is None:
        return False
    found = _columns(terms, difference, Fold("sum", sum_.over, square), wide)
    return found is not None and set(found) == set(columns)


def _problem(
    terms: Terms, found: _Norm, x: Read, scale: Read, bias: Read | None, result: Strides,
    wide: Mapping[str, int], root: Op,
) -> NormProblem | None:  # fmt: skip
    dtypes = [BUFFER_DTYPE.get(v.value.tensor.dtype) for v in (x, scale, bias or scale)]
    stored = BUFFER_DTYPE.get(root.result.tensor.dtype)
    steps = [terms.steps(r) for r in (x, scale, bias or scale)]
    known = [s for s in steps if s is not None]
    if None in dtypes or stored is None or dtypes[1] != dtypes[2] or len(known) != 3:
        return None
    rows = merged([d for d in wide if d not in found.columns], wide, (result, known[0]))
    columns = merged(found.columns, wide, (result, *known))
    if len(rows) > 1 or len(columns) != 1 or columns[0].steps[2:] != (1, 1) or not columns[0].steps[1]:
        return None
    vectors_of = known[1:]
    if any(s.start or any(s[d] for d in wide if d not in found.columns) for s in vectors_of):
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
    if found.kind == "layer" and bias is None:
        return None
    return NormProblem(found.kind, x_, d, dtype, stored, vectors, found.epsilon, bias is not None)
