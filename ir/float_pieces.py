"""float32 numbers as three numbers of bfloat16: what a piece holds, and the number that pieces make.

A float32 number times 2 ** 16 is the sum of three bfloat16 numbers: the number rounded, the rest rounded,
and what is left, exactly and over the whole range of float32 below 2 ** 111. A number that is larger or not
finite is stored as nan, its upper 16 bits and its lower 16 bits: every product with such pieces is nan, and
they still tell which number it was.
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.types import numpy_dtype

#: bfloat16 numbers that hold one float32 number
PIECES = 3
#: what a factor is multiplied by, so that its least piece is no smaller than what bfloat16 holds: 2 ** -133
SCALE = 2.0**16
#: numbers below this are the sum of their pieces
SPLIT_BELOW = 2.0**111
#: the bits of the first piece of all other numbers: nan
MARK = 0x7FC0


def pieces_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """All pieces of every element of a float32 array in bfloat16, the largest first."""
    first, second, third = _first_pieces(x, PIECES)
    return first, second, third


def piece_of(x: np.ndarray, number: int) -> np.ndarray:
    """Piece `number` (0 is the largest) of every element of a float32 array, in bfloat16."""
    return _first_pieces(x, number + 1)[number]


def _first_pieces(x: np.ndarray, count: int) -> list[np.ndarray]:
    """The largest pieces of every element; each is computed from the one before it."""
    x = np.asarray(x, dtype=np.float32)
    dtype, bits = numpy_dtype("bf16"), x.view(np.uint32)
    pieces = []
    with np.errstate(all="ignore"):
        splits = np.abs(x) < np.float32(SPLIT_BELOW)
        rest = (x if splits.all() else np.where(splits, x, np.float32(0))) * np.float32(SCALE)
        for number in range(count):
            piece = rest.astype(dtype)
            pieces.append(piece)
            if number < count - 1:
                rest -= piece.astype(np.float32)
    if splits.all():
        return pieces
    kept = (np.full_like(bits, MARK), bits >> np.uint32(16), bits & np.uint32(0xFFFF))
    return [
        np.where(splits, piece.view(np.uint16), other.astype(np.uint16)).view(dtype)
        for piece, other in zip(pieces, kept[:count], strict=True)
    ]


def joined(first: np.ndarray, second: np.ndarray, third: np.ndarray) -> np.ndarray:
    """The float32 numbers that pieces hold, exactly."""
    words = [np.asarray(p).view(np.uint16).astype(np.uint32) for p in (first, second, third)]
    with np.errstate(all="ignore"):
        a, b, c = ((word << np.uint32(16)).view(np.float32) for word in words)
        total = (a + (b + c)) * np.float32(1 / SCALE)
    whole = (words[1] << np.uint32(16) | words[2]).view(np.float32)
    return np.where((words[0] & np.uint32(0x7FFF)) > 0x7F80, whole, total).astype(np.float32)
