"""Runs of layers cut together: only the last layer's boundaries are free, halos are computed twice.

A chain of layers in, its cuts into blocks, their intervals and the seconds of all out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from tilewright.costmodel.partition.chain import ChainLayer, Device, Link, check_chain, fetch_tables
from tilewright.costmodel.partition.intervals import free_space
from tilewright.costmodel.partition.linked import Found, least_max, least_sum
from tilewright.costmodel.partition.naive import Interval
from tilewright.costmodel.partition.objective import FloatArray, ends_of
from tilewright.ir.errors import InputError

Total = Literal["slowest", "sum"]


class Block(NamedTuple):
    """Layers [first, stop) with each device's rows of the last one, and their seconds without resharding."""

    first: int
    stop: int
    intervals: tuple[Interval, ...]
    seconds: float


class Blocks(NamedTuple):
    """A whole chain: its blocks, and all seconds with what is fetched between them."""

    blocks: tuple[Block, ...]
    seconds: float


@dataclass(frozen=True)
class BlockProblem:
    """A chain of layers, the devices that share each of them, and the link between the devices.

    `total` says what the seconds of a block are: those of its slowest device, or the sum of all.
    """

    layers: tuple[ChainLayer, ...]
    devices: tuple[Device, ...]
    link: Link
    total: Total = "slowest"

    def __post_init__(self) -> None:
        check_chain(self.layers)
        if not self.devices:
            raise InputError("expected at least 1 device, got 0")
        if any(device.measured_s for device in self.devices):
            raise InputError("expected devices by FLOP/s for several layers, got measured seconds of one")


def input_of_block(layers: Sequence[ChainLayer], rows: Interval) -> Interval:
    """Rows of the first layer's input that `rows` of the last layer's output need."""
    for layer in reversed(layers):
        rows = layer.reads(rows)
    return rows


def block_tables(
    problem: BlockProblem, first: int, stop: int, owned: Sequence[Interval] | None = None
) -> list[FloatArray]:
    """Seconds of every device for every interval [s, s + p) of the block's output, as tables [s, p].

    The sum over layers of 2 MACs |rows| / speed, halo rows included, and, where `owned` says who has which
    row of the block's input, the seconds to fetch the rest. inf where weights, input and output rows of
    some layer exceed the device's memory, or the interval its tensor.
    """
    layers = problem.layers[first:stop]
    rows = layers[-1].output_rows
    space = free_space(rows, [rows])
    start, end = ends_of(space.nodes[0])
    starts = np.broadcast_to(np.arange(rows + 1)[:, None], (rows + 1, rows + 1))
    ends = starts + (end - start)
    low, high = starts, np.minimum(ends, rows)
    macs, held = np.zeros(low.shape), np.zeros(low.shape)
    for layer in reversed(layers):
        made = high - low
        macs = macs + layer.macs_per_row * made
        low, high = layer.reads_all(low, high)
        room = made * layer.output_row_bytes + (high - low) * layer.input_row_bytes
        held = np.maximum(held, room)
    held = held + sum(layer.weight_bytes for layer in layers) * (ends > starts)
    tables = []
    for n, device in enumerate(problem.devices):
        seconds = np.asarray(2 * macs / device.flops_per_s, dtype=np.float64)
        if owned is not None:
            own = np.full_like(low, owned[n][0]), np.full_like(low, owned[n][1])
            fetched, messages = fetch_tables(own, (low, high))
            seconds = seconds + problem.link.seconds(messages, fetched * layers[0].input_row_bytes)
        tables.append(np.where((ends <= rows) & (held <= device.memory_bytes), seconds, np.inf))
    return tables


def least_block(
    problem: BlockProblem, first: int, stop: int, owned: Sequence[Interval] | None = None
) -> Block:
    """The best boundaries of layers [first, stop) cut as one block, exactly: O(devices rows^2 layers).

    Raises InputError where the layers do not fit the devices' memories.
    """
    if not 0 <= first < stop <= len(problem.layers):
        raise InputError(f"expected layers within 0 to {len(problem.layers)}, got [{first}, {stop})")
    rows = problem.layers[stop - 1].output_rows
    space = free_space(rows, [rows] * len(problem.devices))
    tables = block_tables(problem, first, stop, owned)
    tables = [
        table[node.starts.start : node.starts.stop] for table, node in zip(tables, space.nodes, strict=True)
    ]
    search = least_max if problem.total == "slowest" else least_sum
    found: Found = search(space, tables)
    return Block(first, stop, found.intervals, found.value)


def reshard_seconds(
    problem: BlockProblem, owned: Sequence[Interval], first: int, stop: int, intervals: Sequence[Interval]
) -> float:
    """Seconds until all devices have the input rows that `intervals` of block [first, stop) need.

    Every device fetches at once; rows it has are kept. With `total` "sum" the devices' seconds add up.
    """
    layers = problem.layers[first:stop]
    wanted = np.array([input_of_block(layers, rows) for rows in intervals], dtype=np.int64)
    own = np.array(owned, dtype=np.int64)
    fetched, messages = fetch_tables((own[:, 0], own[:, 1]), (wanted[:, 0], wanted[:, 1]))
    seconds = problem.link.seconds(messages, fetched * layers[0].input_row_bytes)
    return float(seconds.max() if problem.total == "slowest" else seconds.sum())


def least_blocks(problem: BlockProblem, longest: int | None = None) -> Blocks:
    """Where to cut the chain into blocks: the shortest path over blocks, resharding between them included.

    Each block's boundaries are those of `least_block`, the chain's input is on every device. `longest`
    bounds the layers of a block. Exact over the cuts for these boundaries. Raises InputError where some
    layer fits no block.
    """
    count = len(problem.layers)
    most = count if longest is None else longest
    if most < 1:
        raise InputError(f"expected blocks of at least 1 layer, got {most}")
    blocks: dict[tuple[int, int], Block] = {}
    for first in range(count):
        for stop in range(first + 1, min(count, first + most) + 1):
            try:
                blocks[first, stop] = least_block(problem, first, stop)
            except InputError:
                continue  # this run does not fit the memories; shorter ones may
    best: dict[tuple[int, int], tuple[float, tuple[Block, ...]]] = {}
    for (first, stop), block in sorted(blocks.items()):
        options: list[tuple[float, tuple[Block, ...]]] = [(block.seconds, (block,))] if first == 0 else []
        for (_, end), (seconds, path) in list(best.items()):
            if end == first:
                moved = reshard_seconds(problem, path[-1].intervals, first, stop, block.intervals)
                options.append((seconds + moved + block.seconds, (*path, block)))
        if options:
            best[first, stop] = min(options, key=lambda option: option[0])
    finished = [found for (_, stop), found in best.items() if stop == count]
    if not finished:
        raise InputError("expected memories that hold every layer in some block, got a chain that fits none")
    seconds, path = min(finished, key=lambda found: found[0])
    return Blocks(path, seconds)
