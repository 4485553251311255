"""The GELU with tanh behind a product, recognised by its values: what cuBLASLt computes as an epilogue."""

from __future__ import annotations

from dataclasses import replace
from math import pi, sqrt

import numpy as np

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.tensor.ops import dims
from tilewright.ir.types import storage_dtype
from tilewright.libraries.matching.matmul import BUFFER_DTYPE
from tilewright.libraries.matching.region import region_of
from tilewright.libraries.matching.terms import Apply, Fold, Number, Read, Term, Terms, leaves, peeled
from tilewright.runtime.libraries.matmul import MatmulProblem

#: where a function is compared; beyond, GELU is 0 or its argument
_PLACES = np.linspace(-8.0, 8.0, 4097)
#: largest difference from the form with tanh, its constants as they are or rounded to 16 bits, which moves
#: it by up to 3.4e-4; the form with erf differs by 4.7e-4
TOLERANCE = 2e-5
_CONSTANTS = (sqrt(2.0 / pi), 0.044715)


def tanh_gelu(x: np.ndarray, dtype: str = "f64") -> np.ndarray:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))): Hendrycks and Gimpel, arXiv:1606.08415.

    dtype: what its two constants are rounded to.
    """
    slope, cubic = (float(storage_dtype(dtype).type(c)) for c in _CONSTANTS)
    return np.asarray(0.5 * x * (1.0 + np.tanh(slope * (x + cubic * x**3))))


def gelu_behind(
    kernel: Func, value: Value, problem: MatmulProblem
) -> tuple[MatmulProblem, tuple[Op, ...]] | None:
    """The problem with the GELU of a value, and the ops that compute it; None where nothing does.

    The form with erf is none: it is another function.
    """
    if problem.epilogue not in ("none", "bias") or not _has_exponentials(kernel):
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
        ops = region_of(kernel, root, {value}) if _is_gelu(kernel, root, value) else ()
        if ops:
            epilogue = "gelu_bias" if problem.has_bias else "gelu"
            return replace(problem, epilogue=epilogue, result=str(result)), ops
    return None


def _has_exponentials(kernel: Func) -> bool:
    bodies = (op.body.ops for op in kernel.body.ops if op.body is not None)
    return any(inner.name in ("scalar.tanh", "scalar.exp") for body in bodies for inner in body)


def _is_gelu(kernel: Func, root: Op, value: Value) -> bool:
    par = dims(root, "par")
    terms = Terms(kernel, {d: (0, n - 1) for d, n in par.items()}, {value})
    index: list[Expr] = [Sym(d) if n > 1 else 0 for d, n in par.items()]
    at, term = terms.element(value, index), terms.element(root.result, index)
    if set(leaves(term)) != {at} or peeled(term) == at:
        return False
    with np.errstate(all="ignore"):
        found = _values(term)
    if found is None:
        return False
    apart = (np.max(np.abs(found - tanh_gelu(_PLACES, dtype))) for dtype in ("f64", "f16", "bf16"))
    return any(bool(a <= TOLERANCE) for a in apart)


def _values(term: Term) -> np.ndarray | None:
    """A term of one element as a function of it; None where it is no plain function."""
    term = peeled(term)
    if isinstance(term, Number):
        return np.full_like(_PLACES, term.value)
    if isinstance(term, Read):
        return _PLACES
    definition = op_def(f"scalar.{term.name}") if isinstance(term, Apply) else None
    if (
        isinstance(term, Fold)
        or definition is None
        or not definition.elementwise
        or definition.evaluate is None
    ):
        return None
    args = [_values(a) for a in term.args]
    known = [a for a in args if a is not None]
    (found,) = definition.evaluate(known, {}) if len(known) == len(args) else (None,)
    return None if found is None else np.asarray(found, np.float64)
