"""Relay's detection operators, composed of sorting, overlaps, greedy selection and compaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.detection import Rows
from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value

_ONNX, _TENSORFLOW = "onnx", "tensorflow"


def _scalar(emit: Emitter, rows: Rows, value: Value, dtype: str) -> tuple[Value, float | None]:
    """An operand of one element as a scalar of `dtype`, and its value where it is known."""
    if value.tensor.size != 1:
        raise InputError(f"expected one number, got {value.type}")
    known = emit.known(value)
    number = None if known is None else float(known.reshape(()))
    return rows.cast(rows.reshape(value), dtype), number


def _check_rows(data: Value, least: int) -> None:
    if data.tensor.rank != 3 or data.tensor.shape[2] < least or 0 in data.tensor.shape:
        raise InputError(f"expected rows [B, N, E] of at least {least} entries, got {data.type}")


def _get_valid_counts(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Rows whose score is above a threshold (and whose class is not negative) first."""
    data, threshold = emit.tensors(args, 2)
    rows = Rows(emit)
    attrs.drop("score_threshold")  # the second operand holds it
    id_index, score_index = attrs.integer("id_index", 0), attrs.integer("score_index", 1)
    _check_rows(data, max(id_index, score_index) + 1)
    least, _ = _scalar(emit, rows, threshold, data.tensor.dtype)
    keep = rows.op("greater", rows.column(data, score_index), least)
    if id_index >= 0:
        classed = rows.op("greater_equal", rows.column(data, id_index), 0)
        keep = rows.op("logical_and", keep, classed)
    kept, count = rows.compact(data, keep, -1)
    places = emit.value("broadcast_to", rows.numbers(data.tensor.shape[1]), shape=data.tensor.shape[:2])
    indices, _ = rows.compact(places, keep, -1)
    return count, kept, indices


class _Suppression:
    """One non_max_suppression: rows in order of their scores, and which of them stay."""

    def __init__(self, emit: Emitter, args: Sequence[Result], attrs: Attributes) -> None:
        self.rows = rows = Rows(emit)
        self.data, self.valid, self.indices, limit, threshold = emit.tensors(args, 5)
        self.force = attrs.flag("force_suppress", False)
        self.top_k = attrs.integer("top_k", -1)
        self.coordinates = attrs.integer("coord_start", 2)
        self.score, self.id = attrs.integer("score_index", 1), attrs.integer("id_index", 0)
        _check_rows(self.data, max(self.coordinates + 4, self.score + 1, self.id + 1))
        t = self.data.tensor
        self.lists, self.count = t.shape[:2]
        self.kept = min(self.top_k, self.count) if self.top_k > 0 else self.count
        self.limit, self.known_limit = _scalar(emit, rows, limit, "i32")
        self.threshold, self.known_threshold = _scalar(emit, rows, threshold, t.dtype)
        valid = rows.reshape(rows.cast(self.valid, "i32"), self.lists, 1)
        self.exists = rows.op("less", rows.numbers(self.count), valid)

    def sorted(self) -> tuple[Value, Value, Value]:
        """Rows by descending score, their places in the data, and which of them stay."""
        rows = self.rows
        scores = rows.where(self.exists, rows.column(self.data, self.score), float("-inf"))
        places = rows.sorted_places(scores, self.kept)
        found = rows.take(self.data, places)
        exists = self.exists if self.kept == self.count else rows.part(self.exists, 1, 0, self.kept)
        positive = rows.op("greater", rows.column(found, self.score), 0)
        boxes = rows.part(found, 2, self.coordinates, 4)
        overlap = rows.emit.value("box_overlap", boxes)
        conditions = [rows.op("greater_equal", overlap, self.threshold)]
        if self.id >= 0:
            classes = rows.column(found, self.id)
            classed = rows.op("greater_equal", classes, 0)
            conditions.append(rows.reshape(classed, self.lists, 1, self.kept))
            if not self.force:
                conditions.append(rows.pairs("equal", classes))
        keep = rows.greedy(rows.op("logical_and", exists, positive), conditions)
        stay = rows.op("logical_or", keep, rows.emit.value("logical_not", positive))
        stay = rows.op("logical_and", stay, exists)
        if self.known_limit is None or self.known_limit >= 0:
            room = rows.op("less", rows.rank(keep), self.limit)
            if self.known_limit is None:
                room = rows.op("logical_or", room, rows.op("less", self.limit, 0))
            stay = rows.op("logical_and", stay, room)
        return found, places, stay

    def result(self) -> tuple[Value, Value]:
        """Rows with -1 in place of suppressed ones, and their places in the data likewise."""
        rows = self.rows
        every = rows.emit.value("broadcast_to", rows.numbers(self.count), shape=(self.lists, self.count))
        plain = self._blanked(self.data, every, self.exists)
        if self.known_threshold is not None and self.known_threshold <= 0:
            return plain
        out, places = self._blanked(*self.sorted())
        out, places = rows.filled(out, self.count, -1), rows.filled(places, self.count, -1)
        if self.known_threshold is not None:
            return out, places
        suppressing = rows.op("greater", self.threshold, 0)
        return rows.where(suppressing, out, plain[0]), rows.where(suppressing, places, plain[1])

    def _blanked(self, found: Value, places: Value, stay: Value) -> tuple[Value, Value]:
        whole = self.rows.reshape(stay, *stay.tensor.shape, 1)
        return self.rows.where(whole, found, -1), self.rows.where(stay, places, -1)


