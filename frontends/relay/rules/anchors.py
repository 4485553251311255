"""Relay's operators on anchor boxes: their making, their correction by predictions, and region proposals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import floor, sqrt

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.relay.rules.detection import Rows
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype

_VARIANCES = (0.1, 0.1, 0.2, 0.2)


def _multibox_prior(emit: Emitter, call: Call) -> Result:
    """A constant [1, H * W * boxes, 4]: boxes of every size, then of every other ratio, at every element."""
    data = call.single()
    sizes, ratios = call.reals("sizes", (1.0,)), call.reals("ratios", (1.0,))
    steps, offsets = call.reals("steps", (-1.0, -1.0)), call.reals("offsets", (0.5, 0.5))
    clip, t = call.flag("clip", False), data.tensor
    if t.rank != 4 or 0 in t.shape or not sizes or not ratios or len(steps) != 2 or len(offsets) != 2:
        raise InputError(f"expected data [N, C, H, W], sizes, ratios, two steps and two offsets, got {t}")
    h, w = t.shape[2:]
    half = [(s * h / w / 2, s / 2) for s in sizes]
    half += [(sizes[0] * h / w * sqrt(r) / 2, sizes[0] / sqrt(r) / 2) for r in ratios[1:]]
    centres = [
        (np.arange(n) + offset) * (step if step > 0 else 1 / n)
        for n, step, offset in zip((h, w), steps, offsets, strict=True)
    ]
    y, x = (c[..., None] for c in np.meshgrid(*centres, indexing="ij"))
    dx, dy = np.asarray(half).T
    boxes = np.stack([x - dx, y - dy, x + dx, y + dy], axis=-1).reshape(1, -1, 4)
    return emit.constant((np.clip(boxes, 0, 1) if clip else boxes).astype(storage_dtype(t.dtype)))


def _multibox_transform_loc(emit: Emitter, call: Call) -> Result:
    """Rows [class, score, x1, y1, x2, y2] of anchors that are no background, -1 behind; and their number."""
    probabilities, predictions, anchors = call.tensors(3)
    background = call.flag("keep_background", False)
    clip, threshold = call.flag("clip", True), call.real("threshold", 0.01)
    variances = call.reals("variances", _VARIANCES)
    t = probabilities.tensor
    shapes = (predictions.tensor.shape, anchors.tensor.shape, len(variances))
    if t.rank != 3 or shapes != ((t.shape[0], 4 * t.shape[2]), (1, t.shape[2], 4), 4):
        raise InputError(f"expected [B, C, A], [B, 4 A], [1, A, 4] and 4 variances, got {t} and {shapes}")
    rows = Rows(emit)
    batch, classes, count = t.shape
    first = 0 if background else 1
    if classes <= first:
        raise InputError(f"expected at least {first + 1} classes, got {classes}")
    chances = emit.cut(probabilities, 1, first, classes - first)
    best = emit.value("max", chances, axis=(1,), keepdims=False)
    number = emit.value("argmax", chances, axis=(1,), keepdims=False, select_last_index=False)
    number = emit.op("add", number, first)
    # a class counts only where its score is above -1 and reaches the threshold
    score = emit.op("maximum", best, -1)
    reached = emit.op("logical_and", emit.op("greater", best, -1), emit.op("greater_equal", score, threshold))
    number = emit.where(reached, number, 0)
    keep = emit.op("greater_equal" if background else "greater", number, 0)
    named = emit.cast(emit.op("subtract", number, first), t.dtype)
    boxes = _corrected(rows, rows.reshape(predictions, batch, count, 4), anchors, variances)
    if clip:
        boxes = emit.value("clip", boxes, a_min=0.0, a_max=1.0)
    parts = [rows.reshape(named, batch, count, 1), rows.reshape(score, batch, count, 1), boxes]
    return rows.compact(emit.value("concatenate", *parts, axis=2), keep, -1)


def _corrected(rows: Rows, predictions: Value, anchors: Value, variances: Sequence[float]) -> Value:
    """Anchors moved by predicted parts of their extents, and scaled by exponentials of the others."""
    emit, dtype = rows.emit, predictions.tensor.dtype
    anchors = emit.cast(anchors, dtype)
    low, high = emit.cut(anchors, 2, 0, 2), emit.cut(anchors, 2, 2, 2)
    extent = emit.op("subtract", high, low)
    centre = emit.op("divide", emit.op("add", low, high), 2)
    scaled = emit.op("multiply", predictions, rows.constant([[variances]], dtype))
    moved = emit.op("add", emit.op("multiply", emit.cut(scaled, 2, 0, 2), extent), centre)
    grown = emit.op("multiply", emit.value("exp", emit.cut(scaled, 2, 2, 2)), extent)
    half = emit.op("divide", grown, 2)
    corners = emit.op("subtract", moved, half), emit.op("add", moved, half)
    return emit.value("concatenate", *corners, axis=2)


def base_anchor(ratio: float, scale: float, size: int) -> tuple[float, float, float, float]:
    """Corners of an element's anchor: about size * size elements of this ratio, rounded, then scaled."""
    centre = 0.5 * (size - 1)
    width = floor(sqrt(floor(size * size / ratio)) + 0.5)
    half_width = 0.5 * (width * scale - 1)
    half_height = 0.5 * (floor(width * ratio + 0.5) * scale - 1)
    return centre - half_width, centre - half_height, centre + half_width, centre + half_height


