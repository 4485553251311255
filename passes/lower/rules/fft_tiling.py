"""Extents of the tiles of FFT convolution: the pair of transform lengths with the least work."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from tilewright.ir.graph_ops.convolution import ConvolutionGeometry
from tilewright.passes.lower.tables import LARGEST_CONSTANT

#: multiply-adds that take as long as bringing in one element of a kernel's transform (66 TFLOP/s, 3.35 TB/s)
KERNEL_ELEMENT = 40

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
def fft_tiling(g: ConvolutionGeometry) -> Tiling:
    """The tiling with the least work over all five steps."""
    options = []
    for lengths in product(LENGTHS, repeat=2):
        pairs = list(zip(lengths, g.windows, strict=True))
        if any(n <= w.kernel for n, w in pairs):
            continue
        valid = tuple(n - w.kernel + 1 for n, w in pairs)
        count = tuple(-(-w.count // v) for w, v in zip(g.windows, valid, strict=True))
        options.append(Tiling((lengths[0], lengths[1]), (valid[0], valid[1]), (count[0], count[1])))
    return min(options, key=lambda t: work(g, t))


def kernel_size(g: ConvolutionGeometry, t: Tiling) -> int:
    """Elements of the transformed kernel: four per complex number."""
    return 4 * g.groups * g.filters * g.channels * t.length[0] * t.frequencies


def work(g: ConvolutionGeometry, t: Tiling) -> int:
    """Multiply-adds of the transforms of the data, the products and the transforms back, and what reading the
    transformed kernel takes meanwhile. A complex product counts four.
    """
    half, tiles = t.frequencies, t.count[0] * t.count[1]
    inputs, outputs = g.groups * g.channels, g.groups * g.filters
    forward = (
        inputs * 2 * half * (g.windows[0].size * t.count[1] * t.length[1] + tiles * 2 * t.length[0] ** 2)
    )
    products = outputs * g.channels * tiles * t.length[0] * half * 4
    back = outputs * 2 * half * tiles * t.valid[0] * (2 * t.length[0] + t.valid[1])
    return g.batch * (forward + products + back) + KERNEL_ELEMENT * kernel_size(g, t)


def too_large(g: ConvolutionGeometry) -> str:
    """Why no tiling fits a kernel; empty where one does."""
    taps = [w.kernel for w in g.windows]
    if min(taps) < 2 or max(taps) >= LENGTHS[-1]:
        return (
            f"expected a kernel between 2x2 and {LENGTHS[-1] - 1}x{LENGTHS[-1] - 1}, got {taps[0]}x{taps[1]}"
        )
    size = kernel_size(g, fft_tiling(g))
    return "" if size <= LARGEST_CONSTANT else f"its transformed kernel would have {size} elements"
