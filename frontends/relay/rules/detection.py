"""Relay's detection operators, composed of sorting, overlaps, greedy selection and compaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype

_ONNX, _TENSORFLOW = "onnx", "tensorflow"


@dataclass(frozen=True, slots=True)
class Rows:
    """Shorthand for ops on lists of rows: tensors [B, N, ...]."""

    emit: Emitter

    def constant(self, value: object, dtype: str) -> Value:
        """A constant of `dtype`."""
        return self.emit.constant(np.asarray(value).astype(storage_dtype(dtype)))

    def reshape(self, x: Value, *shape: int) -> Value:
        """The same elements under another shape."""
        return self.emit.reshape(x, shape)

    def column(self, rows: Value, index: int) -> Value:
        """One entry [B, N] of every row."""
        return self.reshape(self.emit.cut(rows, 2, index, 1), *rows.tensor.shape[:2])

    def take(self, rows: Value, places: Value) -> Value:
        """Rows [B, K, ...] at places [B, K]."""
        return self.emit.value("take", rows, places, axis=1, batch_dims=1, mode="clip")

    def numbers(self, count: int) -> Value:
        """0, 1, ... as i32[1, count]."""
        return self.constant(np.arange(count).reshape(1, -1), "i32")

    def sorted_places(self, scores: Value, first: int) -> Value:
        """Places (i32) of the `first` largest scores of every list, in order."""
        if first == scores.tensor.shape[1]:
            return self.emit.value("argsort", scores, axis=1, is_ascend=False, dtype="i32")
        _, places = self.emit.values("topk", (scores,), k=first, axis=1, is_ascend=False, dtype="i32")
        return places

    def rank(self, keep: Value) -> Value:
        """The number of kept ones before each (i32)."""
        return self.emit.value("cumsum", self.emit.cast(keep, "i32"), axis=1, exclusive=True)

    def compact(self, x: Value, keep: Value, value: float) -> tuple[Value, Value]:
        """The kept rows first, `value` behind them, and their number."""
        rows, count = self.emit.values("compact", (x, keep), value=value)
        return rows, count

    def filled(self, rows: Value, count: int, value: float) -> Value:
        """Rows [B, count, ...] with `value` behind the given ones."""
        t = rows.tensor
        if t.shape[1] == count:
            return rows
        rest = np.full((t.shape[0], count - t.shape[1], *t.shape[2:]), value)
        return self.emit.value("concatenate", rows, self.constant(rest, t.dtype), axis=1)

    def greedy(self, candidates: Value, conditions: Sequence[Value]) -> Value:
        """Candidates [B, N], each kept unless a kept t before it meets all conditions [B, N, t]."""
        suppresses = conditions[0]
        for c in conditions[1:]:
            suppresses = self.emit.op("logical_and", suppresses, c)
        return self.emit.value("greedy_keep", candidates, suppresses)

    def pairs(self, name: str, x: Value) -> Value:
        """A binary graph op on the entries [B, N] of all pairs: [B, i, t]."""
        b, n = x.tensor.shape
        return self.emit.op(name, self.reshape(x, b, n, 1), self.reshape(x, b, 1, n))


def _scalar(emit: Emitter, value: Value, dtype: str) -> tuple[Value, float | None]:
    """An operand of one element as a scalar of `dtype`, and its value where it is known."""
    if value.tensor.size != 1:
        raise InputError(f"expected one number, got {value.type}")
    known = emit.known(value)
    number = None if known is None else float(known.reshape(()))
    return emit.cast(emit.reshape(value, ()), dtype), number


def _check_rows(data: Value, least: int) -> None:
    if data.tensor.rank != 3 or data.tensor.shape[2] < least or 0 in data.tensor.shape:
        raise InputError(f"expected rows [B, N, E] of at least {least} entries, got {data.type}")


def _get_valid_counts(emit: Emitter, call: Call) -> Result:
    """Rows whose score is above a threshold (and whose class is not negative) first."""
    data, threshold = call.tensors(2)
    rows = Rows(emit)
    call.drop("score_threshold")  # the second operand holds it
    id_index, score_index = call.integer("id_index", 0), call.integer("score_index", 1)
    _check_rows(data, max(id_index, score_index) + 1)
    least, _ = _scalar(emit, threshold, data.tensor.dtype)
    keep = emit.op("greater", rows.column(data, score_index), least)
    if id_index >= 0:
        classed = emit.op("greater_equal", rows.column(data, id_index), 0)
        keep = emit.op("logical_and", keep, classed)
    first, count = rows.compact(data, keep, -1)
    places = emit.value("broadcast_to", rows.numbers(data.tensor.shape[1]), shape=data.tensor.shape[:2])
    indices, _ = rows.compact(places, keep, -1)
    return count, first, indices


class _Suppression:
    """One non_max_suppression: rows in order of their scores, and which of them stay."""

    def __init__(self, emit: Emitter, call: Call) -> None:
        self.rows = rows = Rows(emit)
        self.data, self.valid, self.indices, limit, threshold = call.tensors(5)
        self.force = call.flag("force_suppress", False)
        self.top_k = call.integer("top_k", -1)
        self.coordinates = call.integer("coord_start", 2)
        self.score, self.id = call.integer("score_index", 1), call.integer("id_index", 0)
        _check_rows(self.data, max(self.coordinates + 4, self.score + 1, self.id + 1))
        t = self.data.tensor
        self.lists, self.count = t.shape[:2]
        self.kept = min(self.top_k, self.count) if self.top_k > 0 else self.count
        self.limit, self.known_limit = _scalar(emit, limit, "i32")
        self.threshold, self.known_threshold = _scalar(emit, threshold, t.dtype)
        valid = rows.reshape(emit.cast(self.valid, "i32"), self.lists, 1)
        self.exists = emit.op("less", rows.numbers(self.count), valid)

    def sorted(self) -> tuple[Value, Value, Value]:
        """Rows by descending score, their places in the data, and which of them stay."""
        rows, emit = self.rows, self.rows.emit
        scores = emit.where(self.exists, rows.column(self.data, self.score), float("-inf"))
        places = rows.sorted_places(scores, self.kept)
        ordered = rows.take(self.data, places)
        exists = self.exists if self.kept == self.count else emit.cut(self.exists, 1, 0, self.kept)
        positive = emit.op("greater", rows.column(ordered, self.score), 0)
        boxes = emit.cut(ordered, 2, self.coordinates, 4)
        overlap = emit.value("box_overlap", boxes)
        conditions = [emit.op("greater_equal", overlap, self.threshold)]
        if self.id >= 0:
            classes = rows.column(ordered, self.id)
            classed = emit.op("greater_equal", classes, 0)
            conditions.append(rows.reshape(classed, self.lists, 1, self.kept))
            if not self.force:
                conditions.append(rows.pairs("equal", classes))
        keep = rows.greedy(emit.op("logical_and", exists, positive), conditions)
        stay = emit.op("logical_or", keep, emit.value("logical_not", positive))
        stay = emit.op("logical_and", stay, exists)
        if self.known_limit is None or self.known_limit >= 0:
            room = emit.op("less", rows.rank(keep), self.limit)
            if self.known_limit is None:
                room = emit.op("logical_or", room, emit.op("less", self.limit, 0))
            stay = emit.op("logical_and", stay, room)
        return ordered, places, stay

    def result(self) -> tuple[Value, Value]:
        """Rows with -1 in place of suppressed ones, and their places in the data likewise."""
        rows, emit = self.rows, self.rows.emit
        every = emit.value("broadcast_to", rows.numbers(self.count), shape=(self.lists, self.count))
        plain = self._blanked(self.data, every, self.exists)
        if self.known_threshold is not None and self.known_threshold <= 0:
            return plain
        out, places = self._blanked(*self.sorted())
        out, places = rows.filled(out, self.count, -1), rows.filled(places, self.count, -1)
        if self.known_threshold is not None:
            return out, places
        suppressing = emit.op("greater", self.threshold, 0)
        return emit.where(suppressing, out, plain[0]), emit.where(suppressing, places, plain[1])

    def _blanked(self, ordered: Value, places: Value, stay: Value) -> tuple[Value, Value]:
        emit = self.rows.emit
        whole = self.rows.reshape(stay, *stay.tensor.shape, 1)
        return emit.where(whole, ordered, -1), emit.where(stay, places, -1)


def _non_max_suppression(emit: Emitter, call: Call) -> Result:
    """Rows that overlap a better one of their class become -1; with `return_indices`, places of the rest."""
    suppression = _Suppression(emit, call)
    rows = suppression.rows
    return_indices = call.flag("return_indices", True)
    to_bottom = call.flag("invalid_to_bottom", False)
    out, places = suppression.result()
    if not return_indices:
        if not to_bottom:
            return out
        return rows.compact(out, emit.op("greater_equal", rows.column(out, 0), 0), -1)[0]
    if suppression.indices.tensor.shape != places.tensor.shape:
        raise InputError(f"expected indices like {places.type}, got {suppression.indices.type}")
    chosen = emit.cast(rows.take(suppression.indices, places), "i32")
    named = emit.where(emit.op("greater_equal", places, 0), chosen, -1)
    first, count = rows.compact(named, emit.op("greater_equal", named, 0), -1)
    return first, rows.reshape(count, suppression.lists, 1)


def _all_class_non_max_suppression(emit: Emitter, call: Call) -> Result:
    """Per class of every image the boxes that no better one overlaps, as rows (image, class, box).

    What is behind the counted rows is -1 in the ONNX format and 0 in TensorFlow's, which has no image.
    """
    boxes, scores, limit, threshold, least = call.tensors(5)
    form = call.text("output_format", _ONNX)
    if form not in (_ONNX, _TENSORFLOW):
        raise UnsupportedError(f"expected output_format {_ONNX} or {_TENSORFLOW}, got '{form}'")
    if scores.tensor.rank != 3 or boxes.tensor.shape != (scores.tensor.shape[0], scores.tensor.shape[2], 4):
        raise InputError(f"expected boxes [B, N, 4] and scores [B, C, N], got {boxes.type} and {scores.type}")
    rows = Rows(emit)
    images, classes, count = scores.tensor.shape
    lists = rows.reshape(scores, images * classes, count)
    places = rows.sorted_places(lists, count)
    ordered = rows.take(lists, places)
    ranked = rows.take(boxes, rows.reshape(places, images, classes * count))
    overlap = emit.value("box_overlap", rows.reshape(ranked, images * classes, count, 4))
    bound, _ = _scalar(emit, threshold, boxes.tensor.dtype)
    lowest, _ = _scalar(emit, least, scores.tensor.dtype)
    most, _ = _scalar(emit, limit, "i32")
    weak = rows.reshape(emit.op("greater", ordered, 0), images * classes, count, 1)
    exists = emit.op("logical_and", emit.op("greater", ordered, lowest), emit.op("greater", bound, 0))
    candidates = emit.op("logical_and", exists, emit.op("greater", ordered, -1))
    keep = rows.greedy(candidates, [emit.op("greater_equal", overlap, bound), weak])
    room = emit.op("logical_or", emit.op("less", rows.rank(keep), most), emit.op("less_equal", most, 0))
    keep = emit.op("logical_and", keep, room)
    return _collected(rows, scores, ordered, places, keep, form)


def _collected(rows: Rows, scores: Value, ordered: Value, places: Value, keep: Value, form: str) -> Result:
    """The kept boxes of all classes as lists of rows."""
    images, classes, count = scores.tensor.shape
    length = classes * count
    shape = (images, classes, count, 1)
    emit = rows.emit
    numbers = [
        rows.constant([[[[c]] for c in range(classes)]], "i64"),
        rows.reshape(emit.cast(places, "i64"), *shape),
    ]
    if form == _ONNX:
        numbers.insert(0, rows.constant([[[[n]]] for n in range(images)], "i64"))
    parts = [emit.value("broadcast_to", v, shape=shape) if v.tensor.shape != shape else v for v in numbers]
    table = emit.value("concatenate", *parts, axis=3)
    if form == _ONNX:
        every = rows.reshape(table, 1, images * length, 3)
        first, total = rows.compact(every, rows.reshape(keep, 1, images * length), -1)
        return rows.reshape(first, images * length, 3), emit.cast(total, "i64")
    chosen = rows.reshape(keep, images, length)
    first, total = rows.compact(rows.reshape(table, images, length, 2), chosen, 0)
    best, _ = rows.compact(emit.cast(rows.reshape(ordered, images, length), "f32"), chosen, 0)
    return first, best, emit.cast(total, "i64")


def _regular_non_max_suppression(emit: Emitter, call: Call) -> Result:
    """The best boxes of all classes that overlap no better one of theirs: boxes, classes, scores, counts.

    Scores [B, N, C] may begin with classes that do not count. What is behind the counted boxes is 0.
    """
    boxes, scores = call.tensors(2)
    most, per_class = call.integer("max_detections"), call.integer("max_detections_per_class")
    classes = call.integer("num_classes")
    threshold, least = call.real("iou_threshold"), call.real("score_threshold")
    t = scores.tensor
    fits = t.rank == 3 and boxes.tensor.shape == (*t.shape[:2], 4) and 0 < classes <= t.shape[2]
    if not fits or 0 in t.shape or most < 1:
        expected = f"boxes [B, N, 4] and scores [B, N, {classes} or more]"
        raise InputError(f"expected {expected}, got {boxes.type} and {t}")
    rows = Rows(emit)
    images, count, every = t.shape
    lists = emit.value("transpose", emit.cut(scores, 2, every - classes, classes), axes=(0, 2, 1))
    lists = rows.reshape(lists, images * classes, count)
    places = rows.sorted_places(lists, count)
    ordered = rows.take(lists, places)
    places = rows.reshape(places, images, classes * count)
    ranked = rows.take(boxes, places)
    overlap = emit.value("box_overlap", rows.reshape(ranked, images * classes, count, 4), sort_corners=False)
    candidates = emit.op("greater_equal", ordered, least)
    keep = rows.greedy(candidates, [emit.op("greater", overlap, threshold)])
    keep = emit.op("logical_and", keep, emit.op("less", rows.rank(keep), per_class))
    keep = rows.reshape(keep, images, classes * count)
    merged = emit.where(keep, rows.reshape(ordered, images, classes * count), float("-inf"))
    best = rows.sorted_places(merged, min(most, classes * count))
    chosen = rows.take(keep, best)
    total = emit.value("sum", emit.cast(chosen, "i32"), axis=(1,), keepdims=False)
    numbers = emit.op("floor_divide", best, count)
    corners = rows.reshape(chosen, *chosen.tensor.shape, 1)
    out = (
        emit.where(corners, rows.take(ranked, best), 0),
        emit.where(chosen, emit.cast(numbers, "f32"), 0),
        emit.where(chosen, rows.take(merged, best), 0),
    )
    return (*(rows.filled(v, most, 0) for v in out), total)


RULES: Mapping[str, Rule] = {
    "vision.get_valid_counts": _get_valid_counts,
    "vision.non_max_suppression": _non_max_suppression,
    "vision.regular_non_max_suppression": _regular_non_max_suppression,
    "vision.all_class_non_max_suppression": _all_class_non_max_suppression,
}
