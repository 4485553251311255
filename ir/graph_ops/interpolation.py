"""Samples of a resized axis in its source: exact fractional coordinates, taps and weights."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from tilewright.ir.types import numpy_dtype

METHODS = ("nearest_neighbor", "linear", "cubic")
#: by float coordinates, since the corners of the region are numbers of the user
CROPPING = "tf_crop_and_resize"
MODES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn", CROPPING)
ROUNDING = ("round", "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
#: added before rounding down a float coordinate (subtracted before rounding up), as Relay does
EPSILON = 1e-5

Polynomials = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Rational:
    """The coordinate (scale * x + shift) / divisor of output element x, in elements of the source."""

    scale: int
    shift: int
    divisor: int

    @classmethod
    def of(cls, mode: str, size: int, target: int) -> Rational:
        """The coordinate of a mode (any but cropping) from `target` elements to `size`."""
        match mode:
            case "pytorch_half_pixel" if target == 1:
                best = (0, 0, 1)
            case "half_pixel" | "pytorch_half_pixel":
                best = (2 * size, size - target, 2 * target)
            case "align_corners":
                best = (size - 1, 0, max(1, target - 1))
            case "asymmetric":
                best = (size, 0, target)
            case _:
                best = (2 * size, size, 2 * target)
        common = gcd(*best) or 1
        return cls(*(v // common for v in best))

    def nearest(self, rounding: str) -> Rational:
        """What, divided with rounding down, is the nearest element."""
        a, c, d = self.scale, self.shift, self.divisor
        match rounding:
            case "floor":
                return self
            case "ceil":
                return Rational(a, c + d - 1, d)
            case "round_prefer_floor":
                return Rational(2 * a, 2 * c + d - 1, 2 * d)
            case _:
                return Rational(2 * a, 2 * c + d, 2 * d)


def polynomials(method: str, alpha: float = -0.5) -> Polynomials:
    """The weight of each tap as a polynomial in the fraction of the coordinate, lowest power first.

    Linear interpolation weighs the two, cubic convolution (Keys, 1981) the four nearest elements.
    """
    if method == "nearest_neighbor":
        return ((1.0,),)
    if method == "linear":
        return ((1.0, -1.0), (0.0, 1.0))
    return (
        (0.0, alpha, -2 * alpha, alpha),
        (1.0, 0.0, -(alpha + 3), alpha + 2),
        (0.0, -alpha, 2 * alpha + 3, -(alpha + 2)),
        (0.0, 0.0, alpha, -alpha),
    )


def first_tap(method: str) -> int:
    """The first tap, counted from the coordinate rounded down."""
    return -1 if method == "cubic" else 0


def weighted(
    base: np.ndarray, fraction: np.ndarray, method: str, alpha: float, size: int, *, exclude: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Taps and weights [taps, ...]; taps outside are moved to the edge, or weigh nothing if `exclude`."""
    weights = np.stack(
        [np.polynomial.polynomial.polyval(fraction, p) for p in polynomials(method, alpha)]
    ).astype(fraction.dtype)
    taps = np.stack([base + first_tap(method) + k for k in range(len(weights))])
    if exclude and method == "cubic":
        weights = np.where((taps < 0) | (taps >= size), 0, weights)
        weights = weights / weights.sum(axis=0)
    return np.clip(taps, 0, max(0, size - 1)), weights


def rounded(coordinate: np.ndarray, rounding: str) -> np.ndarray:
    """The nearest element of float coordinates (int64)."""
    match rounding:
        case "floor":
            out = np.floor(coordinate + EPSILON)
        case "ceil":
            out = np.ceil(coordinate - EPSILON)
        case "round_prefer_floor":
            out = np.ceil(coordinate - 0.5)
        case _:
            out = np.floor(coordinate + 0.5)
    return out.astype(np.int64)


def cropped(start: float, end: float, size: int, target: int) -> np.ndarray:
    """Coordinates of `target` elements spread over a region given in fractions of the axis."""
    dtype = numpy_dtype("f32")
    if target == 1:
        return np.full(1, 0.5 * (start + end) * (size - 1), dtype)
    x = np.arange(target).astype(dtype)
    first = np.asarray(start * (size - 1), dtype)
    return (first + x * np.asarray((end - start) * (size - 1), dtype) / dtype.type(target - 1)).astype(dtype)


def default_rounding(rounding: str, mode: str) -> str:
    """The rounding method; the empty one depends on the mode."""
    return rounding or ("round" if mode == "align_corners" else "floor")


def letters(layout: str) -> tuple[str, ...]:
    """The dimensions of a layout such as NCHW or NCHW4c: the packed parts are lower-case letters."""
    return tuple(re.findall(r"[A-Za-z]", layout))


def spatial(layout: str) -> tuple[int, ...]:
    """Positions of D, H and W, in this order, in a layout."""
    dims = letters(layout)
    return tuple(dims.index(c) for c in "DHW" if c in dims)


def is_layout(layout: str, dimensions: Sequence[str]) -> bool:
    """True for an arrangement of these dimensions, some of which may be packed as in NCHW4c."""
    if not re.fullmatch(r"([A-Z]|[1-9][0-9]*[a-z])+", layout):
        return False
    dims = letters(layout)
    packed = [c for c in dims if c.islower()]
    plain = sorted(c for c in dims if c.isupper())
    return plain == sorted(dimensions) and len(set(packed)) == len(packed) and set(packed) <= {"c", "n"}
