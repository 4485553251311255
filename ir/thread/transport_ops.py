"""Thread-level ops of the copy engine: tiles, windows and runs to slots of channels, tiles to parameters.

One thread gives out the work of each op, and the engine does it asynchronously. A fill stands between
`thread.acquire` and `thread.publish` of an item and writes into its slot: its bytes count on the item, and
the consumers wait for them. A tile lies in shared memory as its map says: rows one after the other, the
16-byte pieces of swizzled ones permuted as those of a swizzled buffer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Op, walk
from tilewright.ir.opdef import AttrDef, Attrs, Transport, define, no_results
from tilewright.ir.thread.channel_ops import channels_of
from tilewright.ir.thread.ops import buffer, element
from tilewright.ir.thread.tensor_maps import MAP, UNIT_BYTES, TensorMap, cluster_of, map_of, maps_of
from tilewright.ir.types import TensorType, Type, itemsize

COPY_TILE, COPY_WINDOW, COPY_RUN = "thread.copy_tile", "thread.copy_window", "thread.copy_run"
STORE_TILE = "thread.store_tile"
BULK_COMMIT, BULK_WAIT = "thread.bulk_commit", "thread.bulk_wait"
#: how long lines that a copy brings shall stay in the L2 cache; empty for what the cache does by itself
HINTS = ("", "evict_first", "evict_last")
#: in shared memory, what the address of a tile is a multiple of, and rows after which a swizzle begins anew
TILE_ALIGNMENT, SWIZZLE_ROWS = 128, 8

_MAP = AttrDef("int", doc="number of the map among those of the kernel")
_AT = AttrDef("exprs", doc="coordinates of the first element, outermost first; they may lie outside")
_DST = AttrDef("exprs", doc="index of the first row's first element in shared memory, its slot first")
_TILE = AttrDef("ints", doc="elements that one copy brings, as the map says")
_TO = AttrDef("ints", (), "ranks in the cluster whose slots are filled; none: of this block alone")
_BY_WARP = AttrDef("bool", False, "every warp has stores of its own, which its first lane gives out")
_HINT = AttrDef("str", "", "evict_first or evict_last: how long the lines shall stay in the L2 cache")
_ASYNC = frozenset({"read", "write", "async"})


def _filled_bytes(op: Op) -> int:
    """Bytes that arrive in a block's slot where every rank that is filled gives out this op."""
    size = itemsize(op.operands[1].tensor.dtype)
    return prod(op.integers("tile")) * size * max(1, len(op.integers("to")))


def _infer_copy_tile(types: Sequence[Type], a: Attrs) -> Sequence[Type]:
    source, target = buffer(types[0], "global"), element(types[1], a["dst"], "shared")
    return _copied(source, target, a)


def _copied(source: TensorType, target: TensorType, a: Attrs) -> Sequence[Type]:
    if itemsize(source.dtype) != itemsize(target.dtype):
        raise InputError(f"expected elements of one size, got {source} and {target}")
    if a["hint"] not in HINTS:
        raise InputError(f"expected hint to be one of evict_first, evict_last, got {a['hint']!r}")
    ranks = a["to"]
    if sorted(set(ranks)) != list(ranks) or any(r < 0 for r in ranks):
        raise InputError(f"expected to as ascending ranks, got {list(ranks)}")
    return []


define(
    COPY_TILE,
    ("source", "target"),
    "Start bringing a box of a parameter to shared memory; what lies outside is filled as the map says.",
    attrs={"map": _MAP, "at": _AT, "dst": _DST, "tile": _TILE, "to": _TO, "hint": _HINT},
    results=0,
    infer=_infer_copy_tile,
    effects=_ASYNC,
    transport=Transport(1, "transaction", _filled_bytes),
    issued_once=True,
)
define(
    COPY_WINDOW,
    ("source", "target"),
    "Start bringing pixels of a convolution's windows to shared memory, one row of channels per window: "
    "those at `offsets` from the first pixels of the windows, which begin with the one at `at` and go on "
    "along the last spatial dimension, then the one before, then images. Outside of the image they are zero.",
    attrs={
        "map": _MAP,
        "at": AttrDef("exprs", doc="image, first pixel of the first window (corner included), channel"),
        "offsets": AttrDef("exprs", doc="per spatial dimension, of the filter's tap: tap * dilation"),
        "dst": _DST,
        "tile": _TILE,
        "to": _TO,
        "hint": _HINT,
    },
    results=0,
    infer=_infer_copy_tile,
    effects=_ASYNC,
    transport=Transport(1, "transaction", _filled_bytes),
    issued_once=True,
)


def _infer_run(types: Sequence[Type], a: Attrs) -> Sequence[Type]:
    source, target = element(types[0], a["src"], "global"), element(types[1], a["dst"], "shared")
    nbytes = prod(a["tile"]) * itemsize(source.dtype)
    if len(a["tile"]) != 1 or nbytes <= 0 or nbytes % UNIT_BYTES:
        raise InputError(f"expected tile = [elements] of a multiple of {UNIT_BYTES} bytes, got {a['tile']}")
    return _copied(source, target, a)


define(
    COPY_RUN,
    ("source", "target"),
    "Start bringing elements that follow one another, in whole pieces of 16 bytes, to shared memory.",
    attrs={"src": AttrDef("exprs"), "dst": _DST, "tile": _TILE, "to": _TO, "hint": _HINT},
    results=0,
    infer=_infer_run,
    effects=_ASYNC,
    transport=Transport(1, "transaction", _filled_bytes),
    issued_once=True,
)


