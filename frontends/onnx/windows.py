"""Windows of convolutions and pools as ONNX describes them: padding given, or chosen to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.frontends.onnx.node import Node
from tilewright.ir.errors import InputError, UnsupportedError

#: data and kernel layouts by number of spatial dimensions
DATA = {1: "NCW", 2: "NCHW", 3: "NCDHW"}
KERNEL = {1: "OIW", 2: "OIHW", 3: "OIDHW"}
TRANSPOSED = {1: "IOW", 2: "IOHW", 3: "IODHW"}


@dataclass(frozen=True, slots=True)
class Geometry:
    """Kernel, strides, dilation and padding (all before, then all after) of the spatial dimensions."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """The extents that a window spans."""
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True))


def spatial_rank(shape: Sequence[int], most: int = 3) -> int:
    """Dimensions after batch and channels; raises UnsupportedError for more than there are kernels for."""
    rank = len(shape) - 2
    if rank < 1:
        raise InputError(f"expected [N, C, spatial dimensions...], got {tuple(shape)}")
    if rank > most:
        raise UnsupportedError(f"expected at most {most} spatial dimensions, got {tuple(shape)}")
    return rank


def geometry(node: Node, sizes: Sequence[int], kernel: Sequence[int]) -> Geometry:
    """The windows of a node over spatial extents `sizes`; raises InputError where attributes do not fit."""
    n = len(sizes)
    kernel = _counted(kernel, n, "kernel_shape")
    strides = _counted(node.integers("strides", (1,) * n), n, "strides")
    dilation = _counted(node.integers("dilations", (1,) * n), n, "dilations")
    pads = _counted(node.integers("pads", (0,) * (2 * n)), 2 * n, "pads")
    auto = node.text("auto_pad", "NOTSET")
    plain = Geometry(tuple(kernel), strides, dilation, pads)
    if auto == "NOTSET":
        return plain
    if auto == "VALID":
        return Geometry(plain.kernel, strides, dilation, (0,) * (2 * n))
    if auto not in ("SAME_UPPER", "SAME_LOWER"):
        raise InputError(f"expected auto_pad NOTSET, VALID, SAME_UPPER or SAME_LOWER, got '{auto}'")
    before, after = [], []
    for size, stride, reach in zip(sizes, strides, plain.reach, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + reach - size)
        small, large = total // 2, total - total // 2
        before.append(small if auto == "SAME_UPPER" else large)
        after.append(large if auto == "SAME_UPPER" else small)
    return Geometry(plain.kernel, strides, dilation, (*before, *after))


def _counted(values: Sequence[int], count: int, name: str) -> tuple[int, ...]:
    if len(values) != count:
        raise InputError(f"expected {count} entries in '{name}', got {tuple(values)}")
    return tuple(values)


def pooled(g: Geometry, sizes: Sequence[int], ceil: bool) -> tuple[Geometry, bool]:
    """Windows and the rounding of their number, without windows that would start behind the elements.

    Such a window is the one that rounding up adds, so that rounding down leaves it out.
    """
    if not ceil:
        return g, False
    n = len(sizes)
    up: list[int] = []
    down: list[int] = []
    for d, (size, stride, reach) in enumerate(zip(sizes, g.strides, g.reach, strict=True)):
        room = size_of(g, sizes, d) - reach
        if room % stride:
            (up if -(-room // stride) * stride < size + g.padding[d] else down).append(d)
    if not up or not down:
        return g, bool(up)
    padding = list(g.padding)
    for d in up:
        room = size_of(g, sizes, d) - g.reach[d]
        padding[n + d] += -room % g.strides[d]
    return Geometry(g.kernel, g.strides, g.dilation, tuple(padding)), False


def size_of(g: Geometry, sizes: Sequence[int], d: int) -> int:
    """Extent of dimension `d` with its padding."""
    return sizes[d] + g.padding[d] + g.padding[len(sizes) + d]