@dataclass(frozen=True)
class _Proposal:
    """Attributes of one proposal operator."""

    scales: tuple[float, ...]
    ratios: tuple[float, ...]
    stride: int
    threshold: float
    before: int
    after: int
    least: int
    shifts: bool

    @classmethod
    def of(cls, call: Call) -> _Proposal:
        return cls(
            call.reals("scales", (4.0, 8.0, 16.0, 32.0)),
            call.reals("ratios", (0.5, 1.0, 2.0)),
            call.integer("feature_stride", 16),
            call.real("threshold", 0.7),
            call.integer("rpn_pre_nms_top_n", 6000),
            call.integer("rpn_post_nms_top_n", 300),
            call.integer("rpn_min_size", 16),
            call.flag("iou_loss", False),
        )

    def anchors(self, height: int, width: int) -> np.ndarray:
        """All anchors [1, height * width * anchors, 4]."""
        base = np.asarray([base_anchor(r, s, self.stride) for r, s in product(self.ratios, self.scales)])
        y, x = np.meshgrid(np.arange(height) * self.stride, np.arange(width) * self.stride, indexing="ij")
        shift = np.stack([x, y, x, y], axis=-1)[:, :, None]
        return (shift + base).reshape(1, -1, 4)


def _proposal(emit: Emitter, call: Call) -> Result:
    """Rows [image, x1, y1, x2, y2] of the best predicted boxes that overlap no better one.

    Where fewer are left than `rpn_post_nms_top_n`, they are repeated.
    """
    probabilities, predictions, info = call.tensors(3)
    p, t = _Proposal.of(call), probabilities.tensor
    count = len(p.scales) * len(p.ratios)
    if (
        t.rank != 4
        or t.shape[1] != 2 * count
        or predictions.tensor.shape != (t.shape[0], 4 * count, *t.shape[2:])
    ):
        raise InputError(f"expected {2 * count} and {4 * count} channels, got {t} and {predictions.type}")
    rows = Rows(emit)
    batch, _, height, width = t.shape
    total = height * width * count
    boxes, score = _predicted(rows, p, probabilities, predictions, info)
    count_before = min(p.before, total) if p.before > 0 else total
    chosen = rows.take(boxes, rows.sorted_places(score, count_before))
    overlap = emit.value("box_overlap", chosen, offset=1.0, sort_corners=False)
    every = rows.constant(np.ones((batch, count_before)), "bool")
    keep = rows.greedy(every, [emit.op("greater", overlap, p.threshold)])
    best, number = rows.compact(chosen, keep, 0)
    turns = emit.op("floor_mod", rows.numbers(p.after), rows.reshape(number, batch, 1))
    regions = rows.take(best, turns)
    images = np.broadcast_to(np.arange(batch)[:, None, None], (batch, p.after, 1))
    out = emit.value("concatenate", rows.constant(images, regions.tensor.dtype), regions, axis=2)
    return rows.reshape(out, batch * p.after, 5)


