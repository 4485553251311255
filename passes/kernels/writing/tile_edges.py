"""Tiles inside of an array and tiles at its edges, for which code is written apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.ir import Expr
from tilewright.passes.kernels.writing.writer import Mask


def inside_and_edges(
    sides: Sequence[tuple[str, Expr, int, int]],
) -> Iterator[tuple[Mask, frozenset[str]]]:
    """Yield masks, one of which holds for each tile, and the cut sides along which it then lies inside.

    sides: name, origin of the tile, size of the array and extent of a tile. A side is cut where tiles do not
    divide an array of more than one: the first mask is that of the tiles inside along all cut sides, and each
    further one that of the tiles at an edge of one side that lie inside along the sides before it.
    """
    cut = [side for side in sides if side[2] % side[3] and side[2] > side[3]]
    names = [name for name, *_ in cut]
    within = [(origin, 0, size - extent + 1) for _, origin, size, extent in cut]
    yield tuple(within), frozenset(names)
    for i, (_, origin, size, extent) in enumerate(cut):
        yield (*within[:i], (origin, size - extent + 1, size)), frozenset(names[:i])
