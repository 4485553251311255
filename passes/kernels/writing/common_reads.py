"""Elements of parameters that several elements of a thread's fragment have in common, as words of bits are.

A thread has two rows of a tile of 16, 8 rows apart, and two neighbouring columns of each tile of 8: a word of
32 columns serves all its columns in four tiles, a word of 32 rows all its rows in a tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd, prod

from tilewright.ir import BinOp, Expr, Sym
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import MMA_M, MMA_N


def run_of(at: Sequence[Expr], names: Sequence[str], sizes: Mapping[str, int]) -> int:
    """Neighbours along dimensions, the last one fastest, that read one element; 0 where all read the same.

    They begin at multiples of the run, which divides the extent of the last dimension.
    """
    wide = [d for d in names if sizes[d] > 1]
    runs = [_run(e, wide) for e in at if set(symbols(e)) & set(wide)]
    if not runs:
        return 0
    run = gcd(*runs)
    return run if run > 1 and sizes[wide[-1]] % run == 0 else 1


def _run(e: Expr, wide: Sequence[str]) -> int:
    """The run along which one index is the same: 0 where only slower dimensions are in it."""
    if wide[-1] not in symbols(e):
        return 0
    divided = isinstance(e, BinOp) and e.op == "//" and e.lhs == Sym(wide[-1]) and isinstance(e.rhs, int)
    return e.rhs if divided and isinstance(e, BinOp) and isinstance(e.rhs, int) else 1


def distinct(
    at: Sequence[Expr],
    shape: Sequence[int],
    rows: Sequence[str],
    columns: Sequence[str],
    sizes: Mapping[str, int],
    steps: Sequence[int],
) -> tuple[int, ...]:
    """How many different elements a thread reads per dimension of its fragment: `shape`, or a divisor of it.

    shape: tiles of rows, tiles of columns, 2 rows of a tile, 2 columns of it. steps: the first columns of all
    fragments are sums of multiples of them; their first rows are multiples of 16.
    """
    row_tiles, column_tiles, halves, pair = shape
    down, across = run_of(at, rows, sizes), run_of(at, columns, sizes)
    if down == 0:
        row_tiles, halves = 1, 1
    elif down % MMA_M == 0:
        halves = 1
    if across == 0:
        column_tiles, pair = 1, 1
    elif across % MMA_N == 0:
        pair = 1
        each = gcd(across, *steps) // MMA_N
        column_tiles //= gcd(column_tiles, each)
    return row_tiles, column_tiles, halves, pair


def in_words(at: Sequence[Expr], names: Sequence[Sequence[str]], sizes: Mapping[str, int]) -> bool:
    """Whether neighbours along one of these sides, given by their dimensions, read one element."""
    return any(run_of(at, side, sizes) > 1 for side in names)


def share(extents: Sequence[int], shape: Sequence[int], *, words: bool) -> float:
    """Reads of memory for each element of a fragment, by the model: words are read once for all of theirs."""
    return prod(extents) / prod(shape) if words else 1.0


def place(at: Sequence[Expr], extents: Sequence[int], shape: Sequence[int]) -> tuple[Expr, ...]:
    """Where among its different elements a thread has that of an element of its fragment."""
    return tuple(i // (n // m) if m > 1 else 0 for i, m, n in zip(at, extents, shape, strict=True))


def first_of(at: Sequence[Expr], extents: Sequence[int], shape: Sequence[int]) -> tuple[Expr, ...]:
    """The first element of a fragment that reads one of the different elements."""
    return tuple(i * (n // m) for i, m, n in zip(at, extents, shape, strict=True))
