"""Detection as importers build it: scalars of graph ops, rows of boxes, and greedy selection by overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.emitter import Emitter
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype


@dataclass(frozen=True, slots=True)
class Rows:
    """Shorthand for ops on lists of rows: tensors [B, N, ...]."""

    emit: Emitter

    def constant(self, value: object, dtype: str) -> Value:
        """A constant of `dtype`."""
        return self.emit.constant(np.asarray(value).astype(storage_dtype(dtype)))

    def op(self, name: str, a: Value, b: Value | float) -> Value:
        """A binary graph op; a number has the dtype of the first operand."""
        other = b if isinstance(b, Value) else self.constant(b, a.tensor.dtype)
        return self.emit.value(name, a, other)

    def where(self, condition: Value, a: Value, b: Value | float) -> Value:
        """Elements of a where the condition holds, else of b."""
        other = b if isinstance(b, Value) else self.constant(b, a.tensor.dtype)
        return self.emit.value("where", condition, a, other)

    def cast(self, x: Value, dtype: str) -> Value:
        """`x` as dtype."""
        return x if x.tensor.dtype == dtype else self.emit.value("cast", x, dtype=dtype)

    def reshape(self, x: Value, *shape: int) -> Value:
        """The same elements under another shape."""
        return x if x.tensor.shape == shape else self.emit.value("reshape", x, newshape=shape)

    def part(self, x: Value, axis: int, start: int, size: int) -> Value:
        """A range of an axis."""
        begin = [0] * x.tensor.rank
        sizes = list(x.tensor.shape)
        begin[axis], sizes[axis] = start, size
        strides = (1,) * x.tensor.rank
        return self.emit.value("strided_slice", x, begin=tuple(begin), size=tuple(sizes), strides=strides)

    def column(self, rows: Value, index: int) -> Value:
        """One entry [B, N] of every row."""
        return self.reshape(self.part(rows, 2, index, 1), *rows.tensor.shape[:2])

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
        """How many are kept before each (i32)."""
        return self.emit.value("cumsum", self.cast(keep, "i32"), axis=1, exclusive=True)

    def compact(self, x: Value, keep: Value, value: float) -> tuple[Value, Value]:
        """The kept rows first, `value` behind them, and their number."""
        kept, count = self.emit.values("compact", (x, keep), value=value)
        return kept, count

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
            suppresses = self.op("logical_and", suppresses, c)
        return self.emit.value("greedy_keep", candidates, suppresses)

    def pairs(self, name: str, x: Value) -> Value:
        """A binary graph op on the entries [B, N] of all pairs: [B, i, t]."""
        b, n = x.tensor.shape
        return self.op(name, self.reshape(x, b, n, 1), self.reshape(x, b, 1, n))
