"""How a thread reads one row of the input for several outputs in a row: as few aligned vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd

#: multiply-adds of one thread that stand in its code one after the other; of one with runs of outputs, which
#: has no loop over lanes
TILE_UNROLL_BUDGET = 1024
RUN_UNROLL_BUDGET = 2048
#: window points whose weights a thread keeps in registers from the start
MOST_AHEAD = 32


@dataclass(frozen=True)
class Piece:
    """One vector load: `lanes` elements from column `start` on, of which `columns` are needed."""

    start: int
    lanes: int
    columns: tuple[int, ...]


def pieces(columns: Iterable[int], aligned: int, pitch: int, widest: int) -> tuple[Piece, ...]:
    """The loads that bring `columns`, relative to a column that is a multiple of `aligned` (0: to column 0).

    Rows are `pitch` elements apart, vectors have `widest` elements at most (a power of two). Each vector lies
    at a multiple of its own length, and so does every row's end: one is all inside its row or all outside.
    Within one of the widest possible vectors the narrowest that holds all needed columns is read.
    """
    step = gcd(aligned, pitch, widest)
    groups: dict[int, list[int]] = {}
    for c in sorted(set(columns)):
        groups.setdefault(c // step, []).append(c)
    out = []
    for needed in groups.values():
        lanes = 1
        while needed[0] // lanes != needed[-1] // lanes:
            lanes *= 2
        out.append(Piece(needed[0] // lanes * lanes, lanes, tuple(needed)))
    return tuple(out)
