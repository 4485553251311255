"""Trying an executable: inputs to call it with, and how far its results are off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir import ArrayType


def random_inputs(names: Sequence[str], types: Sequence[ArrayType], seed: int) -> list[np.ndarray]:
    """Standard normal arrays (integers in [0, 1000) for integer types), one per input."""
    rng = np.random.default_rng(seed)
    out = []
    for t in types:
        if t.dtype == "bool":
            out.append(rng.integers(0, 2, t.shape).astype(bool))
        elif "int" in t.dtype:
            out.append(rng.integers(0, 100 if t.dtype.endswith("int8") else 1000, t.shape).astype(t.dtype))
        else:
            out.append(rng.standard_normal(t.shape).astype(t.dtype))
    return out


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    """Norm of the difference over that of `expected`, in float64, of the elements that are finite in both.

    The others must agree: NaN with NaN, an infinity with one of its sign or with what overflows in the type
    of `got`. inf where they do not, or where the shapes differ.
    """
    if got.shape != expected.shape:
        return float("inf")
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.all():
        with np.errstate(over="ignore", invalid="ignore"):
            stored = expected[~finite].astype(got.dtype).astype(np.float64)
        if not np.array_equal(a[~finite], stored, equal_nan=True):
            return float("inf")
        a, b = a[finite], b[finite]
    norm = float(np.linalg.norm(b)) or 1.0
    error = float(np.linalg.norm(a - b)) / norm
    return error if np.isfinite(error) else float("inf")


def largest_error(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest `relative_error` of several results; inf where there are none, or not as many."""
    if len(results) != len(expected):
        return float("inf")
    return max(map(relative_error, results, expected), default=float("inf"))
