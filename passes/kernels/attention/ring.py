"""The ring of tiles along which a block walks: some are on their way while one is multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.ir import Expr
from tilewright.passes.kernels.writing.writer import Writer


@dataclass(frozen=True)
class TileRing:
    """Asynchronous copies of tiles to slots, one commit group for each tile.

    fetch: starts the copies of a tile, by number, to a slot, where there is such a tile.
    """

    w: Writer
    tiles: int
    slots: int
    fetch: Callable[[Expr, Expr], None]

    @property
    def ahead(self) -> int:
        """Tiles that are fetched before the first one is multiplied; 0 where one slot serves several."""
        return self.slots if self.slots == self.tiles else self.slots - 1

    def start(self) -> None:
        """End the group of what was copied before, and fetch the first tiles."""
        self.w.b.do("thread.async_commit")
        for i in range(self.ahead):
            self.fetch(i, i)
            self.w.b.do("thread.async_commit")

    def arrive(self, pending: int) -> None:
        """Wait until all groups but the last `pending` are there, for all threads of the block."""
        self.w.b.do("thread.async_wait", pending=pending)
        self.w.b.do("thread.barrier")

    def refill(self, tile: Expr) -> None:
        """Start copying a later tile to the slot that the last iteration has read."""
        if self.ahead < self.tiles:
            later = self.w.simple(tile + self.ahead)
            self.fetch(later, self.w.simple(later % self.slots))
        if self.ahead < self.tiles or self.ahead > 1:
            self.w.b.do("thread.async_commit")
