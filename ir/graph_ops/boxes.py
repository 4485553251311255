"""Boxes: how much they overlap, which of them a greedy selection keeps, and lists without their gaps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.division import undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element, movement
from tilewright.ir.graph_ops.operands import dtype_of, require, require_float, require_rank, tensors, wide
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type


def _infer_overlap(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (boxes,) = tensors(types)
    require_float(boxes)
    require(boxes.rank == 3 and boxes.shape[2] == 4, f"expected boxes [B, N, 4], got {boxes}")
    return [TensorType(boxes.dtype, (*boxes.shape[:2], boxes.shape[1]))]


def _evaluate_overlap(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    boxes = wide(inputs[0], dtype_of(inputs[0]))
    low, high = boxes[..., :2], boxes[..., 2:]
    if attrs["sort_corners"]:
        low, high = np.minimum(low, high), np.maximum(low, high)
    more = attrs["offset"]
    shared = np.minimum(high[:, :, None], high[:, None]) - np.maximum(low[:, :, None], low[:, None]) + more
    common = np.prod(np.maximum(shared, 0), axis=-1)
    area = np.prod(high - low + more, axis=-1)
    union = area[:, :, None] + area[:, None] - common
    with np.errstate(divide="ignore", invalid="ignore"):
        out = np.where(union <= 0, 0, common / union)
    return [out.astype(inputs[0].dtype)]


#: facts that ops below share; each replaces those that differ
_COMPUTATION = Facts(
    elements=Elements.COMPUTES,
    flops=flops_per_element,
    precision=Precision.FOLLOWS,
    exact=False,
    division=undivided,
    extents=attributes_stay,
    report=ReportClass.OF_KERNEL,
    gradient=Gradient.DERIVED,
)
define(
    "graph.box_overlap",
    ("boxes",),
    "Intersection over union of all pairs of boxes [B, N, 4], given by two corners; 0 for empty unions.",
    attrs={
        "offset": AttrDef("float", 0.0, "added to all extents: 1 where the far corners belong to the box"),
        "sort_corners": AttrDef("bool", True, "corners may come in any order"),
    },
    infer=_infer_overlap,
    evaluate=_evaluate_overlap,
    facts=_COMPUTATION,
)


def _infer_keep(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    candidates, suppresses = tensors(types)
    require_rank(candidates, 2)
    fits = suppresses.shape == (*candidates.shape, candidates.shape[1])
    good = fits and candidates.dtype == suppresses.dtype == "bool"
    require(good, f"expected bool operands [B, N] and [B, N, N], got {candidates} and {suppresses}")
    return [candidates]


def _evaluate_keep(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    candidates, suppresses = inputs
    keep = candidates.copy()
    for t in range(keep.shape[1]):
        keep[:, t + 1 :] &= ~(suppresses[:, t + 1 :, t] & keep[:, t, None])
    return [keep]


define(
    "graph.greedy_keep",
    ("candidates", "suppresses"),
    "Candidates [B, N] in order, i kept unless a kept t before it suppresses it: suppresses[b, i, t].",
    infer=_infer_keep,
    evaluate=_evaluate_keep,
    facts=replace(_COMPUTATION, gradient=Gradient.NONE),
)


def _infer_compact(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, keep = tensors(types)
    fits = x.rank >= 2 and keep.shape == x.shape[:2] and keep.dtype == "bool"
    require(fits, f"expected rows [B, N, ...] and a bool for each, got {x} and {keep}")
    return [x, TensorType("i32", keep.shape[:1])]


def _evaluate_compact(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, keep = inputs
    along = (..., *[None] * (x.ndim - 2))
    order = np.argsort(~keep, axis=1, kind="stable")
    count = keep.sum(axis=1)
    rows = np.take_along_axis(x, order[along], axis=1)
    filled = np.arange(keep.shape[1]) < count[:, None]
    out = np.where(filled[along], rows, np.asarray(attrs["value"]).astype(x.dtype))
    return [out.astype(x.dtype), count.astype(np.int32)]


define(
    "graph.compact",
    ("x", "keep"),
    "The kept rows of every list first, in order, `value` behind them; and how many there are.",
    attrs={"value": AttrDef("number", -1)},
    results=2,
    infer=_infer_compact,
    evaluate=_evaluate_compact,
    facts=movement(Elements.MOVES, undivided, attributes_stay, gradient=Gradient.RULE),
)
