"""Runs of layers cut together: only the last layer's boundaries are free, halos are computed twice.

A chain of layers in, its cuts into blocks, their intervals and the seconds of all out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.links import Link
from tilewright.costmodel.partition.intervals import FloatArray, free_space
from tilewright.costmodel.partition.linked import least_max
from tilewright.costmodel.partition.naive import check_speeds
from tilewright.ir.errors import InputError
from tilewright.ir.windows import POINT, Interval, RowWindow

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class ChainLayer:
    """One layer along the cut axis: its rows, its window, and what a row of output costs.

    `macs_per_row` are the multiply-adds of one output row, `input_row_bytes` the bytes of one row of input.
    """

    input_rows: int
    output_rows: int
    window: RowWindow = POINT
    macs_per_row: float = 1.0
    input_row_bytes: float = 1.0

    def reads(self, rows: Interval) -> Interval:
        """Input rows that output rows `rows` need."""
        return self.window.reads(rows, self.input_rows)

    def reads_all(self, starts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
        """`reads` of many intervals at once, elementwise; empty ones read nothing."""
        w = self.window
        first = starts * w.stride - w.pad_before
        stop = (ends - 1) * w.stride - w.pad_before + (w.kernel - 1) * w.dilation + 1
        low = np.clip(first, 0, self.input_rows)
        return low, np.where(ends > starts, np.clip(stop, low, self.input_rows), low)


class FusedBlock(NamedTuple):
    """Layers [first, stop) with each device's rows of the last one, and their seconds without resharding."""

    first: int
    stop: int
    intervals: tuple[Interval, ...]
    seconds: float


class FusedBlocks(NamedTuple):
    """A whole chain: its blocks, and all seconds with what is fetched between them."""

    blocks: tuple[FusedBlock, ...]
    seconds: float


@dataclass(frozen=True)
class BlockProblem:
    """A chain of layers, FLOP/s of the devices that share each of them (two FLOP per multiply-add), and the
    link between the devices.
    """

    layers: tuple[ChainLayer, ...]
    flops_per_s: tuple[float, ...]
    link: Link

    def __post_init__(self) -> None:
        check_speeds(self.flops_per_s)
        if not self.layers:
            raise InputError("expected at least 1 layer, got none")
        for n, (before, after) in enumerate(pairwise(self.layers)):
            if before.output_rows != after.input_rows:
                raise InputError(
                    f"expected layer {n + 1} to read the {before.output_rows} rows of layer {n}, "
                    f"got {after.input_rows}"
                )


def block_tables(problem: BlockProblem, first: int, stop: int) -> list[FloatArray]:
    """Seconds of every device for every interval [s, s + p) of the block's output, as tables [s, p].

    The sum over layers of 2 MACs |rows| / speed, halo rows included; inf for intervals beyond the tensor.
    """
    layers = problem.layers[first:stop]
    rows = layers[-1].output_rows
    starts = np.broadcast_to(np.arange(rows + 1)[:, None], (rows + 1, rows + 1))
    ends = starts + np.arange(rows + 1)[None, :]
    low, high = starts, np.minimum(ends, rows)
    macs = np.zeros(low.shape)
    for layer in reversed(layers):
        macs = macs + layer.macs_per_row * (high - low)
        low, high = layer.reads_all(low, high)
    return [np.where(ends <= rows, 2 * macs / speed, np.inf) for speed in problem.flops_per_s]


def least_block(problem: BlockProblem, first: int, stop: int) -> FusedBlock:
    """The best boundaries of layers [first, stop) cut as one block, exactly: O(devices rows^2 layers)."""
    if not 0 <= first < stop <= len(problem.layers):
        raise InputError(f"expected layers within 0 to {len(problem.layers)}, got [{first}, {stop})")
    rows = problem.layers[stop - 1].output_rows
    space = free_space(rows, [rows] * len(problem.flops_per_s))
    tables = [
        table[node.starts.start : node.starts.stop]
        for table, node in zip(block_tables(problem, first, stop), space.nodes, strict=True)
    ]
    best = least_max(space, tables)
    return FusedBlock(first, stop, best.intervals, best.value)


def input_of_block(layers: Sequence[ChainLayer], rows: Interval) -> Interval:
    """Rows of the first layer's input that `rows` of the last layer's output need."""
    for layer in reversed(layers):
        rows = layer.reads(rows)
    return rows


def reshard_seconds(
    problem: BlockProblem, owned: Sequence[Interval], first: int, stop: int, intervals: Sequence[Interval]
) -> float:
    """Seconds until all devices have the input rows that `intervals` of block [first, stop) need.

    Every device fetches at once; rows it has are kept. There is one message for each side of the own rows
    from which rows are fetched; a device without own rows that needs some gets one. Neighbours are taken to
    own the rows beside, so a halo wider than a neighbour's rows counts too few.
    """
    layers = problem.layers[first:stop]
    low, high = np.array([input_of_block(layers, rows) for rows in intervals], dtype=np.int64).T
    start, end = np.array(owned, dtype=np.int64).T
    common = np.maximum(0, np.minimum(end, high) - np.maximum(start, low))
    sides = np.where(end > start, (low < start).astype(np.int64) + (high > end), 1)
    messages = np.where(high > low, sides, 0)
    fetched = np.maximum(0, high - low - common)
    return float(problem.link.messages_s(messages, fetched * layers[0].input_row_bytes).max())


def least_blocks(problem: BlockProblem, longest: int | None = None) -> FusedBlocks:
    """Cut the chain into blocks: the shortest path over blocks, resharding between them included.

    Each block's boundaries are those of `least_block`, the chain's input is on every device. `longest`
    bounds the layers of a block. Exact over the cuts for these boundaries.
    """
    count = len(problem.layers)
    most = count if longest is None else longest
    if most < 1:
        raise InputError(f"expected blocks of at least 1 layer, got {most}")
    best: dict[tuple[int, int], FusedBlocks] = {}
    for first in range(count):
        paths = [path for (_, end), path in best.items() if end == first]
        for stop in range(first + 1, min(count, first + most) + 1):
            block = least_block(problem, first, stop)
            options = [FusedBlocks((block,), block.seconds)] if first == 0 else []
            for blocks, seconds in paths:
                moved = reshard_seconds(problem, blocks[-1].intervals, first, stop, block.intervals)
                options.append(FusedBlocks((*blocks, block), seconds + moved + block.seconds))
            best[first, stop] = min(options, key=lambda option: option.seconds)
    return min((path for (_, stop), path in best.items() if stop == count), key=lambda path: path.seconds)
