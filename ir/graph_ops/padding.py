"""Elements put around a tensor: a constant, its edge, or its mirror image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.division import OperandRows, SlicedOp, by_rules, replaced, where_untouched
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Gradient, movement
from tilewright.ir.graph_ops.operands import entries, require, tensors
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type

PAD_MODES = ("constant", "edge", "reflect", "symmetric")


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, *value = tensors(types)
    before = entries(attrs["pad_before"], x.rank, "pad_before")
    after = entries(attrs["pad_after"], x.rank, "pad_after")
    mode = attrs["pad_mode"]
    require(mode in PAD_MODES, f"expected pad_mode {', '.join(PAD_MODES)}, got '{mode}'")
    if value:
        good = mode == "constant" and value[0].size == 1 and value[0].dtype == x.dtype
        require(good, f"expected one {x.dtype} to pad with in mode constant, got {value[0]} and {mode}")
    for d, (n, lo, hi) in enumerate(zip(x.shape, before, after, strict=True)):
        good = mode == "constant" or n > 0 or lo + hi == 0
        require(good, f"expected elements to repeat in dimension {d} of {x}, got none")
    return [TensorType(x.dtype, tuple(n + lo + hi for n, lo, hi in zip(x.shape, before, after, strict=True)))]


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, *value = inputs
    widths = list(zip(attrs["pad_before"], attrs["pad_after"], strict=True))
    if attrs["pad_mode"] != "constant":
        return [np.pad(x, widths, mode=attrs["pad_mode"])]
    fill = value[0].reshape(()) if value else np.asarray(attrs["pad_value"]).astype(x.dtype)
    out = np.full([n + lo + hi for n, (lo, hi) in zip(x.shape, widths, strict=True)], fill, x.dtype)
    out[tuple(slice(lo, lo + n) for n, (lo, _) in zip(x.shape, widths, strict=True))] = x
    return [out]


def _padded_rows(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Each piece pads the rows beyond its own edge; other modes than constant only along other axes."""
    before, after = op.integers("pad_before"), op.integers("pad_after")
    extent = op.operands[0].tensor.shape[axis]
    low, high = start - before[axis], end - before[axis]
    first, last = (min(max(at, 0), extent) for at in (low, high))
    if op["pad_mode"] != "constant" or first == last:
        return None
    attrs: dict[str, Attr] = {
        "pad_before": replaced(before, axis, max(0, -low)),
        "pad_after": replaced(after, axis, max(0, high - extent)),
    }
    value = (None,) * len(op.operands[1:])
    return SlicedOp((OperandRows(axis, first, last), *value), attrs, balanced=True)


define(
    "graph.pad",
    ("x", "value?"),
    "x with `pad_before` and `pad_after` more elements in each dimension: `value` (or the attribute "
    "`pad_value`), the nearest element, or x mirrored with (symmetric) or without its edge.",
    attrs={
        "pad_before": AttrDef("ints"),
        "pad_after": AttrDef("ints"),
        "pad_value": AttrDef("number", 0.0, "in mode constant, without the operand `value`"),
        "pad_mode": AttrDef("str", "constant", "constant, edge, reflect or symmetric"),
    },
    infer=_infer,
    evaluate=_evaluate,
    facts=movement(
        Elements.MOVES,
        by_rules(_padded_rows, labels=where_untouched),
        attributes_stay,
        gradient=Gradient.RULE,
    ),
)
