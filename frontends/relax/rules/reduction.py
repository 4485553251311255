"""Relax operators that reduce over axes, order elements, or keep running results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relax.static import axes_in, axis_in, cast, held, reshaped, transposed
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.reduction import reduced_shape
from tilewright.ir.nodes import Value

_RETURNED = ("both", "values", "indices")


def _reduction(name: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (x,) = emit.tensors(args, 1)
        axes, keepdims = axes_in(x, attrs.integers("axis", None)), attrs.flag("keepdims", False)
        return emit.value(name, x, axis=axes, keepdims=keepdims)

    return rule


def _position(name: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        """Positions are int64 in Relax."""
        (x,) = emit.tensors(args, 1)
        axis = attrs.integer("axis", None)
        axes, keepdims = axes_in(x, None if axis is None else (axis,)), attrs.flag("keepdims", False)
        return cast(emit, emit.value(name, x, axis=axes, keepdims=keepdims), "i64")

    return rule


def _variance(root: bool) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        """Divided by the count, not by one less."""
        (given,) = emit.tensors(args, 1)
        axes, keepdims = axes_in(given, attrs.integers("axis", None)), attrs.flag("keepdims", False)
        x = held(emit, given)
        mean = emit.value("mean", x, axis=axes, keepdims=True)
        out = emit.value("variance", x, mean, axis=axes, keepdims=keepdims)
        return cast(emit, emit.value("sqrt", out) if root else out, given.tensor.dtype)

    return rule


def _median(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The lower median; along given axes its index among the elements too, over all axes the value alone."""
    (x,) = emit.tensors(args, 1)
    given, keepdims = attrs.integers("axis", None), attrs.flag("keepdims", False)
    axes = axes_in(x, given)
    kept = [d for d in range(x.tensor.rank) if d not in axes]
    count = prod(x.tensor.shape[d] for d in axes)
    if count == 0:
        raise InputError(f"expected elements to take the median of, got {x.type}")
    rows = transposed(emit, x, (*kept, *axes))
    rows = reshaped(emit, rows, (*(x.tensor.shape[d] for d in kept), count))
    order = emit.value("argsort", rows, axis=len(kept), is_ascend=True, dtype="i64")
    middle = emit.value(
        "strided_slice", order, begin=(*(0 for _ in kept), (count - 1) // 2),
        size=(*order.tensor.shape[:-1], 1), strides=(1,) * order.tensor.rank,
    )  # fmt: skip
    shape = reduced_shape(x.tensor.shape, axes, keepdims)
    value = reshaped(emit, emit.value("gather", rows, middle, axis=len(kept)), shape)
    return value if given is None else (value, reshaped(emit, middle, shape))


def _scan(name: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        """Without an axis, the tensor counts as flattened."""
        (x,) = emit.tensors(args, 1)
        axis = attrs.integer("axis", None)
        if axis is None:
            x, axis = reshaped(emit, x, (x.tensor.size,)), 0
        dtype, exclusive = attrs.dtype("dtype") or None, attrs.flag("exclusive", False)
        return emit.value(name, x, axis=axis_in(x, axis), dtype=dtype, exclusive=exclusive)

    return rule


def _sort(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    descending = attrs.flag("descending", False)
    return emit.value("sort", x, axis=axis_in(x, attrs.integer("axis", -1)), is_ascend=not descending)


def _argsort(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    axis, ascending = axis_in(x, attrs.integer("axis", -1)), not attrs.flag("descending", False)
    return emit.value("argsort", x, axis=axis, is_ascend=ascending, dtype=attrs.dtype("dtype") or "i32")


def _topk(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    (x,) = emit.tensors(args, 1)
    k, axis = attrs.integer("k", 1), axis_in(x, attrs.integer("axis", -1))
    returned, largest = attrs.text("ret_type", "both"), attrs.flag("largest", True)
    if returned not in _RETURNED:
        raise InputError(f"expected ret_type among {', '.join(_RETURNED)}, got '{returned}'")
    both = _first(
        emit, x, k if k >= 1 else x.tensor.shape[axis], axis, largest, attrs.dtype("dtype") or "i32"
    )
    return both if returned == "both" else both[_RETURNED.index(returned) - 1]


def _first(emit: Emitter, x: Value, k: int, axis: int, largest: bool, dtype: str) -> tuple[Value, ...]:
    return emit.values("topk", (x,), k=k, axis=axis, is_ascend=not largest, dtype=dtype)


RULES: Mapping[str, Rule] = {
    **{name: _reduction(name) for name in ("sum", "mean", "max", "min", "prod")},
    "argmax": _position("argmax"),
    "argmin": _position("argmin"),
    "variance": _variance(root=False),
    "std": _variance(root=True),
    "median": _median,
    "cumsum": _scan("cumsum"),
    "cumprod": _scan("cumprod"),
    "sort": _sort,
    "argsort": _argsort,
    "topk": _topk,
}
