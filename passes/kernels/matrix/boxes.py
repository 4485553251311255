"""Boxes of a factor that the copy engine can bring: its tensor map, and where a tile of it begins.

A factor is linear where every element's place in memory is a sum of multiples of its indices: plain and
batched matrices, slices, 1x1 windows. Windows that leave the image, and computed factors, are not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir import Expr, TensorType
from tilewright.ir.simplify import coefficients, interval
from tilewright.ir.tensor.ops import domain, ranges_of
from tilewright.ir.thread.tensor_maps import ParameterMap, TensorMap, map_faults
from tilewright.ir.types import itemsize, numpy_dtype
from tilewright.passes.kernels.matrix.view import MatrixView

#: bytes that a miss brings to the L2 cache: rows of boxes are as long
PROMOTION_BYTES = 256


@dataclass(frozen=True)
class Boxes:
    """How a factor lies in memory for the copy engine.

    outer: dimensions of the batch and taps, each with its elements from one index to the next. rows: those of
    the rows, which are one run of equal steps; rows_step, channel_step: elements from one to the next. start:
    elements before the first one.
    """

    outer: tuple[tuple[str, int], ...]
    rows: int
    rows_step: int
    channel: int
    channel_step: int
    start: int

    def recipe(self, sizes: Mapping[str, int], dtype: str, box: tuple[int, int], swizzle: int) -> TensorMap:
        """The tensor map for boxes of `box` elements, [rows, channel] or, turned, [channel, rows]."""
        size = itemsize(dtype)
        inner = [(self.rows, self.rows_step), (self.channel, self.channel_step)]
        if self.channel_step != 1:
            inner.reverse()
        dims = (*(sizes[d] for d, _ in self.outer), *(n for n, _ in inner))
        steps = (*(step for _, step in self.outer), *(step for _, step in inner))
        return TensorMap(
            numpy_dtype(dtype).name,
            dims,
            tuple(step * size for step in steps[:-1]),
            (*(1 for _ in self.outer), *box),
            swizzle=swizzle,
            promotion=PROMOTION_BYTES,
        )


def boxes_of(view: MatrixView, operand: int) -> Boxes | None:
    """How the copy engine sees a factor; None where it cannot bring boxes of it."""
    op, source = view.op, view.sources[operand]
    ranges, sizes = ranges_of(op), domain(op)
    if not source.given or any(
        interval(e, ranges)[0] < 0 or interval(e, ranges)[1] >= extent
        for e, extent in zip(source.at, source.value.tensor.shape, strict=True)
    ):
        return None
    varying = {d: r for d, r in ranges.items() if r[1] > 0}
    form = coefficients(source.offset(), list(sizes), varying)
    if form is None or not isinstance(form[1], int):
        return None
    steps, start = form[0], form[1]
    rows = [(sizes[d], steps.get(d, 0)) for d in view.outer(operand) if sizes[d] > 1]
    if not _one_run(rows):
        return None
    others = (*view.batch, *view.taps)
    outer = tuple((d, steps[d]) for d in others if sizes[d] > 1 and steps.get(d, 0))
    count = view.size(view.outer(operand))
    rows_step = rows[-1][1] if rows else 0
    channel_step = steps.get(view.channel, 0) or 1
    # a single row, or a channel of one element, may lie anywhere
    rows_step = rows_step or (sizes[view.channel] if channel_step == 1 else 1)
    return Boxes(outer, count, rows_step, sizes[view.channel], channel_step, start)


def _one_run(dims: Sequence[tuple[int, int]]) -> bool:
    """True when dimensions, the outermost first, are one of equal steps: (size, step) each."""
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(dims))


def map_of_boxes(
    boxes: Boxes, view: MatrixView, position: int, tensor: TensorType, box: tuple[int, int], swizzle: int
) -> ParameterMap | None:
    """The map of a parameter for boxes of the factor; None where the driver's rules forbid it."""
    recipe = boxes.recipe(domain(view.op), tensor.dtype, box, swizzle)
    parameter = ParameterMap(position, recipe, boxes.start * itemsize(tensor.dtype))
    if 1 not in (boxes.rows_step, boxes.channel_step) or parameter.offset % 16 or any(map_faults(recipe)):
        return None
    return parameter


def start_of_box(boxes: Boxes, index: Mapping[str, Expr], row: Expr, channel: Expr) -> tuple[Expr, ...]:
    """The coordinates of a box: of the batch and taps, then of its first row and channel as they lie."""
    inner = (row, channel) if boxes.channel_step == 1 else (channel, row)
    return (*(index[d] for d, _ in boxes.outer), *inner)
