"""Input rows a tile of outputs needs: closed forms per tile, and exact clipped counts over all blocks of an
axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class WindowAxis:
    """One spatial axis of a window op: output and input extent, filter, stride, dilation, leading padding."""

    extent: int
    input_extent: int
    filter: int
    stride: int
    dilation: int
    pad: int


def span_rows(tile: IntArray | int, axis: WindowAxis) -> IntArray:
    """Rows from the first to the last one touched by `tile` outputs: (tile-1)S + (F-1)D + 1."""
    tiles = np.asarray(tile, np.int64)
    return (tiles - 1) * axis.stride + (axis.filter - 1) * axis.dilation + 1


def staged_rows(tile: IntArray | int, axis: WindowAxis) -> IntArray:
    """Rows a kernel stages for `tile` outputs: the span on the grid of rows that windows touch at all."""
    gap = axis.stride if axis.filter == 1 else gcd(axis.stride, axis.dilation)
    return (span_rows(tile, axis) - 1) // gap + 1


def distinct_rows(tile: IntArray | int, axis: WindowAxis) -> IntArray:
    """Distinct rows {oS + fD : o < tile, f < F}; for D = 1 it is min((tile-1)S + F, tile F).

    Outputs o and o - D/g meet in a row shifted by S/g taps (g = gcd(S, D)); each such pair counts once.
    """
    common = gcd(axis.stride, axis.dilation)
    output_step, tap_step = axis.dilation // common, axis.stride // common
    tiles = np.asarray(tile, np.int64)
    shared = np.maximum(tiles - output_step, 0) * max(axis.filter - tap_step, 0)
    return np.asarray(tiles * axis.filter - shared, dtype=np.int64)


def clipped_rows(tiles: IntArray, axis: WindowAxis) -> tuple[FloatArray, FloatArray]:
    """Average and minimum over the blocks of the axis of the distinct rows inside the image.

    `tiles` holds block tile sizes (any shape); padding rows are never fetched and do not count. Exact.
    """
    if axis.filter == 1 and axis.pad == 0 and (axis.extent - 1) * axis.stride < axis.input_extent:
        blocks = -(-axis.extent // tiles)  # every output has a row of its own
        return axis.extent / blocks, (axis.extent - (blocks - 1) * tiles).astype(np.float64)
    present = np.zeros(int(tiles.max(initial=0)) + 1, dtype=bool)
    present[tiles] = True
    average = np.zeros(present.size)
    minimum = np.zeros(present.size)
    new_rows, repeated_rows, output_step = _row_counts(axis)
    outputs = np.arange(axis.extent)
    for tile in np.flatnonzero(present):
        rows = new_rows - np.where(outputs % tile >= output_step, repeated_rows, 0)
        per_block = np.add.reduceat(rows, np.arange(0, axis.extent, tile))
        average[tile] = per_block.mean()
        minimum[tile] = per_block.min()
    return average[tiles], minimum[tiles]


@lru_cache(maxsize=4096)
def image_rows(axis: WindowAxis) -> float:
    """Distinct rows of the image that the whole axis touches."""
    average, _ = clipped_rows(np.array([axis.extent]), axis)
    return float(average[0])


def _row_counts(axis: WindowAxis) -> tuple[IntArray, IntArray, int]:
    """Per output: rows in the image, and how many of them output `o - output_step` already brought."""
    common = gcd(axis.stride, axis.dilation)
    output_step, tap_step = axis.dilation // common, axis.stride // common
    taps = np.arange(axis.filter) * axis.dilation
    rows = np.arange(axis.extent)[:, None] * axis.stride - axis.pad + taps[None, :]
    inside = ((rows >= 0) & (rows < axis.input_extent)).astype(np.int64)
    repeated = inside[:, : max(axis.filter - tap_step, 0)].sum(axis=1)
    return inside.sum(axis=1), repeated, output_step
