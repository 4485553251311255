"""Thread-level ops of warpgroups: four warps multiply matrices that lie in shared memory, asynchronously.

The first factor may also lie in their registers. A tile's rows are 32, 64 or 128 bytes along the reduced
dimension, swizzled. Tiles of 16-bit elements may also be turned: panels [panel, k, column] whose rows of so
many bytes lie along the other dimension, one for each index of the reduced one. Products of bytes, signed or
not, are summed exactly in 32 bits, modulo 2^32. Each thread that wrote a part of a tile passes
`thread.fence_async_proxy`, then all pass a barrier, before it is multiplied; neither tiles nor sums may be
touched until `thread.warpgroup_wait`.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.errors import InputError
from tilewright.ir.hardware_facts import MMA_K_BYTES
from tilewright.ir.opdef import AttrDef, Attrs, Transport, define, no_results
from tilewright.ir.thread.ops import buffer
from tilewright.ir.types import BYTES, FLOAT8, TensorType, Type, itemsize

#: rows that a warpgroup multiplies with one instruction, 16 of each warp
GROUP_M = 64
#: columns come in multiples of this, up to the most
GROUP_N, MOST_N = 8, 256
#: columns of products of bytes that there are instructions for
BYTES_N = (8, 16, 24, *range(32, MOST_N + 1, 16))
#: bytes of a row that tiles may have
ROW_BYTES = (32, 64, 128)


#: words of a row that one thread turns at a time, and how far apart the rows are of which it takes as many
TURNED_WORDS, TURNED_STEP = 4, 2
#: attributes that say whether a factor's tile is turned
TURNED = ("a_turned", "b_turned")


def depth_of(t: TensorType, turned: bool) -> int:
    """Elements of a tile in shared memory along the reduced dimension."""
    return t.shape[-2] if turned else t.shape[-1]


def _infer_multiply(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    a, b, c = types
    in_registers = isinstance(a, TensorType) and a.space == "frag"
    _check_turned(types, attrs)
    for t, key in ((b, "b_at"),) if in_registers else ((a, "a_at"), (b, "b_at")):
        if not isinstance(t, TensorType) or t.space != "shared" or len(attrs[key]) != t.rank:
            raise InputError(f"expected a buffer in shared and its index as {key}, got {t}")
        if t.shape[-1] * itemsize(t.dtype) not in ROW_BYTES or not isinstance(attrs[key][-1], int):
            raise InputError(f"expected rows of 32, 64 or 128 bytes from a known place, got {t}")
    assert isinstance(a, TensorType)
    assert isinstance(b, TensorType)
    kind = "i32" if a.dtype in BYTES else "f32"
    if not isinstance(c, TensorType) or c.space != "frag" or c.rank != 4 or c.dtype != kind:
        raise InputError(f"expected sums {kind}[m, n, 16, 8] in frag, got {c}")
    if in_registers and (a.rank != len(attrs["a_at"]) + 3 or a.shape[-3:-1] != (c.shape[0], 16)):
        raise InputError(f"expected {c.shape[0]} tiles of 16 rows at a_at, got {a}")
    n = c.shape[1] * c.shape[3]
    if c.shape[2:] != (16, 8) or n % GROUP_N or n > MOST_N:
        raise InputError(f"expected 8 to {MOST_N} columns of sums, got {c}")
    if a.dtype in BYTES and (in_registers or n not in BYTES_N):
        raise InputError(
            f"expected bytes in shared, and columns in multiples of 16 from 32 on, got {a} and {c}"
        )
    if a.dtype in FLOAT8 and in_registers:
        raise InputError(f"expected 8-bit floats in shared, got {a}")
    depth = MMA_K_BYTES // itemsize(a.dtype)
    a_turned, b_turned = (bool(attrs[key]) for key in TURNED)
    alike = a.dtype == b.dtype or {a.dtype, b.dtype} <= {*BYTES}
    if not alike or depth_of(a, a_turned) != (depth if in_registers else depth_of(b, b_turned)):
        raise InputError(f"expected two tiles of one dtype, or of bytes, and of one depth, got {a} and {b}")
    most = a.shape[0] if in_registers else depth_of(b, b_turned) // depth
    if not 0 <= attrs["steps"] <= most or (in_registers and attrs["steps"] and a.rank != 4):
        raise InputError(f"expected 0 to {most} steps of {depth} elements, got {attrs['steps']} of {a}")
    return []


def _check_turned(types: Sequence[Type], attrs: Attrs) -> None:
    """Raise InputError for a turned tile that is none of 16-bit elements, or starts inside of its panels."""
    for t, key, turned in zip(types, ("a_at", "b_at"), TURNED, strict=False):
        if not attrs[turned]:
            continue
        if not isinstance(t, TensorType) or t.space != "shared" or t.rank < 3 or itemsize(t.dtype) != 2:
            raise InputError(f"expected panels of 16-bit elements in shared as a turned tile, got {t}")
        if attrs[key][-2:] != (0, 0) or t.shape[-2] % (MMA_K_BYTES // itemsize(t.dtype)):
            raise InputError(f"expected whole panels of a multiple of 16 rows for a turned tile, got {t}")


define(
    "thread.warpgroup_mma",
    ("a", "b", "sums"),
    "Start sums[i] += a @ b^T, for each i the 64 rows of `a` from `a_at` + 64 i with the columns of the "
    "sums as rows of `b` from `b_at`; one group for `warpgroup_wait`. Tiles are multiplied over whole "
    "rows, fragments of `a` over their depth; `steps`: so many steps of the instruction's depth instead, "
    "each with a fragment of its own. Warp w of four holds rows 16 w to 16 w + 15 of each 64. A "
    "turned tile [..., panel, k, column] is multiplied from the panel at its index on, and over all its k. "
    "Several ops are one group where only the first opens it and only the last closes it.",
    attrs={
        "a_at": AttrDef("exprs", doc="index of the first row's first element, or of fragments[i]"),
        "b_at": AttrDef("exprs", doc="index of the first row's first element"),
        "a_turned": AttrDef("bool", False, doc="`a` is panels of columns of the reduced dimension"),
        "b_turned": AttrDef("bool", False, doc="`b` is panels of columns of the reduced dimension"),
        "engine": AttrDef("str", "wgmma"),
        "fresh": AttrDef("bool", False, "the sums are those of this product alone"),
        "steps": AttrDef("int", 0, "steps along the reduced dimension; 0: whole rows, or one fragment"),
        "opens": AttrDef("bool", True, "the first op of its group"),
        "closes": AttrDef("bool", True, "the last op of its group"),
    },
    results=0,
    infer=_infer_multiply,
    effects=frozenset({"read", "write", "warp", "async"}),
)


def _infer_wait(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    buffer(types[0], "frag")
    if attrs["pending"] < 0:
        raise InputError(f"expected a number of groups that may be unfinished, got {attrs['pending']}")
    return []


define(
    "thread.warpgroup_wait",
    ("sums",),
    "Wait until at most `pending` groups of this warpgroup's multiplications are unfinished.",
    attrs={
        "pending": AttrDef("int", 0),
        "done": AttrDef("bool", False, "the sums are finished: the pending groups are those of others"),
    },
    results=0,
    infer=_infer_wait,
    effects=frozenset({"read", "write", "async"}),
)
define(
    "thread.fence_async_proxy",
    (),
    "Make what this thread has written to shared memory, copies that it has waited for included, visible "
    "to asynchronous multiplications that start after the next barrier.",
    results=0,
    infer=no_results,
    effects=frozenset({"async"}),
)


def _infer_round(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (tile,) = types
    if not isinstance(tile, TensorType) or tile.space != "shared" or tile.dtype != "f32":
        raise InputError(f"expected f32 in shared, got {tile}")
    if len(attrs["at"]) != tile.rank or attrs["lanes"] not in (1, 2, 4):
        raise InputError(f"expected an index of 1, 2 or 4 elements of {tile}")
    return []


define(
    "thread.round_shared",
    ("tile",),
    "Round `lanes` elements to TF32 where they are, which this thread has written or waited for.",
    attrs={"at": AttrDef("exprs"), "lanes": AttrDef("int", 1)},
    results=0,
    infer=_infer_round,
    effects=frozenset({"read", "write"}),
)


def _infer_turn(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    tile, rows = (buffer(t, "shared") for t in types)
    if (tile.dtype, rows.dtype) != ("f32", "f32") or min(tile.rank, rows.rank) < 2:
        raise InputError(f"expected two matrices of f32 in shared, got {tile} and {rows}")
    if len(attrs["src"]) != tile.rank or len(attrs["dst"]) != rows.rank:
        raise InputError(f"expected an index of {tile} and one of {rows}")
    return []


define(
    "thread.turn_shared",
    ("tile", "rows"),
    f"Transpose {TURNED_WORDS} neighbours of each of {TURNED_WORDS} rows of a tile, which are {TURNED_STEP} "
    "apart from `src` on: they become neighbours in rows one after the other from `dst` on. So along the sum "
    "elements are in the order in which `thread.load_fragment` has another factor that is `paired`.",
    attrs={
        "src": AttrDef("exprs", doc="index of the first row's first element"),
        "dst": AttrDef("exprs", doc="index of the element that becomes of it"),
    },
    results=0,
    infer=_infer_turn,
    effects=frozenset({"read", "write"}),
    transport=Transport(1, "stores"),
)
