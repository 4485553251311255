"""Relay operators that reduce over axes or put elements in order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.rules import axis, direct, dtype, flag
from tilewright.frontends.tvm.rules.ordering import ranked
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import axes_of


def _axes(call: Call, name: str) -> tuple[int, ...]:
    """The reduced axes: no list and an empty one mean all; `exclude` means all but those given."""
    rank = call.tensor(0).tensor.rank
    listed, exclude = call.integers(name, None), call.flag("exclude", False)
    if listed is None and exclude:
        raise InputError("expected axes to exclude, got none")
    axes = axes_of(listed or range(rank), rank, name)
    if exclude and listed:
        return tuple(d for d in range(rank) if d not in axes)
    return tuple(sorted(axes))


def _sort(emit: Emitter, call: Call) -> Result:
    """Relay keeps the attributes of argsort here; the dtype says nothing."""
    call.drop("dtype")
    return direct("sort", axis=axis(-1), is_ascend=flag(True))(emit, call)


def _topk(emit: Emitter, call: Call) -> Result:
    data = call.single()
    return ranked(emit, call, data, call.integer("k", 1), call.flag("is_ascend", False))


def _dyn_topk(emit: Emitter, call: Call) -> Result:
    """As topk, with k an operand, which must be constant."""
    data, k = call.tensors(2)
    call.drop("k")
    known = emit.known(k)
    if known is None or known.size != 1:
        raise UnsupportedError(f"expected a constant k, got {k.type}: the shape of the result depends on it")
    return ranked(emit, call, data, int(known.reshape(()).item()), call.flag("is_ascend", False))


def _argwhere(emit: Emitter, call: Call) -> Result:
    condition = call.single()
    known = emit.known(condition)
    if known is None:
        raise UnsupportedError(
            "expected a constant condition of argwhere: the number of rows of its result depends on it"
        )
    return emit.constant(np.argwhere(known).astype(np.int32))


_REDUCED = {"axis": _axes, "keepdims": flag(False)}
RULES: Mapping[str, Rule] = {
    **{name: direct(name, **_REDUCED) for name in ("sum", "mean", "max", "min", "prod", "all", "any")},
    **{name: direct(name, **_REDUCED, select_last_index=flag(False)) for name in ("argmax", "argmin")},
    "variance": direct("variance", 2, **_REDUCED, unbiased=flag(False)),
    "sort": _sort,
    "argsort": direct("argsort", axis=axis(-1), is_ascend=flag(True), dtype=dtype("i32")),
    "topk": _topk,
    "dyn.topk": _dyn_topk,
    "searchsorted": direct("searchsorted", 2, right=flag(False), dtype=dtype("i32")),
    "unique": direct("unique", sorted=flag(True), return_counts=flag(False)),
    "argwhere": _argwhere,
}
