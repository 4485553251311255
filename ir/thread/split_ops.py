"""Thread-level ops of float32 products by split factors: pieces of bfloat16, sums that are promoted.

A float32 number times 2 ** 16 is the sum of three bfloat16 numbers (`ir/float_pieces.py`). Six of the nine
products of their pieces make the product of two numbers to 2 ** -24 of it; in the sums it counts 2 ** 32
times.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.errors import InputError
from tilewright.ir.expr import Expr
from tilewright.ir.float_pieces import PIECES
from tilewright.ir.opdef import AttrDef, Attrs, Transport, define
from tilewright.ir.thread.ops import buffer
from tilewright.ir.types import ScalarType, TensorType, Type

#: pairs of pieces (0 is the largest) that are multiplied, in groups with a sum each, the smaller products
#: first: matrix instructions cut their sums off, which in the first group is far below what counts
PRODUCTS = (((0, 2), (2, 0), (1, 1), (0, 1), (1, 0)), ((0, 0),))
#: neighbours along k that are split together in shared memory
GROUP = 8
#: tiles of float32 of either factor, two of which become one tile of pieces
_TILES: dict[tuple[int, ...], tuple[int, ...]] = {(16, 8): (16, 16), (8, 8): (16, 8)}
_WARP_ACCESS = frozenset({"read", "write", "warp"})


def _infer_split(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    source, target = (buffer(t, "frag") for t in types)
    between = source.shape[1:-2]
    pieces = (PIECES, *between, *_TILES.get(source.shape[-2:], ()))
    if source.dtype != "f32" or source.rank < 3 or source.shape[0] != 2 or source.shape[-2:] not in _TILES:
        raise InputError(f"expected f32[2, ..., 16, 8] or f32[2, ..., 8, 8] in frag, got {source}")
    if target.dtype != "bf16" or target.shape != pieces:
        raise InputError(f"expected bf16{list(pieces)} in frag for the pieces of {source}, got {target}")
    if len(attrs["item"]) != len(between):
        raise InputError(f"expected {len(between)} index expressions of a tile, got {len(attrs['item'])}")
    return []


define(
    "thread.split_fragment",
    ("source", "pieces"),
    "Split the two tiles source[0, item] and source[1, item], times 2 ** 16, into tiles of their three "
    "pieces, the largest first: pieces[p, item]. Along k both factors are in the order 0 4 1 5 2 6 3 7 of "
    "each tile.",
    attrs={"item": AttrDef("exprs", (), "index of the tile among the dimensions between")},
    results=0,
    infer=_infer_split,
    effects=_WARP_ACCESS,
)


def _infer_split_shared(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    tile, pieces = (buffer(t, "shared") for t in types)
    if tile.dtype != "f32" or pieces.dtype != "bf16" or pieces.rank < 3 or pieces.shape[-3] != PIECES:
        raise InputError(
            f"expected f32 and bf16[..., {PIECES}, rows, columns] in shared, got {tile} and {pieces}"
        )
    if len(attrs["at"]) != tile.rank or len(attrs["dst"]) != pieces.rank - 1:
        raise InputError(f"expected an index of {tile} and one of {pieces} without its piece")
    return []


def place_of_piece(dst: Sequence[Expr], piece: int) -> tuple[Expr, ...]:
    """Return where a piece is whose `dst` names no piece: that stands before row and column."""
    return (*dst[:-2], piece, *dst[-2:])


define(
    "thread.split_shared",
    ("tile", "pieces"),
    f"Split {GROUP} neighbours of a tile, times 2 ** 16, into their three pieces, the largest first: "
    "pieces[..., p, row, column]. They are in the order 0 4 1 5 2 6 3 7.",
    attrs={
        "at": AttrDef("exprs", doc="index of the first element"),
        "dst": AttrDef("exprs", doc="the slot if there are such, row and column of the first piece"),
    },
    results=0,
    infer=_infer_split_shared,
    effects=frozenset({"read", "write"}),
    transport=Transport(1, "stores"),
)


def _accumulators(t: Type) -> TensorType:
    tile = buffer(t, "frag")
    if tile.dtype != "f32" or tile.shape[-2:] != (16, 8):
        raise InputError(f"expected accumulators f32[..., 16, 8] in frag, got {t}")
    return tile


def _infer_promote(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    small, large, sums = map(_accumulators, types)
    if small.shape != large.shape or small.rank != 4 or sums.rank != 4 or len(attrs["dst"]) != 2:
        raise InputError(
            "expected two equal f32[rows, columns, 16, 8] and where in the sums their first tile goes, got "
            f"{small}, {large} and {sums}"
        )
    return []


define(
    "thread.promote_fragment",
    ("small", "large", "sums"),
    "Add small[i, j] + large[i, j] to sums[dst + (i, j)] for all tiles, rounded to nearest each time, which "
    "sums of matrix instructions are not.",
    attrs={"dst": AttrDef("exprs", doc="the tile of the sums that belongs to the first one")},
    results=0,
    infer=_infer_promote,
    effects=frozenset({"read", "write"}),
)


def _infer_add(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    part, sums = map(_accumulators, types)
    if part.shape != sums.shape:
        raise InputError(f"expected two equal f32[..., 16, 8], got {part} and {sums}")
    return []


define(
    "thread.add_fragment",
    ("part", "sums"),
    "Add part[i, j] to sums[i, j] for all tiles, rounded to nearest, which sums of matrix instructions are "
    "not.",
    results=0,
    infer=_infer_add,
    effects=frozenset({"read", "write"}),
)


def _infer_accumulators(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    _accumulators(types[0])
    return []


define(
    "thread.scale_fragment",
    ("sums",),
    "Multiply every element of all tiles.",
    attrs={"factor": AttrDef("number")},
    results=0,
    infer=_infer_accumulators,
    effects=frozenset({"read", "write"}),
)


def _infer_finite(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    _accumulators(types[0])
    return [ScalarType("bool")]


define(
    "thread.any_not_finite",
    ("sums",),
    "Whether any element that a thread of the block holds is infinite or nan; all threads arrive before any "
    "goes on.",
    infer=_infer_finite,
    effects=frozenset({"read", "warp", "async"}),
)
define(
    "thread.any_not_finite_of_warp",
    ("sums",),
    "Whether any element that a thread of the warp holds is infinite or nan.",
    infer=_infer_finite,
    effects=frozenset({"read", "warp"}),
)
