"""Layouts of images and kernels as strings of dimension letters, and the arithmetic of sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.errors import InputError

#: letters of the spatial dimensions of images with one, two or three of them
SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
_COUNTS = {1: "one", 2: "two", 3: "three", 4: "four", 6: "six"}


def data_layouts(spatial: int) -> tuple[str, ...]:
    """Known orders of an image's dimensions: samples N, channels C and the spatial ones."""
    s = SPATIAL[spatial]
    return (f"NC{s}", f"N{s}C", f"{s}CN")


def kernel_layouts(spatial: int) -> tuple[str, ...]:
    """Known orders of a kernel's dimensions: output channels O, input channels I and the spatial ones."""
    s = SPATIAL[spatial]
    return (f"OI{s}", f"{s}IO", f"O{s}I", f"{s}OI", f"IO{s}", f"I{s}O")


def check_layout(layout: str, known: Sequence[str], what: str) -> None:
    """Raise InputError unless the layout is among the known ones."""
    if layout not in known:
        raise InputError(f"expected '{what}' among {', '.join(known)}, got '{layout}'")


def arranged(values: Sequence[int], layout: str, order: str) -> tuple[int, ...]:
    """`values`, given in the order of `layout`, in the order of the letters of `order`."""
    return tuple(values[layout.index(c)] for c in order)


def permuted(x: np.ndarray, layout: str, order: str) -> np.ndarray:
    """A view of `x` with its axes in the order of the letters of `order`."""
    return x if layout == order else x.transpose([layout.index(c) for c in order])


@dataclass(frozen=True, slots=True)
class Window:
    """Sliding windows along one spatial dimension: `count` of them over `size` elements padded on both sides.

    Window i covers elements `i * stride - before + k * dilation` for k in 0..kernel-1.
    """

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    ceil: bool = False

    @property
    def reach(self) -> int:
        """Elements between the first and the last tap, both included."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def count(self) -> int:
        """Number of windows; with `ceil`, the last one may be cut off by the edge."""
        room = self.size + self.before + self.after - self.reach
        return (room + (self.stride - 1 if self.ceil else 0)) // self.stride + 1

    @property
    def needed(self) -> int:
        """Elements the windows reach over, from the first tap of the first to the last tap of the last."""
        return (self.count - 1) * self.stride + self.reach


def windows(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool = False,
) -> tuple[Window, ...]:
    """Windows of every spatial dimension; padding is that before each dimension, then that after each."""
    sequences, n = (kernel, strides, dilation), len(sizes)
    if any(len(v) != n or min(v) < 1 for v in sequences) or len(padding) != 2 * n or min(padding) < 0:
        raise InputError(
            f"expected {_COUNTS[n]} positive entries in kernel, strides and dilation and "
            f"{_COUNTS[2 * n]} non-negative ones in padding, got "
            f"{', '.join(str(tuple(v)) for v in (*sequences, padding))}"
        )
    along = tuple(
        Window(sizes[d], kernel[d], strides[d], dilation[d], padding[d], padding[d + n], ceil)
        for d in range(n)
    )
    for w in along:
        if w.count < 1:
            raise InputError(
                f"expected windows that fit, got {w.kernel} taps of dilation {w.dilation} over "
                f"{w.size} elements padded by {w.before} and {w.after}"
            )
    return along


def padded(x: np.ndarray, along: Sequence[Window], value: float | int | bool) -> np.ndarray:
    """[N, C, spatial...] extended by `value` (and cut behind) to exactly what the windows reach over."""
    extra = [max(0, w.needed - w.before - w.size) for w in along]
    if any(w.before for w in along) or any(extra):
        widths = ((0, 0), (0, 0), *((w.before, e) for w, e in zip(along, extra, strict=True)))
        x = np.pad(x, widths, constant_values=np.asarray(value).astype(x.dtype))
    return x[:, :, *(slice(w.needed) for w in along)]


def sliding(x: np.ndarray, along: Sequence[Window]) -> np.ndarray:
    """A view [N, C, taps..., windows...] of a padded [N, C, spatial...]: every tap of every window."""
    shape = (*x.shape[:2], *(w.kernel for w in along), *(w.count for w in along))
    steps = list(zip(x.strides[2:], along, strict=True))
    strides = (*x.strides[:2], *(s * w.dilation for s, w in steps), *(s * w.stride for s, w in steps))
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)
