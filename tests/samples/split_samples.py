"""Factors of float32 that are hard to multiply in pieces, and errors of their products beside chains."""

import numpy as np

from tilewright.ir.float_pieces import PIECES, SCALE

#: the unit roundoff of float32
ROUNDOFF = 2.0**-24


def assert_no_worse(got: np.ndarray, a: np.ndarray, b: np.ndarray, kind: str) -> None:
    """Errors are no larger than those of a chain.

    A chain rounds a sum of few products that are not 0 less often; both errors are about half a unit there.
    """
    norm, largest = errors(got, a, b)
    chain_norm, chain_largest = errors(chain(a, b), a, b)
    few = kind == "sparse"
    assert norm <= (1.15 if few else 1.0) * chain_norm
    assert largest <= (1.5 if few else 1.0) * max(1.0, chain_largest)


def chain(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b in float32, one fused multiply-add after another, as the lanes have it."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.float32)
    with np.errstate(all="ignore"):
        for k in range(a.shape[1]):
            exact = total.astype(np.float64) + a[:, k : k + 1].astype(np.float64) * b[k].astype(np.float64)
            total = exact.astype(np.float32)
    return total


def errors(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Norm and largest element of the error, relative to sum |a| |b|, in units of roundoff."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    size = np.abs(a) @ np.abs(b)
    error = np.abs(got.astype(np.float64) - a @ b)
    largest = float((error / np.where(size > 0, size, 1)).max())
    return float(np.linalg.norm(error) / np.linalg.norm(size)) / ROUNDOFF, largest / ROUNDOFF


def factors(kind: str, m: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors [m, k] and [k, n] that are hard in one way."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if kind == "positive":
        a, b = np.abs(a), np.abs(b)
    elif kind == "wide":
        a, b = (x * 2.0 ** rng.integers(-20, 20, x.shape) for x in (a, b))
    elif kind == "cancelling":
        half = k // 2
        a = np.concatenate([a[:, :half], a[:, :half], a[:, 2 * half :]], axis=1)
        b[half : 2 * half] = -b[:half] * (1 + 1e-6 * rng.standard_normal((half, n)))
    elif kind == "sparse":
        a = a * (rng.random((m, k)) < 1 / 16)
    elif kind == "1e30":
        a, b = a * 1e30, b * 1e-30
    elif kind == "1e-37":
        a, b = a * 1e-37, b * 1e20
    elif kind == "denormal":
        a, b = a * 1e-41, b * 1e28
    return a.astype(np.float32), b.astype(np.float32)


KINDS = ("normal", "positive", "wide", "cancelling", "sparse", "1e30", "1e-37", "denormal")


def truncated(x: np.ndarray) -> np.ndarray:
    """float64 to float32 toward zero: what matrix instructions do to their sums at worst."""
    near = x.astype(np.float32)
    over = np.abs(near.astype(np.float64)) > np.abs(x)
    return np.where(over, np.nextafter(near, np.float32(0)), near)


def pieces(x: np.ndarray) -> list[np.ndarray]:
    rest, out = (x * np.float32(SCALE)).astype(np.float32), []
    for _ in range(PIECES):
        bits = rest.view(np.uint32)
        even = (bits >> np.uint32(16)) & np.uint32(1)
        out.append(((bits + even + np.uint32(0x7FFF)) & np.uint32(0xFFFF0000)).view(np.float32))
        rest = rest - out[-1]
    assert not rest.any()
    return out
