"""Relay operators that put elements in order, and those whose result has a size that depends on data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import axis_of
from tilewright.ir.nodes import Value

_RETURNED = ("both", "values", "indices")


def _axis(attrs: Attributes, data: Value) -> int:
    return axis_of(attrs.integer("axis", -1), data.tensor.rank, "axis")


def _sort(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Relay keeps the attributes of argsort here; the dtype says nothing."""
    (data,) = emit.tensors(args, 1)
    attrs.drop("dtype")
    return emit.value("sort", data, axis=_axis(attrs, data), is_ascend=attrs.flag("is_ascend", True))


def _argsort(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    axis, ascending = _axis(attrs, data), attrs.flag("is_ascend", True)
    return emit.value("argsort", data, axis=axis, is_ascend=ascending, dtype=attrs.dtype("dtype") or "i32")


def _ranked(emit: Emitter, data: Value, k: int, attrs: Attributes) -> Result:
    """The first k, all of them where k is below one."""
    axis = _axis(attrs, data)
    returned = attrs.text("ret_type", "both")
    if returned not in _RETURNED:
        raise InputError(f"expected ret_type among {', '.join(_RETURNED)}, got '{returned}'")
    both = emit.values(
        "topk",
        (data,),
        k=k if k >= 1 else data.tensor.shape[axis],
        axis=axis,
        is_ascend=attrs.flag("is_ascend", False),
        dtype=attrs.dtype("dtype") or "i32",
    )
    return both if returned == "both" else both[_RETURNED.index(returned) - 1]


def _topk(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (data,) = emit.tensors(args, 1)
    return _ranked(emit, data, attrs.integer("k", 1), attrs)


def _dyn_topk(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """As topk, with k an operand, which must be constant."""
    data, k = emit.tensors(args, 2)
    attrs.drop("k")
    known = emit.known(k)
    if known is None or known.size != 1:
        raise UnsupportedError(f"expected a constant k, got {k.type}: the shape of the result depends on it")
    return _ranked(emit, data, int(known.reshape(()).item()), attrs)


def _searchsorted(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    right, dtype = attrs.flag("right", False), attrs.dtype("dtype") or "i32"
    return emit.value("searchsorted", *emit.tensors(args, 2), right=right, dtype=dtype)


def _unique(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    in_order, counts = attrs.flag("sorted", True), attrs.flag("return_counts", False)
    return emit.values("unique", emit.tensors(args, 1), sorted=in_order, return_counts=counts)


def _argwhere(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (condition,) = emit.tensors(args, 1)
    known = emit.known(condition)
    if known is None:
        raise UnsupportedError(
            "expected a constant condition of argwhere: the number of rows of its result depends on it"
        )
    return emit.constant(np.argwhere(known).astype(np.int32))


RULES: Mapping[str, Rule] = {
    "sort": _sort,
    "argsort": _argsort,
    "topk": _topk,
    "dyn.topk": _dyn_topk,
    "searchsorted": _searchsorted,
    "unique": _unique,
    "argwhere": _argwhere,
}