def _predicted(
    rows: Rows, p: _Proposal, probabilities: Value, predictions: Value, info: Value
) -> tuple[Value, Value]:
    """Boxes [B, N, 4] within their images and scores [B, N]; -1 for small ones and ones beyond the image."""
    emit = rows.emit
    batch, _, height, width = probabilities.tensor.shape
    dtype, count = predictions.tensor.dtype, len(p.scales) * len(p.ratios)
    total = height * width * count
    split = rows.reshape(predictions, batch, count, 4, height, width)
    deltas = rows.reshape(emit.value("transpose", split, axes=(0, 3, 4, 1, 2)), batch, total, 4)
    scores = emit.value("transpose", emit.cut(probabilities, 1, count, count), axes=(0, 2, 3, 1))
    score = rows.reshape(scores, batch, total)
    boxes = _regressed(rows, deltas, p.anchors(height, width), p.shifts)
    sizes = [rows.reshape(emit.cut(info, 1, k, 1), batch, 1, 1) for k in (1, 0)]
    last = emit.op("subtract", emit.value("concatenate", *sizes, *sizes, axis=2), 1)
    boxes = emit.op("maximum", emit.op("minimum", boxes, last), 0)
    real = [emit.value("trunc", emit.op("divide", rows.reshape(v, batch, 1), p.stride)) for v in sizes]
    y, x = (
        rows.constant(np.repeat(v.reshape(1, -1), count, axis=1), dtype)
        for v in np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    )
    beyond = emit.op("logical_or", emit.op("greater_equal", y, real[1]), emit.op("greater_equal", x, real[0]))
    least = emit.op("multiply", rows.reshape(emit.cut(info, 1, 2, 1), batch, 1, 1), p.least)
    extents = emit.op("add", emit.op("subtract", emit.cut(boxes, 2, 2, 2), emit.cut(boxes, 2, 0, 2)), 1)
    small = emit.value("any", emit.op("less", extents, least), axis=(2,), keepdims=True)
    half = emit.op("divide", least, 2)
    grown = emit.op("multiply", rows.constant([[[-1, -1, 1, 1]]], dtype), half)
    boxes = emit.where(small, emit.op("add", boxes, grown), boxes)
    refused = emit.op("logical_or", beyond, rows.reshape(small, batch, total))
    return boxes, emit.where(emit.value("logical_not", refused), score, -1)


def _regressed(rows: Rows, deltas: Value, anchors: np.ndarray, shifts: bool) -> Value:
    """Anchors corrected by predictions: corners shifted, or centres moved and extents scaled."""
    emit, dtype = rows.emit, deltas.tensor.dtype
    if shifts:
        return emit.op("add", deltas, rows.constant(anchors, dtype))
    extent = anchors[..., 2:] - anchors[..., :2] + 1
    centre = anchors[..., :2] + 0.5 * (extent - 1)
    sides = rows.constant(extent, dtype)
    moved = emit.op("multiply", emit.cut(deltas, 2, 0, 2), sides)
    moved = emit.op("add", moved, rows.constant(centre, dtype))
    grown = emit.op("multiply", emit.value("exp", emit.cut(deltas, 2, 2, 2)), sides)
    half = emit.op("multiply", emit.op("subtract", grown, 1), 0.5)
    return emit.value("concatenate", emit.op("subtract", moved, half), emit.op("add", moved, half), axis=2)


RULES: Mapping[str, Rule] = {
    "vision.multibox_prior": _multibox_prior,
    "vision.multibox_transform_loc": _multibox_transform_loc,
    "vision.proposal": _proposal,
}
