"""The implementation parameters of chains on tensor cores, and how warps share a product."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

from tilewright.ir import AttrRecord, Func, InputError, Sizes, UnsupportedError
from tilewright.ir.hardware_facts import WARP
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.chain.stages import stages_of
from tilewright.passes.kernels.chain_tiles.view import TilesChain, lies_in_vectors, tiles_chain
from tilewright.passes.kernels.decision import check_threads, faults_of, parameters_of


@dataclass(frozen=True)
class ChainTilesParameters(AttrRecord):
    """Parameters of one chain on tensor cores.

    block: tile of the final result per dimension; part: channels between stages that a block takes at a time
    (0: all of them, or there are none to walk over); warps of a block; resident: blocks of a multiprocessor
    that the compiler is told to leave registers for.
    """

    block: Sizes
    part: int = field(metadata={"least": 0})
    warps: int
    resident: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.warps * WARP


@dataclass(frozen=True)
class WarpTiles:
    """The division of a product among warps: warps along rows and columns, tiles of a warp along each."""

    warps_m: int
    warps_n: int
    tiles_m: int
    tiles_n: int

    @property
    def tiles(self) -> int:
        """Tiles of sums of a warp."""
        return self.tiles_m * self.tiles_n


@lru_cache(maxsize=4096)
def warp_tiles(row_tiles: int, column_tiles: int, warps: int) -> WarpTiles:
    """The division with the fewest tiles to a warp, and among those with the fewest fragments to load."""
    found = []
    for across in (n for n in range(1, warps + 1) if not warps % n):
        m, n = -(-row_tiles * across // warps), -(-column_tiles // across)
        # two neighbouring tiles of columns are loaded at once
        n += n % 2 if n > 1 else 0
        found.append((m * n, 2 * m + n, WarpTiles(warps // across, across, m, n)))
    return min(found, key=lambda f: f[:2])[2]


def chain_tiles_parameters(kernel: Func) -> tuple[TilesChain, ChainTilesParameters]:
    """The parameters of a kernel and the chain that they make; raises InputError for what is impossible."""
    found = parameters_of(kernel, ChainTilesParameters)
    with faults_of(kernel):
        par = dims(stages_of(kernel)[-1].anchor, "par")
        if set(found.block) != set(par):
            raise InputError(f"expected block in params to give a tile for each of {', '.join(par)}")
        if found.warps < 1:
            raise InputError(f"expected at least one warp, got {found.warps}")
        check_threads(found.threads)
        try:
            chain = tiles_chain(kernel, found.block, found.part)
        except UnsupportedError as e:
            raise InputError(f"expected a chain for tensor cores: {e}") from e
        for p in chain.products.values():
            if not lies_in_vectors(p.view) or p.by_channel != p.view.in_rows(1):
                kind = p.view.sources[1].value.type
                raise InputError(f"expected weights in vectors of 16 bytes, or packed so, got {kind}")
    return chain, replace(found, block=Sizes({d: found.block[d] for d in par}))
