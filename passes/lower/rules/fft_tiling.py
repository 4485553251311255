"""Extents of the tiles of FFT convolution: the pair of transform lengths with the fewest multiplications."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from tilewright.ir.graph_ops.convolution import Convolution

#: lengths of a transform along one dimension
LENGTHS = (4, 6, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64)


@dataclass(frozen=True)
class Tiling:
    """Overlap-save tiles along both dimensions: transform length, valid outputs per tile, number of tiles."""

    length: tuple[int, int]
    valid: tuple[int, int]
    count: tuple[int, int]

    @property
    def frequencies(self) -> int:
        """Frequencies kept along the last dimension: those of a real signal."""
        return self.length[1] // 2 + 1


@lru_cache(maxsize=1024)
def fft_tiling(g: Convolution) -> Tiling:
    """The tiling with the fewest multiply-adds over all five steps."""
    options = []
    for lengths in product(LENGTHS, repeat=2):
        pairs = list(zip(lengths, g.windows, strict=True))
        if any(n <= w.kernel for n, w in pairs):
            continue
        valid = tuple(n - w.kernel + 1 for n, w in pairs)
        count = tuple(-(-w.count // v) for w, v in zip(g.windows, valid, strict=True))
        options.append(Tiling((lengths[0], lengths[1]), (valid[0], valid[1]), (count[0], count[1])))
    return min(options, key=lambda t: multiply_adds(g, t))


def multiply_adds(g: Convolution, t: Tiling) -> int:
    """Multiply-adds per sample of the transforms of the data, the products and the transforms back.

    A complex product counts four.
    """
    half, tiles = t.frequencies, t.count[0] * t.count[1]
    inputs, outputs = g.groups * g.channels, g.groups * g.filters
    forward = (
        inputs * 2 * half * (g.windows[0].size * t.count[1] * t.length[1] + tiles * 2 * t.length[0] ** 2)
    )
    products = outputs * g.channels * tiles * t.length[0] * half * 4
    back = outputs * 2 * half * tiles * t.valid[0] * (2 * t.length[0] + t.valid[1])
    return forward + products + back


def too_large(g: Convolution) -> str:
    """Why no tiling fits a kernel; empty where one does."""
    taps = [w.kernel for w in g.windows]
    if min(taps) < 2 or max(taps) >= LENGTHS[-1]:
        return (
            f"expected a kernel between 2x2 and {LENGTHS[-1] - 1}x{LENGTHS[-1] - 1}, got {taps[0]}x{taps[1]}"
        )
    return ""
