"""Tiles of the parallel domain, spread over blocks and threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir import Expr, Sym

MAX_GRID_YZ = 65535


@dataclass(frozen=True)
class Tile:
    """One parallel dimension: a block covers `block` indices, a thread `thread` of them.

    A thread owns runs of `run` consecutive indices (vector access), which are `threads * run` apart, so that
    neighbouring threads own neighbouring runs (coalesced, conflict-free). `lanes` of the threads lie in one
    warp; 0 leaves it to the order of the tiles.
    """

    name: str
    extent: int
    block: int
    thread: int
    run: int = 1
    lanes: int = 0

    @property
    def threads(self) -> int:
        return self.block // self.thread

    @property
    def blocks(self) -> int:
        return -(-self.extent // self.block)

    def local(self, lane: Expr, item: Expr) -> Expr:
        """Index within the block of a thread's item."""
        start, within = item // self.run, item % self.run
        runs = lane + start * self.threads
        return runs * self.run + within


@dataclass(frozen=True)
class Grid:
    """All tiles of a kernel with the index expressions of block and thread along each dimension."""

    tiles: tuple[Tile, ...]
    shape: tuple[int, int, int]
    block_index: Mapping[str, Expr]
    thread_index: Mapping[str, Expr]

    @property
    def threads(self) -> int:
        return prod(t.threads for t in self.tiles)

    def __getitem__(self, name: str) -> Tile:
        return next(t for t in self.tiles if t.name == name)

    def origin(self, name: str) -> Expr:
        """First index of the block along a dimension."""
        return self.block_index[name] * self[name].block


def make_grid(tiles: Sequence[Tile], axes: Mapping[str, int]) -> Grid:
    """Lay tiles out: threads with the first tile fastest, blocks on grid axis `axes[name]` (0 is x).

    Tiles with `lanes` share the lanes of a warp in that way, and then its warps.
    """
    shape = [1, 1, 1]
    block_index: dict[str, Expr] = {}
    placed = {t.name: axes.get(t.name, 0) for t in tiles}
    for axis in (1, 2):
        if prod(t.blocks for t in tiles if placed[t.name] == axis) > MAX_GRID_YZ:
            placed = {n: 0 if a == axis else a for n, a in placed.items()}
    for t in tiles:
        axis = placed[t.name]
        block_index[t.name] = _digit(Sym(f"bid.{'xyz'[axis]}"), shape[axis], t.blocks)
        shape[axis] *= t.blocks
    for t in tiles:  # the slowest digit of each axis needs no remainder
        axis = placed[t.name]
        step = _step(tiles, placed, t)
        if step * t.blocks == shape[axis]:
            block_index[t.name] = Sym(f"bid.{'xyz'[axis]}") // step if t.blocks > 1 else 0
    return Grid(tuple(tiles), (shape[0], shape[1], shape[2]), block_index, _thread_index(tiles))


def _thread_index(tiles: Sequence[Tile]) -> dict[str, Expr]:
    """Each tile's part of `tid`: its lanes are digits of the lane number, the rest digits of the warp's."""
    lanes = prod(t.lanes or 1 for t in tiles)
    lane: Expr = Sym("tid") % lanes if lanes > 1 else 0
    fast = _digits(lane, [(t.name, t.lanes or 1) for t in tiles])
    slow = _digits(Sym("tid") // lanes, [(t.name, t.threads // (t.lanes or 1)) for t in tiles])
    return {t.name: fast[t.name] + slow[t.name] * (t.lanes or 1) for t in tiles}


def _digits(number: Expr, extents: Sequence[tuple[str, int]]) -> dict[str, Expr]:
    """Mixed-radix digits of `number`, the first fastest; the slowest needs no remainder."""
    out: dict[str, Expr] = {}
    step, total = 1, prod(n for _, n in extents)
    for name, extent in extents:
        digit = number // step
        last = step * extent == total
        out[name] = 0 if extent == 1 else (digit if last else digit % extent)
        step *= extent
    return out


def _step(tiles: Sequence[Tile], placed: Mapping[str, int], tile: Tile) -> int:
    step = 1
    for t in tiles:
        if t is tile:
            return step
        if placed[t.name] == placed[tile.name]:
            step *= t.blocks
    return step


def _digit(index: Expr, step: int, extent: int) -> Expr:
    return 0 if extent == 1 else index // step % extent
