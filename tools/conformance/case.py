"""Suites of conformance cases, and the results of single cases."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir import InputError, UnsupportedError
from tilewright.ir.types import FLOATS, dtype_name
from tilewright.tools.arguments.printing import error_line

PASSED, FAILED, UNSUPPORTED = "passed", "failed", "unsupported"


@dataclass(frozen=True)
class Result:
    """One case on one target. `reason` is empty where it passed; `error` is relative, or nan."""

    suite: str
    name: str
    target: str
    status: str
    reason: str = ""
    error: float = float("nan")
    seconds: float = 0.0


@dataclass(frozen=True)
class Suite:
    """Named cases. `run(name, target)` gives the relative error of a case or raises.

    UnsupportedError says that the product declines the case, any other error that the case failed.
    """

    name: str
    cases: tuple[str, ...]
    run: Callable[[str, str], float]


def run_case(suite: Suite, name: str, target: str) -> Result:
    """Run one case; every error becomes a result with its reason in one line."""
    start = time.perf_counter()
    status, reason, error = PASSED, "", float("nan")
    try:
        error = suite.run(name, target)
    except UnsupportedError as e:
        status, reason = UNSUPPORTED, error_line(e)
    except Exception as e:  # noqa: BLE001 - a crash of the compiler is a finding here
        status, reason = FAILED, f"{type(e).__name__}: {error_line(e)}"
    return Result(suite.name, name, target, status, reason, error, time.perf_counter() - start)


def compare(got: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference, relative to the largest magnitude of its result.

    Results of integers and booleans must be equal, floating ones within 1e-4 (2e-2 where 16 bits wide) with
    their nans and infinities at the same places. Raises InputError saying which result differs and how.
    """
    if len(got) != len(expected):
        raise InputError(f"expected {len(expected)} results, got {len(got)}")
    return max(
        (_difference(i, np.asarray(g), w) for i, (g, w) in enumerate(zip(got, expected, strict=True))),
        default=0.0,
    )


def exact_fault(got: np.ndarray, expected: np.ndarray) -> str:
    """The fault of a result in shape, dtype or a value that no rounding excuses; empty without one."""
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        return f"expected {expected.dtype}{list(expected.shape)}, got {got.dtype}{list(got.shape)}"
    if dtype_name(expected.dtype) in FLOATS:
        return ""
    wrong = np.argwhere(got != expected)
    if not len(wrong):
        return ""
    at = tuple(int(x) for x in wrong[0])
    return f"{len(wrong)} of {got.size} elements differ, first {got[at]} for {expected[at]} at {list(at)}"


def _difference(i: int, got: np.ndarray, expected: np.ndarray) -> float:
    where = f"result {i}"
    if fault := exact_fault(got, expected):
        raise InputError(fault, where=where)
    if dtype_name(expected.dtype) not in FLOATS:
        return 0.0
    a, b = got.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        raise InputError("infinities or nans differ from those expected", where=where)
    if not finite.any():
        return 0.0
    scale = float(np.abs(b[finite]).max()) or 1.0
    error = float(np.abs(a[finite] - b[finite]).max()) / scale
    limit = 2e-2 if expected.dtype.itemsize == 2 else 1e-4
    if not error <= limit:
        raise InputError(f"relative error {error:.3g} is above {limit:g}", where=where)
    return error
