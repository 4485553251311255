"""Relax operators that reduce over axes, order elements, or keep running results."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.rules import Reader, axis, direct, dtype, flag
from tilewright.frontends.relax.operands import axes_in
from tilewright.frontends.tvm.rules import ordering
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.reduction import reduced_shape


def _axes(call: Call, name: str) -> tuple[int, ...]:
    """The reduced axes in rising order; none given means all."""
    return axes_in(call.tensor(0), call.integers(name, None))


_REDUCED: Mapping[str, Reader] = {"axis": _axes, "keepdims": flag(False)}


def _position(name: str) -> Rule:
    """Positions are int64 in Relax."""
    return lambda emit, call: emit.cast(direct(name, **_REDUCED)(emit, call), "i64")


def _variance(root: bool) -> Rule:
    def rule(emit: Emitter, call: Call) -> Result:
        """Divided by the count, not by one less."""
        data = call.single()
        axes, keepdims = _axes(call, "axis"), call.flag("keepdims", False)
        x = emit.widened(data)
        mean = emit.value("mean", x, axis=axes, keepdims=True)
        out = emit.value("variance", x, mean, axis=axes, keepdims=keepdims)
        return emit.cast(emit.value("sqrt", out) if root else out, data.tensor.dtype)

    return rule


def _median(emit: Emitter, call: Call) -> Result:
    """The lower median; along given axes its index among the elements too, over all axes the value alone."""
    x = call.single()
    listed, keepdims = call.integers("axis", None), call.flag("keepdims", False)
    axes = axes_in(x, listed)
    others = [d for d in range(x.tensor.rank) if d not in axes]
    count = prod(x.tensor.shape[d] for d in axes)
    if count == 0:
        raise InputError(f"expected elements to take the median of, got {x.type}")
    rows = emit.transpose(x, (*others, *axes))
    rows, last = emit.reshape(rows, (*(x.tensor.shape[d] for d in others), count)), len(others)
    order = emit.value("argsort", rows, axis=last, is_ascend=True, dtype="i64")
    middle = emit.cut(order, last, (count - 1) // 2, 1)
    shape = reduced_shape(x.tensor.shape, axes, keepdims)
    value = emit.reshape(emit.value("gather", rows, middle, axis=last), shape)
    return value if listed is None else (value, emit.reshape(middle, shape))


def _descending(call: Call, name: str) -> bool:
    """Relax says whether to sort downwards, graph ops whether upwards."""
    return not call.flag("descending", False)


def _topk(emit: Emitter, call: Call) -> Result:
    x = call.single()
    return ordering.ranked(emit, call, x, call.integer("k", 1), not call.flag("largest", True))


RULES: Mapping[str, Rule] = {
    **ordering.RULES,
    **{name: direct(name, **_REDUCED) for name in ("sum", "mean", "max", "min", "prod")},
    "argmax": _position("argmax"),
    "argmin": _position("argmin"),
    "variance": _variance(root=False),
    "std": _variance(root=True),
    "median": _median,
    "sort": direct("sort", axis=axis(-1), is_ascend=_descending),
    "argsort": direct("argsort", axis=axis(-1), is_ascend=_descending, dtype=dtype("i32")),
    "topk": _topk,
}
