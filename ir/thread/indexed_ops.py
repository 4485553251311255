"""Thread-level accesses whose address is a value: the element offset comes out of data, not of symbols."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.errors import InputError
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.thread.ops import MASK, buffer
from tilewright.ir.types import ScalarType, Type


def _check_offset(t: Type) -> None:
    if t not in (ScalarType("i32"), ScalarType("i64")):
        raise InputError(f"expected an i32 or i64 element offset, got {t}")


def _infer_gather(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    _check_offset(types[1])
    return [ScalarType(buffer(types[0], "global", "shared").dtype, attrs["lanes"])]


def _infer_scatter(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    t = buffer(types[1], "global", "shared")
    _check_offset(types[2])
    if types[0] != ScalarType(t.dtype):
        raise InputError(f"expected a {t.dtype} value, got {types[0]}")
    return []


define(
    "thread.gather",
    ("buffer", "offset"),
    "The element at a row-major offset that is a value, or `lanes` consecutive ones from an offset that is a "
    "multiple of them; `other` where the mask is false. The offset must lie inside the buffer wherever the "
    "mask holds.",
    attrs={"mask": MASK, "other": AttrDef("number", 0.0), "lanes": AttrDef("int", 1)},
    infer=_infer_gather,
    effects=frozenset({"read"}),
)
define(
    "thread.scatter",
    ("value", "buffer", "offset", "condition?"),
    "Write the element at a row-major offset that is a value, where the mask (and the condition, a bool "
    "value) is true. The offset must lie inside the buffer there.",
    attrs={"mask": MASK},
    results=0,
    infer=_infer_scatter,
    effects=frozenset({"write"}),
)
