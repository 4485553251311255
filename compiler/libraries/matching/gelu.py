"""The GELU with tanh behind a product, recognised as a polynomial: what cuBLASLt computes as an epilogue."""

from __future__ import annotations

from dataclasses import replace
from math import isclose, pi, sqrt

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.tensor.ops import dims
from tilewright.ir.types import storage_dtype
from tilewright.libraries.matching.library_call import region_of
from tilewright.libraries.matching.matmul import BUFFER_DTYPE
from tilewright.passes.analysis.terms import Apply, Read, Term, Terms, applied, leaves, number, peeled
from tilewright.runtime.libraries.matmul import MatmulProblem

#: sqrt(2 / pi) and the factor of the cube, each as it is and rounded to 16 bits
_SLOPES, _CUBICS = (
    tuple(float(storage_dtype(dtype).type(c)) for dtype in ("f64", "f16", "bf16"))
    for c in (sqrt(2.0 / pi), 0.044715)
)
#: relative difference of coefficients that are equal
_NEAR = 1e-5

#: coefficients by the powers of x and of tanh(slope (x + cubic x^3))
_Polynomial = dict[tuple[int, int], float]


def gelu_behind(
    kernel: Func, value: Value, problem: MatmulProblem
) -> tuple[MatmulProblem, tuple[Op, ...]] | None:
    """The problem with the GELU of a value, and the ops that compute it; None where nothing does.

    It is 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as Hendrycks and Gimpel have it
    (arXiv:1606.08415), in any order of its products and sums. The form with erf is another function.
    """
    if problem.epilogue not in ("none", "bias") or not _has_tanh(kernel):
        return None
    added = problem.has_bias or problem.c is not None
    for root in reversed(kernel.body.ops):
        if (
            root.name != "tensor.map"
            or len(root.results) != 1
            or root.result.tensor.shape != value.tensor.shape
        ):
            continue
        result = BUFFER_DTYPE.get(root.result.tensor.dtype)
        if result not in ("float32", problem.dtype) or (added and result != problem.result):
            continue
        ops = region_of(kernel, root.results, {value}) if _is_gelu(kernel, root, value) else ()
        if ops:
            epilogue = "gelu_bias" if problem.has_bias else "gelu"
            return replace(problem, epilogue=epilogue, result=str(result)), ops
    return None


def _has_tanh(kernel: Func) -> bool:
    bodies = (op.body.ops for op in kernel.body.ops if op.body is not None)
    return any(inner.name == "scalar.tanh" for body in bodies for inner in body)


def _is_gelu(kernel: Func, root: Op, value: Value) -> bool:
    par = dims(root, "par")
    terms = Terms(kernel, {d: (0, n - 1) for d, n in par.items()}, {value})
    index: list[Expr] = [Sym(d) if n > 1 else 0 for d, n in par.items()]
    x, term = terms.element(value, index), terms.element(root.result, index)
    if set(leaves(term)) != {x} or not isinstance(x, Read):
        return False
    return _is_near(_polynomial(term, x), {(1, 0): 0.5, (1, 1): 0.5})


def _polynomial(term: Term, x: Read) -> _Polynomial | None:
    """A term of x as a polynomial in x and the one tanh that GELU has; None where it is none."""
    inner = peeled(term)
    if inner == x:
        return {(1, 0): 1.0}
    if (value := number(inner)) is not None:
        return {(0, 0): value}
    if not isinstance(inner, Apply):
        return None
    if (power := applied(inner, "pow")) is not None:
        base, exponent = _polynomial(power[0], x), number(power[1])
        if base is None or exponent not in (2.0, 3.0):
            return None
        return _product(base, base if exponent == 2.0 else _product(base, base))
    parts = [p for a in inner.args if (p := _polynomial(a, x)) is not None]
    if len(parts) < len(inner.args):
        return None
    if inner.name == "scalar.tanh":
        arguments = ({(1, 0): a, (3, 0): a * c} for a in _SLOPES for c in _CUBICS)
        return {(0, 1): 1.0} if any(_is_near(parts[0], p) for p in arguments) else None
    if inner.name == "scalar.div" and set(parts[1]) == {(0, 0)} and parts[1][0, 0]:
        return _product(parts[0], {(0, 0): 1.0 / parts[1][0, 0]})
    if inner.name == "scalar.mul":
        return _product(*parts)
    if inner.name in ("scalar.add", "scalar.sub"):
        sign = {(0, 0): 1.0 if inner.name == "scalar.add" else -1.0}
        return _sum(parts[0], _product(parts[1], sign))
    return _product(parts[0], {(0, 0): -1.0}) if inner.name == "scalar.neg" else None


def _sum(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    return {power: one.get(power, 0.0) + other.get(power, 0.0) for power in one | other}


def _product(one: _Polynomial, other: _Polynomial) -> _Polynomial:
    out: _Polynomial = {}
    for (i, j), a in one.items():
        for (k, m), b in other.items():
            out[i + k, j + m] = out.get((i + k, j + m), 0.0) + a * b
    return out


def _is_near(one: _Polynomial | None, other: _Polynomial) -> bool:
    if one is None:
        return False
    return all(isclose(one.get(p, 0.0), other.get(p, 0.0), rel_tol=_NEAR, abs_tol=1e-9) for p in one | other)