def _infer_store(types: Sequence[Type], a: Attrs) -> Sequence[Type]:
    source, target = element(types[0], a["src"], "shared"), buffer(types[1], "global")
    if source.dtype != target.dtype:
        raise InputError(f"expected one dtype, got {source} and {target}")
    return []


define(
    STORE_TILE,
    ("source", "target"),
    "Start writing a tile of shared memory to a box of a parameter, or adding it there; what lies outside of "
    "it is not written. Threads that wrote the tile have passed `thread.fence_async_proxy` and a barrier.",
    attrs={
        "map": _MAP,
        "src": AttrDef("exprs", doc="index of the first row's first element in shared memory"),
        "at": _AT,
        "tile": _TILE,
        "add": AttrDef("bool", False, "add to what is there, element by element, in any order"),
        "by_warp": _BY_WARP,
    },
    results=0,
    infer=_infer_store,
    effects=_ASYNC,
    issued_once=True,
)
define(
    BULK_COMMIT,
    (),
    "Close the group of stores of tiles that were started since the last one.",
    attrs={"by_warp": _BY_WARP},
    results=0,
    infer=no_results,
    effects=frozenset({"async"}),
    issued_once=True,
)
define(
    BULK_WAIT,
    (),
    "Wait until at most `pending` groups of stores of tiles are unfinished; with `reads`, until those beyond "
    "have read shared memory, which threads may write again after the next barrier.",
    attrs={"pending": AttrDef("int", 0), "reads": AttrDef("bool", True), "by_warp": _BY_WARP},
    results=0,
    infer=no_results,
    effects=frozenset({"async"}),
    issued_once=True,
)


def transport_faults(func: Func) -> Iterator[tuple[int, str]]:
    """Copies and stores that are not what their maps say, or whose tile does not fit its place.

    As (index of the op, or of the one whose body it stands in, in the function's body; clause).
    """
    allocs = {o.result: o for o in walk(func.body) if o.name == "thread.alloc"}
    for i, top in enumerate(func.body.ops):
        for op in (top, *(walk(top.body) if top.body is not None else ())):
            if op.name in (COPY_TILE, COPY_WINDOW, COPY_RUN) and op.get("to"):
                yield from ((i, f"{op.name}: {fault}") for fault in _rank_faults(func, op))
            if op.name in (COPY_TILE, COPY_WINDOW, STORE_TILE):
                for fault in _map_use_faults(func, op, allocs.get(op.operands[op.name != STORE_TILE])):
                    yield i, f"{op.name}: {fault}"


def _rank_faults(func: Func, op: Op) -> Iterator[str]:
    """Faults of a copy to several blocks of the cluster."""
    ranks, blocks = op.integers("to"), prod(cluster_of(func))
    if ranks[-1] >= blocks:
        yield f"expected ranks of a cluster of {blocks} blocks, got {list(ranks)}"
    for channel in channels_of(func):
        if op.operands[1] in channel.buffers and not channel.clustered:
            yield f"expected scope cluster of channel {channel.name}, which other blocks fill"


def _map_use_faults(func: Func, op: Op, alloc: Op | None) -> Iterator[str]:
    number, maps = op.integer(MAP), maps_of(func)
    if not 0 <= number < len(maps):
        yield f"expected a map among {len(maps)} of @{func.name}, got {number}"
        return
    m = map_of(func, op)
    memory, parameter = op.operands if op.name == STORE_TILE else op.operands[::-1]
    if func.params[m.parameter] is not parameter:
        name = func.params[m.parameter].hint or m.parameter
        yield f"map {number} is of parameter {name}, which this op does not name"
        return
    recipe, windowed = m.recipe, op.name == COPY_WINDOW
    if (recipe.window is not None) != windowed:
        yield f"expected {'an im2col' if windowed else 'a tiled'} map, map {number} is none"
        return
    if len(op.exprs("at")) != len(recipe.dims):
        yield f"expected {len(recipe.dims)} coordinates, got {len(op.exprs('at'))}"
    if windowed and len(op.exprs("offsets")) != len(recipe.dims) - 2:
        yield f"expected {len(recipe.dims) - 2} offsets, got {len(op.exprs('offsets'))}"
    if op.integers("tile") != recipe.tile:
        yield f"expected the tile {list(recipe.tile)} of map {number}, got {list(op.integers('tile'))}"
    else:
        yield from _place_faults(recipe, memory.tensor, alloc)


def _place_faults(recipe: TensorMap, t: TensorType, alloc: Op | None) -> Iterator[str]:
    """Faults of the buffer in shared memory that holds tiles of a map."""
    row, swizzle = t.shape[-1] * itemsize(t.dtype), recipe.swizzle
    if t.shape[-1] != recipe.tile[-1]:
        yield f"expected rows of {recipe.tile[-1]} elements as the map brings them, got {t}"
    if alloc is None:
        yield f"expected a buffer of the kernel's own, got {t}"
    elif bool(alloc["swizzled"]) != bool(swizzle) or (swizzle and row != swizzle):
        yield (
            f"expected {f'swizzled rows of {swizzle} bytes' if swizzle else 'rows that are not swizzled'}, "
            f"got {'swizzled ' if alloc['swizzled'] else ''}rows of {row}"
        )
    elif alloc.integer("align") < (least := swizzle * SWIZZLE_ROWS or TILE_ALIGNMENT):
        yield f"expected a buffer aligned to {least} bytes, got {alloc.integer('align')}"
