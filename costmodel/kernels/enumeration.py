"""Enumerates the implementation parameters of a contract kernel as struct-of-arrays chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal

import numpy as np

from tilewright.costmodel.hardware.description import CpuHardware, Hardware
from tilewright.costmodel.kernels.parameters import ContractSpace, Staging
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.windows import IntArray

Rule = Literal["multiples", "divisors", "minimal_cover"]
ChannelSteps = Literal["all", "divisors"]
TilePair = tuple[int, int]

_CHUNK = 1 << 18


def tile_pairs(extent: int, rule: Rule) -> list[TilePair]:
    """All (thread tile, block tile) pairs of one dimension; thread tiles are powers of two up to `extent`.

    `multiples`: every block tile up to the extent that is a multiple of the thread tile. `divisors`: those
    that also divide the extent. `minimal_cover`: for every number of blocks the smallest multiple that covers
    the extent with that many, which may exceed the extent by less than a thread tile.
    """
    pairs: list[TilePair] = []
    thread = 1
    while thread <= extent:
        if rule == "minimal_cover":
            pairs += [(thread, thread * m) for m in cover_sizes(-(-extent // thread))]
        else:
            blocks = range(thread, extent + 1, thread)
            pairs += [(thread, b) for b in blocks if rule == "multiples" or extent % b == 0]
        thread *= 2
    return pairs


def cover_sizes(count: int) -> list[int]:
    """The sizes m for which no smaller one cuts `count` items into as few groups, ascending."""
    sizes = []
    size = 1
    while size <= count:
        sizes.append(size)
        groups = -(-count // size)
        if groups == 1:
            break
        size = -(-count // (groups - 1))
    return sizes


def channel_steps(channels: int, kind: ChannelSteps) -> list[int]:
    """Values of C_input: every one up to `channels`, or its divisors."""
    return [c for c in range(1, channels + 1) if kind == "all" or channels % c == 0]


def count_contract(
    problem: ContractProblem, rule: Rule, *, c_steps: ChannelSteps = "divisors", variants: int = 1
) -> int:
    """The number of points `enumerate_contract` yields, without making them."""
    pairs = [len(tile_pairs(extent, rule)) for extent in (problem.n, problem.k, problem.h, problem.w)]
    return prod(pairs) * len(channel_steps(problem.c, c_steps)) * variants


def enumerate_contract(
    problem: ContractProblem,
    hardware: Hardware,
    rule: Rule = "divisors",
    *,
    c_steps: ChannelSteps = "divisors",
    stages: Sequence[int] = (1,),
    smem_pads: Sequence[int] = (0,),
    chunk: int = _CHUNK,
) -> Iterator[ContractSpace]:
    """The whole space of `rule` in chunks of at most `chunk` points, legal or not, in a fixed order.

    A GPU gets shared staging with 128-bit loads where the thread tile along k allows; a CPU gets direct
    staging with its SIMD width, narrowed to the thread tile along k.
    """
    extents = (problem.n, problem.k, problem.h, problem.w)
    tables = [np.array(tile_pairs(extent, rule), dtype=np.int64) for extent in extents]
    steps = np.array(channel_steps(problem.c, c_steps), dtype=np.int64)
    tails = [steps, np.array(stages, dtype=np.int64), np.array(smem_pads, dtype=np.int64)]
    shape = tuple(len(table) for table in (*tables, *tails))
    staging: Staging = "direct" if isinstance(hardware, CpuHardware) else "shared"
    total = prod(shape)
    for start in range(0, total, chunk):
        index = np.unravel_index(np.arange(start, min(start + chunk, total)), shape)
        yield space_from_tables(tables, tails, index, staging=staging)


def space_from_tables(
    tables: Sequence[IntArray], tails: Sequence[IntArray], index: Sequence[IntArray], *, staging: Staging
) -> ContractSpace:
    """The space of what `index` picks from pair tables (n, k, h, w) and tails (c_step, stages, smem_pad)."""
    tiles = [(table[:, 0][i], table[:, 1][i]) for table, i in zip(tables, index[:4], strict=True)]
    (n_t, n_b), (k_t, k_b), (h_t, h_b), (w_t, w_b) = tiles
    c_step, stages, smem_pad = (tail[i] for tail, i in zip(tails, index[4:], strict=True))
    return ContractSpace(
        n_b=n_b, k_b=k_b, h_b=h_b, w_b=w_b, n_t=n_t, k_t=k_t, h_t=h_t, w_t=w_t, c_step=c_step, stages=stages,
        smem_pad=smem_pad, staging=staging,
    )  # fmt: skip
