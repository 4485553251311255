"""Thread-level accesses whose address is a value: the element offset comes out of data, not of symbols."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.errors import InputError
from tilewright.ir.opdef import AttrDef, Attrs, OpDef, define
from tilewright.ir.types import ScalarType, TensorType, Type

_MASK = AttrDef("mask", (), "conjunction of [expr, low, high]")


def _buffer(t: Type, what: str) -> TensorType:
    if not isinstance(t, TensorType) or t.space not in ("global", "shared"):
        raise InputError(f"{what}: expected a buffer in global or shared memory, got {t}")
    return t


def _check_offset(t: Type, what: str) -> None:
    if t not in (ScalarType("i32"), ScalarType("i64")):
        raise InputError(f"{what}: expected an i32 or i64 element offset, got {t}")


def _infer_gather(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    _check_offset(types[1], "thread.gather")
    return [ScalarType(_buffer(types[0], "thread.gather").dtype)]


def _infer_scatter(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    t = _buffer(types[1], f"thread.scatter of {types[0]}")
    _check_offset(types[2], "thread.scatter")
    if types[0] != ScalarType(t.dtype):
        raise InputError(f"thread.scatter: expected a {t.dtype} value, got {types[0]}")
    return []


define(
    OpDef(
        "thread.gather",
        ("buffer", "offset"),
        "The element at a row-major offset that is a value; `other` where the mask is false. The offset must "
        "lie inside the buffer wherever the mask holds.",
        attrs={"mask": _MASK, "other": AttrDef("number", 0.0)},
        infer=_infer_gather,
        effects=frozenset({"read"}),
    )
)
define(
    OpDef(
        "thread.scatter",
        ("value", "buffer", "offset", "condition?"),
        "Write the element at a row-major offset that is a value, where the mask (and the condition, a bool "
        "value) is true. The offset must lie inside the buffer there.",
        attrs={"mask": _MASK},
        results=0,
        infer=_infer_scatter,
        effects=frozenset({"write"}),
    )
)
