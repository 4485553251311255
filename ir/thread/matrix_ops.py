"""Thread-level ops on matrix fragments: tiles in the registers of the 32 threads of a warp together.

The last two dimensions of a `frag` buffer are one tile; those before number tiles, and an access names its
tile by `item` (all threads of the warp take part in every op here).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.errors import InputError
from tilewright.ir.opdef import AttrDef, Attrs, Transport, define
from tilewright.ir.thread.ops import MASK, buffer, element
from tilewright.ir.types import TensorType, Type

_READ_WRITE = frozenset({"read", "write", "warp"})
_ITEM = AttrDef("exprs", (), "index of the tile among the dimensions before the last two")
#: the ways in which a value is brought to a narrower format as it is loaded into a fragment
ROUNDINGS = ("", "tf32")


def _fragment(type_: Type, item: Sequence[object]) -> TensorType:
    t = buffer(type_, "frag")
    if t.rank < 2 or len(item) != t.rank - 2:
        raise InputError(f"expected {max(0, t.rank - 2)} index expressions of a tile, got {len(item)}")
    return t


def _infer_mma(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    a, b, c = (_fragment(t, attrs[f"{role}_item"]).shape[-2:] for t, role in zip(types, "abc", strict=True))
    m, n, k = attrs["shape"]
    if (a, b, c) != ((m, k), (k, n), (m, n)):
        raise InputError(
            f"expected fragments [{m}, {k}], [{k}, {n}] and [{m}, {n}], "
            f"got {types[0]}, {types[1]}, {types[2]}"
        )
    return []


define(
    "thread.mma",
    ("a", "b", "c"),
    "c += a @ b on matrix fragments of one warp; shape = [m, n, k] of the hardware instruction. "
    "`rounded`: f32 factors are TF32 numbers already, else they are rounded here.",
    attrs={
        "shape": AttrDef("ints"),
        "engine": AttrDef("str", "mma"),
        "a_item": _ITEM,
        "b_item": _ITEM,
        "c_item": _ITEM,
        "rounded": AttrDef("bool", False),
    },
    results=0,
    infer=_infer_mma,
    effects=_READ_WRITE,
)


def _infer_fragment(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    frag = _fragment(types[0], attrs["item"])
    memory = element(types[1], attrs["at"], "shared", "global")
    if memory.dtype != frag.dtype:
        raise InputError(f"expected a {frag.dtype} buffer, got {memory}")
    if attrs.get("rounding", "") not in ROUNDINGS or (attrs.get("rounding") and frag.dtype != "f32"):
        raise InputError(f"expected no rounding, or 'tf32' of f32, got {attrs['rounding']!r} of {frag}")
    if attrs.get("paired") and (frag.dtype != "f32" or attrs["role"] == "c"):
        raise InputError(f"expected pairs along the sum of factors of f32, got {frag} as {attrs['role']}")
    if attrs.get("count", 1) not in (1, 2):
        raise InputError(f"expected one or two tiles, got {attrs['count']}")
    return []


define(
    "thread.load_fragment",
    ("fragment", "buffer"),
    "Fill a fragment (`role` a, b or c) from the matrix at `at` of the last two dimensions; `transposed` "
    "reads it transposed. count = 2 also fills the next tile from the next columns of the matrix. "
    "`paired`: columns of a first factor of f32, or rows of a second one, in the order 0 2 4 6 1 3 5 7, as "
    "thread.pack_fragment has columns.",
    attrs={
        "at": AttrDef("exprs"),
        "role": AttrDef("str"),
        "transposed": AttrDef("bool", False),
        "item": _ITEM,
        "count": AttrDef("int", 1),
        "rounding": AttrDef("str", ""),
        "paired": AttrDef("bool", False),
    },
    results=0,
    infer=_infer_fragment,
    effects=_READ_WRITE,
)
define(
    "thread.store_fragment",
    ("fragment", "buffer"),
    "Write an accumulator fragment to the matrix at `at` of the last two dimensions (its transpose where "
    "`transposed`), inside the mask per row and column of the fragment.",
    attrs={
        "at": AttrDef("exprs"),
        "mask": MASK,
        "transposed": AttrDef("bool", False),
        "item": _ITEM,
    },
    results=0,
    infer=_infer_fragment,
    effects=_READ_WRITE,
    transport=Transport(1, "stores"),
)


def _infer_fill(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    buffer(types[0], "frag")
    return []


define(
    "thread.fill_fragment",
    ("fragment",),
    "Set every element of all tiles of a fragment buffer.",
    attrs={"value": AttrDef("number", 0.0)},
    results=0,
    infer=_infer_fill,
    effects=frozenset({"write", "warp"}),
)
