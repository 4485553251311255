"""Parts of matrices by diagonals; the last two dimensions are rows and columns, all others a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.division import closed_from, undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Gradient, movement
from tilewright.ir.graph_ops.operands import require, require_integer, tensors
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type


def _matrix(x: TensorType) -> tuple[int, int]:
    require(x.rank >= 2, f"expected an operand of rank 2 or more, got {x}")
    return x.shape[-2], x.shape[-1]


def _infer_trilu(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, *k = tensors(types)
    _matrix(x)
    if k:
        require_integer(k[0])
        require(k[0].size == 1, f"expected one diagonal, got {k[0]}")
    return [x]


def _evaluate_trilu(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, *offset = inputs
    k = int(offset[0].reshape(())) if offset else attrs["k"]
    above = np.arange(x.shape[-1]) - np.arange(x.shape[-2])[:, None]
    inside = above >= k if attrs["upper"] else above <= k
    return [np.where(inside, x, np.zeros((), x.dtype))]


define(
    "graph.trilu",
    ("x", "k?"),
    "x with zeros below (upper) or above diagonal k, given as operand or attribute.",
    attrs={"k": AttrDef("int", 0), "upper": AttrDef("bool", True)},
    infer=_infer_trilu,
    evaluate=_evaluate_trilu,
    facts=movement(Elements.MOVES, closed_from(-2), attributes_stay, gradient=Gradient.RULE),
)


def diagonal_length(rows: int, columns: int, k: int) -> int:
    """Elements of diagonal k of a matrix; 0 is the main one, positive ones lie above it."""
    return max(0, min(rows + min(k, 0), columns - max(k, 0)))


def _infer_set_diag(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, diagonal = tensors(types)
    rows, columns = _matrix(x)
    k1, k2 = attrs["k1"], attrs["k2"]
    good = -rows < k1 <= k2 < columns
    require(good, f"expected diagonals k1 <= k2 of {x}, got {k1} and {k2}")
    longest = max(diagonal_length(rows, columns, k) for k in range(k1, k2 + 1))
    several = (k2 - k1 + 1,) if k1 != k2 else ()
    fitting = TensorType(x.dtype, (*x.shape[:-2], *several, longest))
    require(diagonal == fitting, f"expected diagonals {fitting} for {x}, got {diagonal}")
    return [x]


def _evaluate_set_diag(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, diagonal = inputs
    k1, k2, out = attrs["k1"], attrs["k2"], x.copy()
    rows, columns = x.shape[-2:]
    for k in range(k1, k2 + 1):
        line = diagonal if k1 == k2 else diagonal[..., k2 - k, :]
        n = diagonal_length(rows, columns, k)
        right = attrs["super_diag_right_align" if k >= 0 else "sub_diag_right_align"]
        first = line.shape[-1] - n if right else 0
        place = np.arange(n)
        out[..., place - min(k, 0), place + max(k, 0)] = line[..., first : first + n]
    return [out]


define(
    "graph.matrix_set_diag",
    ("x", "diagonal"),
    "x with diagonals k2 down to k1 replaced by the rows of `diagonal` (for a single one there is no "
    "dimension of rows); shorter diagonals lie at the left or right end of their rows.",
    attrs={
        "k1": AttrDef("int", 0),
        "k2": AttrDef("int", 0),
        "super_diag_right_align": AttrDef("bool", True, "those from the main diagonal on"),
        "sub_diag_right_align": AttrDef("bool", False),
    },
    infer=_infer_set_diag,
    evaluate=_evaluate_set_diag,
    facts=movement(Elements.MOVES, undivided, attributes_stay),
)
