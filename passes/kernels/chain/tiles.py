"""The division of one stage's contraction among the threads of a block: register tiles, order, waves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilewright.ir import Op
from tilewright.ir.expr import symbols
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes.kernels.chain.regions import Box

#: accumulators of one thread at most
MAX_ACCUMULATORS = 64
#: largest register tile along one dimension
MAX_TILE = 8
#: what one load counts for beside one multiply-add
LOAD_COST = 1.5


@dataclass(frozen=True)
class ContractTiles:
    """Register tiles of one contraction.

    extents: the block's part of each parallel dimension, slowest thread digit first; tile: indices per
    thread; row, column: the dimensions that are tiled, '' where there is none; waves: tiles per thread.
    """

    extents: Mapping[str, int]
    tile: Mapping[str, int]
    row: str
    column: str
    units: int
    waves: int

    @property
    def fast(self) -> str:
        """The dimension along which neighbouring threads lie."""
        return list(self.extents)[-1] if self.extents else ""

    @property
    def groups(self) -> dict[str, int]:
        """Register tiles along each dimension."""
        return {d: n // self.tile[d] for d, n in self.extents.items()}

    @property
    def accumulators(self) -> int:
        return self.waves * prod(self.tile.values())


def contract_tiles(op: Op, domain: Box, threads: int) -> ContractTiles:
    """The register tiles with the least work per thread and reduction index."""
    par = list(dims(op, "par"))
    sizes = {d: s.extent for d, s in zip(par, domain, strict=True)}
    in_a, in_b = ({n for e in at for n in symbols(e)} for at in reads(op)[:2])
    row = max((d for d in par if d in in_a and d not in in_b), key=lambda d: sizes[d], default="")
    column = max((d for d in par if d in in_b and d not in in_a), key=lambda d: sizes[d], default="")
    fast = row if par and row == par[-1] else column or row
    slow = column if fast == row else row
    order = [d for d in par if d not in (fast, slow)] + [d for d in (slow, fast) if d]
    best: tuple[float, ContractTiles] | None = None
    for tr in _divisors(sizes.get(row, 1)):
        for tc in _divisors(sizes.get(column, 1)):
            tile = {d: tr if d == row else tc if d == column else 1 for d in order}
            units = prod(sizes.values()) // (tr * tc)
            waves = -(-units // threads)
            if waves * tr * tc > MAX_ACCUMULATORS and (tr, tc) != (1, 1):
                continue
            cost = waves * (tr * tc + LOAD_COST * (tr + tc))
            found = ContractTiles({d: sizes[d] for d in order}, tile, row, column, units, waves)
            if best is None or cost < best[0]:
                best = cost, found
    assert best is not None
    return best[1]


def _divisors(n: int) -> list[int]:
    return [f for f in range(1, min(n, MAX_TILE) + 1) if n % f == 0]
