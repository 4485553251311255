"""Scores of attention as a positive number times a shorter term: the exponential takes the number."""

from __future__ import annotations

from math import inf, isfinite

import numpy as np

from tilewright.ir import ScalarType
from tilewright.ir.types import storage_dtype
from tilewright.passes.kernels.attention.terms import Apply, Reduction, Term, peeled

_F32 = ScalarType("f32")


def without_scale(score: Term) -> tuple[float, Term]:
    """`scale`, and the term that times `scale` is the score.

    rewrite:  product * 0.125 + (k <= q ? 0 : -inf)   -->   0.125, (k <= q ? product : -inf)

    Softmax is that of the score, whatever it is: what is minus infinity stays so under a positive scale.
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
        if inner.name == "scalar.select" and _number(others[1]) == -inf:
            return _hidden_where(first, others[0])
        if inner.name == "scalar.add":
            for one, other in ((first, others[0]), (others[0], first)):
                mask = peeled(other)
                if isinstance(mask, Apply) and mask.name == "scalar.select":
                    seen, shown, hidden = mask.args
                    if _number(shown) == 0.0 and _number(hidden) == -inf:
                        return _hidden_where(seen, one)
    return (1.0, inner) if isinstance(inner, Reduction) else (1.0, term)


def _hidden_where(seen: Term, score: Term) -> tuple[float, Term]:
    """The scale of a score that is minus infinity where it is not seen, and the rest of it in float32."""
    scale, rest = _taken(score)
    if not isinstance(rest, Reduction) and not (isinstance(rest, Apply) and rest.type == _F32):
        rest = Apply("scalar.cast", (("dtype", "f32"),), _F32, (rest,))
    nothing = Apply("scalar.const", (("value", -inf), ("dtype", "f32")), _F32, ())
    return scale, Apply("scalar.select", (), _F32, (seen, rest, nothing))


def _number(term: Term) -> float | None:
    """The number that a constant holds in its type."""
    inner = peeled(term)
    if not isinstance(inner, Apply) or inner.name != "scalar.const":
        return None
    value = dict(inner.attrs)["value"]
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(storage_dtype(inner.type.dtype)))
