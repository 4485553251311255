"""NumPy semantics of recurrences: each result, once known, is folded into all later ones at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.interpreter.body import run_body
from tilewright.ir.interpreter.fetch import OperandAccess, axes, fetch, whole
from tilewright.ir.nodes import Op
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.ir.tensor.recurrence_ops import history
from tilewright.ir.types import numpy_dtype


def evaluate_recur(op: Op, operands: Sequence[np.ndarray]) -> np.ndarray:
    """Results along `dim`, vectorised over lines and over the later elements of each."""
    assert op.body is not None
    par, dim, past = dims(op, "par"), str(op["dim"]), history(op)
    order = list(par)
    axis, n = order.index(dim), par[dim]
    ranges = ranges_of(op)
    first, *rest = (OperandAccess.of(at, ranges, f) for at, f in zip(reads(op), fills(op), strict=True))
    out = np.empty(tuple(par.values()), numpy_dtype(op.result.tensor.dtype))
    if not out.size:
        return out
    out[...] = fetch(operands[0], first, whole(par), order)
    before = (slice(None),) * axis
    for t in range(n - 1):
        box = {**whole(par), dim: (t + 1, n), past: (t, t + 1)}
        names = [*order, past]
        elements = [fetch(x, a, box, names) for x, a in zip(operands[1:], rest, strict=True)]
        later = out[(*before, slice(t + 1, n))]
        inputs = [*elements, out[(*before, slice(t, t + 1))][..., None], later[..., None]]
        (new,) = run_body(op.body, inputs, axes(box, names))
        later[...] = np.broadcast_to(new, (*later.shape, 1))[..., 0]
    return out
