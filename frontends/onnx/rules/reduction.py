"""ONNX operators that reduce over axes."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rule, Rules
from tilewright.ir.graph_ops.operands import axes_of
from tilewright.ir.nodes import Value
from tilewright.ir.types import FLOATS

#: The version from which each reduction takes its axes as an operand.
_AXES_OPERAND = 18


def _axes(emit: FoldingEmitter, node: Node, since: int) -> tuple[int, ...]:
    """The reduced axes; without any, all of them or, where the node says so, none."""
    rank = node.tensor(0).tensor.rank
    nothing = node.flag("noop_with_empty_axes", False)
    listed: tuple[int, ...] | None = node.integers("axes", None)
    if node.opset >= since and node.has(1):
        listed = emit.integers(node.tensor(1), "axes")
    if not listed:
        return () if nothing else tuple(range(rank))
    return tuple(sorted(axes_of(listed, rank, "axes")))


def _reduced(emit: FoldingEmitter, name: str, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    if name in ("max", "min") and x.tensor.dtype == "bool":
        name = "any" if name == "max" else "all"
    return emit.value(name, x, axis=axes, keepdims=keep)


def _reduction(name: str, since: int = _AXES_OPERAND) -> Rule:
    def rule(emit: FoldingEmitter, node: Node) -> Result:
        axes, keep = _axes(emit, node, since), node.flag("keepdims", True)
        x = node.tensor(0)
        return x if not axes and x.tensor.rank else _reduced(emit, name, x, axes, keep)

    return rule


def _l1(emit: FoldingEmitter, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return _reduced(emit, "sum", emit.value("abs", x), axes, keep)


def _squares(emit: FoldingEmitter, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return _reduced(emit, "sum", emit.value("multiply", x, x), axes, keep)


def _l2(emit: FoldingEmitter, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """Integers take their root in floats."""
    dtype = x.tensor.dtype
    wide = {"f16": "f32", "bf16": "f32"}.get(dtype, dtype if dtype in FLOATS else "f64")
    root = emit.value("sqrt", _squares(emit, emit.cast(x, wide), axes, keep))
    return emit.cast(root, dtype)


def _log_sum(emit: FoldingEmitter, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    return emit.value("log", _reduced(emit, "sum", x, axes, keep))


def _log_sum_exp(emit: FoldingEmitter, x: Value, axes: tuple[int, ...], keep: bool) -> Value:
    """log(sum(exp(x - m))) + m with the largest x for m, or zero where that is not finite."""
    zero = emit.full(0, x.tensor.dtype)
    largest = _reduced(emit, "max", x, axes, True)
    shift = emit.value("where", emit.value("isfinite", largest), largest, zero)
    powers = emit.value("exp", emit.value("subtract", x, shift))
    total = emit.value("add", emit.value("log", _reduced(emit, "sum", powers, axes, True)), shift)
    if keep:
        return total
    return emit.reshape(total, [n for d, n in enumerate(x.tensor.shape) if d not in axes])


def _composed(build: Callable[[FoldingEmitter, Value, tuple[int, ...], bool], Value]) -> Rule:
    return lambda emit, node: build(
        emit, node.tensor(0), _axes(emit, node, _AXES_OPERAND), node.flag("keepdims", True)
    )


def _position(name: str) -> Rule:
    def rule(emit: FoldingEmitter, node: Node) -> Result:
        x = node.tensor(0)
        axis, keep = node.axis(x.tensor.rank, 0), node.flag("keepdims", True)
        last = node.flag("select_last_index", False)
        place = emit.value(name, x, axis=(axis,), keepdims=keep, select_last_index=last)
        return emit.cast(place, "i64")

    return rule


def _hardmax(emit: FoldingEmitter, node: Node) -> Result:
    """One at the first largest element, zero elsewhere; before version 13 x counts as a matrix."""
    x = node.tensor(0)
    shape = x.tensor.shape
    if node.opset < 13:
        axis = node.axis(x.tensor.rank, 1)
        x, axis = emit.reshape(x, (prod(shape[:axis]), prod(shape[axis:]))), 1
    else:
        axis = node.axis(x.tensor.rank, -1)
    first = emit.value("argmax", x, axis=(axis,), keepdims=True, select_last_index=False)
    numbers = emit.constant(np.arange(x.tensor.shape[axis], dtype=np.int32))
    places = emit.along(numbers, axis, x.tensor.rank)
    hit = emit.cast(emit.value("equal", places, first), x.tensor.dtype)
    return emit.reshape(hit, shape)


RULES: Rules = {
    "ArgMax": _position("argmax"),
    "ArgMin": _position("argmin"),
    "Hardmax": _hardmax,
    "ReduceL1": _composed(_l1),
    "ReduceL2": _composed(_l2),
    "ReduceLogSum": _composed(_log_sum),
    "ReduceLogSumExp": _composed(_log_sum_exp),
    "ReduceMax": _reduction("max"),
    "ReduceMean": _reduction("mean"),
    "ReduceMin": _reduction("min"),
    "ReduceProd": _reduction("prod"),
    "ReduceSum": _reduction("sum", 13),
    "ReduceSumSquare": _composed(_squares),
}
