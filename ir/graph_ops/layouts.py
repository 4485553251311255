"""Layouts of images and kernels as strings of dimension letters, and the arithmetic of sliding windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.errors import InputError

DATA_LAYOUTS = ("NCHW", "NHWC")
KERNEL_LAYOUTS = ("OIHW", "HWIO", "OHWI", "HWOI")
TRANSPOSED_KERNEL_LAYOUTS = ("IOHW", "OIHW", "HWIO", "HWOI")


def check_layout(layout: str, known: Sequence[str], name: str, what: str) -> None:
    """Raise InputError unless the layout is among the known ones."""
    if layout not in known:
        raise InputError(f"{name}: expected '{what}' among {', '.join(known)}, got '{layout}'")


def arranged(values: Sequence[int], layout: str, wanted: str) -> tuple[int, ...]:
    """`values`, given in the order of `layout`, in the order of `wanted`."""
    return tuple(values[layout.index(c)] for c in wanted)


def permuted(x: np.ndarray, layout: str, wanted: str) -> np.ndarray:
    """A view of `x` with its axes in the order of `wanted`."""
    return x if layout == wanted else x.transpose([layout.index(c) for c in wanted])


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
    name: str,
    ceil: bool = False,
) -> tuple[Window, Window]:
    """Windows of both spatial dimensions; padding is [top, left, bottom, right]."""
    given = (kernel, strides, dilation)
    if any(len(v) != 2 or min(v) < 1 for v in given) or len(padding) != 4 or min(padding) < 0:
        raise InputError(
            f"{name}: expected two positive entries in kernel, strides and dilation and four "
            f"non-negative ones in padding, got {', '.join(str(tuple(v)) for v in (*given, padding))}"
        )
    found = tuple(
        Window(sizes[d], kernel[d], strides[d], dilation[d], padding[d], padding[d + 2], ceil) for d in (0, 1)
    )
    for w in found:
        if w.count < 1:
            raise InputError(
                f"{name}: expected windows that fit, got {w.kernel} taps of dilation {w.dilation} over "
                f"{w.size} elements padded by {w.before} and {w.after}"
            )
    return found[0], found[1]


def padded(x: np.ndarray, rows: Window, columns: Window, value: float | int | bool) -> np.ndarray:
    """[N, C, H, W] extended by `value` (and cut behind) to exactly what the windows reach over."""
    extra = [max(0, w.needed - w.before - w.size) for w in (rows, columns)]
    if any((rows.before, columns.before, *extra)):
        widths = ((0, 0), (0, 0), (rows.before, extra[0]), (columns.before, extra[1]))
        x = np.pad(x, widths, constant_values=np.asarray(value).astype(x.dtype))
    return x[:, :, : rows.needed, : columns.needed]


def sliding(x: np.ndarray, rows: Window, columns: Window) -> np.ndarray:
    """A view [N, C, KH, KW, OH, OW] of a padded [N, C, H, W]: tap (r, s) of window (y, x)."""
    n, c, h, w = x.strides
    shape = (*x.shape[:2], rows.kernel, columns.kernel, rows.count, columns.count)
    strides = (n, c, h * rows.dilation, w * columns.dilation, h * rows.stride, w * columns.stride)
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)
