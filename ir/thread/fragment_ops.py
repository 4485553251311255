"""Thread-level ops on the elements and rows of accumulator fragments, without leaving registers.

A lane holds, of each 16 x 8 tile, the elements at rows lane // 4 + 8 * half and columns 2 * (lane % 4) + pair
for half and pair in 0, 1. What belongs to rows is a register buffer [tiles of rows, half].
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.errors import InputError
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import ScalarType, TensorType, Type

_TILE = (16, 8)
_ITEM = AttrDef("exprs", (), "index of the tile among the dimensions before the last two")
_PLACE = AttrDef("exprs", (), "half (row + 8) and pair (column + 1) of the lane's element")
#: tiles of first factors by dtype
_FACTORS = {"f16": (16, 16), "bf16": (16, 16), "f32": (16, 8)}
_WARP_ACCESS = frozenset({"read", "write", "warp"})


def _sums(t: Type, dtypes: Sequence[str] = ("f32",)) -> TensorType:
    known = isinstance(t, TensorType) and t.space == "frag" and t.shape[-2:] == _TILE
    if not isinstance(t, TensorType) or not known or t.dtype not in dtypes:
        raise InputError(f"expected accumulators {' or '.join(dtypes)}[..., 16, 8] in frag, got {t}")
    return t


def _place(t: TensorType, attrs: Attrs) -> None:
    if len(attrs["item"]) != t.rank - 2 or len(attrs["at"]) != 2:
        raise InputError(
            f"expected {t.rank - 2} index expressions of a tile, half and pair, "
            f"got {len(attrs['item'])} and {len(attrs['at'])}"
        )


def _rows(t: TensorType, rows: Sequence[Type]) -> None:
    expected = (*t.shape[:-3], 2)
    for r in rows:
        if not isinstance(r, TensorType) or (r.space, r.dtype, r.shape) != ("reg", "f32", expected):
            raise InputError(f"expected f32{list(expected)} in reg for the rows of {t}, got {r}")


def _infer_get(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    t = _sums(types[0], ("f32", "i32"))
    _place(t, attrs)
    return [ScalarType(t.dtype)]


def _infer_set(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    _place(_sums(types[1]), attrs)
    if types[0] != ScalarType("f32"):
        raise InputError(f"expected a value of f32, got {types[0]}")
    return []


define(
    "thread.get_fragment",
    ("fragment",),
    "The lane's element at `at` = [half, pair] of a tile of accumulators.",
    attrs={"item": _ITEM, "at": _PLACE},
    infer=_infer_get,
    effects=frozenset({"read"}),
)
define(
    "thread.set_fragment",
    ("value", "fragment"),
    "Replace the lane's element at `at` = [half, pair] of a tile of accumulators.",
    attrs={"item": _ITEM, "at": _PLACE},
    results=0,
    infer=_infer_set,
    effects=frozenset({"write"}),
)


_SCALE = AttrDef("number", 1.0, "factor of what is raised to the power of e")


def _infer_rows(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    t = _sums(types[0])
    if t.rank not in (3, 4):
        raise InputError(f"expected tiles [columns, 16, 8] or [rows, columns, 16, 8], got {t}")
    _rows(t, types[1:])
    return []


for _name, _operands, _attrs, _doc in (
    (
        "max_rows",
        ("fragment", "largest"),
        {},
        "Raise `largest` to the largest element of each row of all tiles; the four lanes of a row agree.",
    ),
    (
        "exp_rows",
        ("fragment", "largest", "sums"),
        {
            "scale": _SCALE,
            "folded": AttrDef("bool", False, "as exp2(x c - largest c), one rounded product per row"),
        },
        "Replace each element x by exp(scale (x - largest of its row)), and add this lane's to `sums`; where "
        "the largest is minus infinity, 0 is subtracted. Relative error below 1e-6; below 1e-37 it is 0. "
        "`folded`: all of a row have a further factor, the same for all, as near to 1 as float32 has "
        "scale * largest.",
    ),
    (
        "scale_rows",
        ("fragment", "factors"),
        {"skip_if_one": AttrDef("bool", False, "a warp whose factors are all 1 does nothing")},
        "Multiply each element by the factor of its row.",
    ),
):
    define(
        f"thread.{_name}",
        _operands,
        _doc,
        attrs=_attrs,
        results=0,
        infer=_infer_rows,
        effects=_WARP_ACCESS,
    )


def _infer_power(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    if types[0] != ScalarType("f32"):
        raise InputError(f"expected a value of f32, got {types[0]}")
    return [ScalarType("f32")]


define(
    "thread.power",
    ("exponent",),
    "2 to the power of a value, as the hardware computes it: relative error below 1e-6; below 1e-37 it is 0.",
    infer=_infer_power,
)


def _infer_renew(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    one, other = types
    if one != other or not isinstance(one, TensorType) or (one.space, one.dtype) != ("reg", "f32"):
        raise InputError(f"expected two equal buffers of f32 in reg, got {one} and {other}")
    if one.rank not in (1, 2):
        raise InputError(f"expected [half] or [tiles of rows, half], got {one}")
    return []


define(
    "thread.rescale_factors",
    ("before", "largest"),
    "Take back what `largest` rose above `before`, unless exp(scale (largest - before)) exceeds 2 ** 8, "
    "or `before` is minus infinity; then replace `before` by what sums so far are multiplied by: "
    "exp(scale (before - largest)), 1 where nothing was summed.",
    attrs={"scale": _SCALE},
    results=0,
    infer=_infer_renew,
    effects=_WARP_ACCESS,
)


def _infer_settle(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (t,) = types
    if not isinstance(t, TensorType) or (t.space, t.dtype) != ("reg", "f32"):
        raise InputError(f"expected a buffer of f32 in reg, got {t}")
    return []


define(
    "thread.settle",
    ("sums",),
    "Have these sums, none of them negative, and all that they are computed from, before what follows: "
    "compilers would move it behind a wait that comes next.",
    results=0,
    infer=_infer_settle,
    effects=_WARP_ACCESS,
)


def _infer_pack(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    source, target = _sums(types[0]), types[1]
    if not isinstance(target, TensorType) or target.space != "frag" or target.dtype not in _FACTORS:
        raise InputError(f"expected factors of f16, bf16 or f32 in frag, got {target}")
    if target.shape[-2:] != _FACTORS[target.dtype]:
        tile = ", ".join(map(str, _FACTORS[target.dtype]))
        raise InputError(f"expected tiles [..., {tile}] in frag, got {target}")
    if len(attrs["item"]) != source.rank - 2 or len(attrs["to"]) != target.rank - 2:
        raise InputError(f"expected index expressions of a tile of {source} and of {target}")
    return []


define(
    "thread.pack_fragment",
    ("sums", "factor"),
    "Round the tile `item` of accumulators and the one after it to a first factor's 16 x 16 tile `to`; "
    "for factors of f32 that tile alone, to TF32 numbers whose columns are in the order 0 2 4 6 1 3 5 7.",
    attrs={"item": _ITEM, "to": _ITEM},
    results=0,
    infer=_infer_pack,
    effects=_WARP_ACCESS,
)