def _non_max_suppression(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Rows that overlap a better one of their class become -1; with `return_indices`, places of the rest."""
    suppression = _Suppression(emit, args, attrs)
    rows = suppression.rows
    return_indices = attrs.flag("return_indices", True)
    to_bottom = attrs.flag("invalid_to_bottom", False)
    out, places = suppression.result()
    if not return_indices:
        if not to_bottom:
            return out
        return rows.compact(out, rows.op("greater_equal", rows.column(out, 0), 0), -1)[0]
    if suppression.indices.tensor.shape != places.tensor.shape:
        raise InputError(f"expected indices like {places.type}, got {suppression.indices.type}")
    given = rows.cast(rows.take(suppression.indices, places), "i32")
    named = rows.where(rows.op("greater_equal", places, 0), given, -1)
    kept, count = rows.compact(named, rows.op("greater_equal", named, 0), -1)
    return kept, rows.reshape(count, suppression.lists, 1)


def _all_class_non_max_suppression(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Per class of every image the boxes that no better one overlaps, as rows (image, class, box).

    What is behind the counted rows is -1 in the ONNX format and 0 in TensorFlow's, which has no image.
    """
    boxes, scores, limit, threshold, least = emit.tensors(args, 5)
    form = attrs.text("output_format", _ONNX)
    if form not in (_ONNX, _TENSORFLOW):
        raise UnsupportedError(f"expected output_format {_ONNX} or {_TENSORFLOW}, got '{form}'")
    if scores.tensor.rank != 3 or boxes.tensor.shape != (scores.tensor.shape[0], scores.tensor.shape[2], 4):
        raise InputError(f"expected boxes [B, N, 4] and scores [B, C, N], got {boxes.type} and {scores.type}")
    rows = Rows(emit)
    images, classes, count = scores.tensor.shape
    lists = rows.reshape(scores, images * classes, count)
    places = rows.sorted_places(lists, count)
    ordered = rows.take(lists, places)
    found = rows.take(boxes, rows.reshape(places, images, classes * count))
    overlap = emit.value("box_overlap", rows.reshape(found, images * classes, count, 4))
    bound, _ = _scalar(emit, rows, threshold, boxes.tensor.dtype)
    lowest, _ = _scalar(emit, rows, least, scores.tensor.dtype)
    most, _ = _scalar(emit, rows, limit, "i32")
    weak = rows.reshape(rows.op("greater", ordered, 0), images * classes, count, 1)
    exists = rows.op("logical_and", rows.op("greater", ordered, lowest), rows.op("greater", bound, 0))
    candidates = rows.op("logical_and", exists, rows.op("greater", ordered, -1))
    keep = rows.greedy(candidates, [rows.op("greater_equal", overlap, bound), weak])
    room = rows.op("logical_or", rows.op("less", rows.rank(keep), most), rows.op("less_equal", most, 0))
    keep = rows.op("logical_and", keep, room)
    return _collected(rows, scores, ordered, places, keep, form)


def _collected(rows: Rows, scores: Value, ordered: Value, places: Value, keep: Value, form: str) -> Result:
    """The kept boxes of all classes as lists of rows."""
    images, classes, count = scores.tensor.shape
    length = classes * count
    shape = (images, classes, count, 1)
    emit = rows.emit
    numbers = [
        rows.constant([[[[c]] for c in range(classes)]], "i64"),
        rows.reshape(rows.cast(places, "i64"), *shape),
    ]
    if form == _ONNX:
        numbers.insert(0, rows.constant([[[[n]]] for n in range(images)], "i64"))
    parts = [emit.value("broadcast_to", v, shape=shape) if v.tensor.shape != shape else v for v in numbers]
    table = emit.value("concatenate", *parts, axis=3)
    if form == _ONNX:
        every = rows.reshape(table, 1, images * length, 3)
        kept, total = rows.compact(every, rows.reshape(keep, 1, images * length), -1)
        return rows.reshape(kept, images * length, 3), rows.cast(total, "i64")
    chosen = rows.reshape(keep, images, length)
    kept, total = rows.compact(rows.reshape(table, images, length, 2), chosen, 0)
    best, _ = rows.compact(rows.cast(rows.reshape(ordered, images, length), "f32"), chosen, 0)
    return kept, best, rows.cast(total, "i64")


def _regular_non_max_suppression(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The best boxes of all classes that overlap no better one of theirs: boxes, classes, scores, counts.

    Scores [B, N, C] may begin with classes that do not count. What is behind the counted boxes is 0.
    """
    boxes, scores = emit.tensors(args, 2)
    most, per_class = attrs.integer("max_detections"), attrs.integer("max_detections_per_class")
    classes = attrs.integer("num_classes")
    threshold, least = attrs.real("iou_threshold"), attrs.real("score_threshold")
    t = scores.tensor
    fits = t.rank == 3 and boxes.tensor.shape == (*t.shape[:2], 4) and 0 < classes <= t.shape[2]
    if not fits or 0 in t.shape or most < 1:
        wanted = f"boxes [B, N, 4] and scores [B, N, {classes} or more]"
        raise InputError(f"expected {wanted}, got {boxes.type} and {t}")
    rows = Rows(emit)
    images, count, every = t.shape
    lists = emit.value("transpose", rows.part(scores, 2, every - classes, classes), axes=(0, 2, 1))
    lists = rows.reshape(lists, images * classes, count)
    places = rows.sorted_places(lists, count)
    ordered = rows.take(lists, places)
    places = rows.reshape(places, images, classes * count)
    found = rows.take(boxes, places)
    overlap = emit.value("box_overlap", rows.reshape(found, images * classes, count, 4), sort_corners=False)
    candidates = rows.op("greater_equal", ordered, least)
    keep = rows.greedy(candidates, [rows.op("greater", overlap, threshold)])
    keep = rows.op("logical_and", keep, rows.op("less", rows.rank(keep), per_class))
    keep = rows.reshape(keep, images, classes * count)
    merged = rows.where(keep, rows.reshape(ordered, images, classes * count), float("-inf"))
    best = rows.sorted_places(merged, min(most, classes * count))
    chosen = rows.take(keep, best)
    total = emit.value("sum", rows.cast(chosen, "i32"), axis=(1,), keepdims=False)
    numbers = rows.op("floor_divide", best, count)
    corners = rows.reshape(chosen, *chosen.tensor.shape, 1)
    out = (
        rows.where(corners, rows.take(found, best), 0),
        rows.where(chosen, rows.cast(numbers, "f32"), 0),
        rows.where(chosen, rows.take(merged, best), 0),
    )
    return (*(rows.filled(v, most, 0) for v in out), total)


RULES: Mapping[str, Rule] = {
    "vision.get_valid_counts": _get_valid_counts,
    "vision.non_max_suppression": _non_max_suppression,
    "vision.regular_non_max_suppression": _regular_non_max_suppression,
    "vision.all_class_non_max_suppression": _all_class_non_max_suppression,
}
