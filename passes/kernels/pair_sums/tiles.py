"""Which factors a kernel of sums over pairs keeps in shared memory, each once."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.passes.kernels.attention.stage import TileLayout
from tilewright.passes.kernels.pair_sums.parameters import PairParameters
from tilewright.passes.kernels.pair_sums.view import PairView


@dataclass(frozen=True)
class PairTiles:
    """Layouts of tiles of own rows, one per product, and of others; the number of the tile of each sum.

    Product i reads tile i of the others. A sum whose factor is that of a product reads its tile.
    """

    own: tuple[TileLayout, ...]
    others: tuple[TileLayout, ...]
    of_sum: tuple[int, ...]


def pair_tiles(view: PairView, plan: PairParameters) -> PairTiles:
    """The tiles of a kernel with these parameters."""
    own = tuple(TileLayout(view, p.own, view.rows, (p.inner,), plan.rows) for p in view.products)
    others = [TileLayout(view, p.other, view.other, (p.inner,), plan.tile) for p in view.products]
    of_sum = []
    for pair in view.sums:
        shared = view.shared_with(pair)
        if shared is None:
            shared = len(others)
            others.append(TileLayout(view, pair.factor, view.other, pair.width, plan.tile))
        of_sum.append(shared)
    return PairTiles(own, tuple(others), tuple(of_sum))
