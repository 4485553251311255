"""Boxes and windows of a factor that the copy engine can bring: its map, and where a tile of it begins.

A factor is linear where every element's place in memory is a sum of multiples of its indices: plain and
batched matrices, slices, 1x1 windows. Boxes of it are tiles. The windows of a convolution are read at window
* stride + tap * dilation - padding along each spatial dimension of [images, space..., channels]. Rows of the
product are then windows, image by image in the order of an im2col map, so a block of them is one copy per tap
and chunk of channels, wherever it begins. Threads bring other windows, and computed factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from tilewright.ir import Expr, TensorType
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import coefficients, interval, simplify
from tilewright.ir.tensor.ops import domain, ranges_of
from tilewright.ir.thread.tensor_maps import ParameterMap, TensorMap, Window, copied_as, map_faults
from tilewright.ir.types import itemsize, storage_dtype
from tilewright.passes.kernels.matrix.view import MatrixView

#: bytes that a miss brings to the L2 cache: rows of boxes are as long
PROMOTION_BYTES = 256
#: bytes of the rows of tiles that roles multiply
ROW_BYTES = 128
#: the same of windows, which take single pixels
WINDOW_PROMOTION_BYTES = 128
#: dimensions of the largest tensor whose windows the copy engine takes
MOST_RANK = 5
#: largest offset of a tap, which the instruction holds in a byte per dimension where there are two
MOST_OFFSET = 255


@dataclass(frozen=True)
class Boxes:
    """How a factor lies in memory for the copy engine.

    outer: groups of dimensions of the batch and taps, each a run of equal steps, with elements from one index
    to the next. rows: those of the rows, one such run; rows_step, channel_step: elements from one
    to the next. start: elements before the first one.
    """

    outer: tuple[tuple[tuple[str, ...], int], ...]
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
        dims = (*(prod(sizes[d] for d in group) for group, _ in self.outer), *(n for n, _ in inner))
        steps = (*(step for _, step in self.outer), *(step for _, step in inner))
        return TensorMap(
            copied_as(storage_dtype(dtype).name),
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
    others = [d for d in (*view.batch, *view.taps) if sizes[d] > 1 and steps.get(d, 0)]
    runs = [[d] for d in others[:1]]
    for last, d in pairwise(others):
        if _one_run([(sizes[last], steps[last]), (sizes[d], steps[d])]):
            runs[-1].append(d)
        else:
            runs.append([d])
    outer = tuple((tuple(run), steps[run[-1]]) for run in runs)
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


def comes_in_boxes(view: MatrixView, operand: int) -> bool:
    """Return whether the copy engine can bring tiles of a factor, or its windows, in rows of 128 bytes."""
    tensor, boxes = view.sources[operand].value.tensor, boxes_of(view, operand)
    row = ROW_BYTES // itemsize(tensor.dtype)
    if boxes is not None:
        return map_of_boxes(boxes, view, 0, tensor, (row, row), ROW_BYTES) is not None
    windows = windows_of(view, operand)
    return windows is not None and windows.map(0, tensor, row, row, ROW_BYTES) is not None


def start_of_box(
    boxes: Boxes, index: Mapping[str, Expr], sizes: Mapping[str, int], row: Expr, channel: Expr
) -> tuple[Expr, ...]:
    """The coordinates of a box: of the batch and taps, then of its first row and channel as they lie.

    sizes: extents of the dimensions.
    """
    inner = (row, channel) if boxes.channel_step == 1 else (channel, row)
    outer = []
    for (first, *others), _ in boxes.outer:
        at = index[first]
        for d in others:
            at = at * sizes[d] + index[d]
        outer.append(at)
    return (*outer, *inner)


@dataclass(frozen=True)
class SpatialWindow:
    """One spatial dimension: windows begin at first + stride * (index of `row`), taps dilation apart.

    row, tap: dimensions of the contraction, '' where there is but one window or tap. windows: how many there
    are. extent: of the image. shift: the dimension of the batch whose products read windows `further` pixels
    apart each, as phases of a transposed convolution do; '' where all read the same ones.
    """

    row: str
    stride: int
    windows: int
    tap: str
    dilation: int
    first: int
    extent: int
    shift: str = ""
    further: int = 0

    @property
    def last(self) -> int:
        """Return the distance from the last pixel of the image to the first one of the last window."""
        return self.first + (self.windows - 1) * self.stride - (self.extent - 1)


@dataclass(frozen=True)
class Windows:
    """How the copy engine sees a factor of windows.

    channel, channels: first index and number of the channels that a product of the batch reads. shape,
    strides: of the tensor, in elements, with groups of channels as one dimension.
    """

    image: str
    space: tuple[SpatialWindow, ...]
    channel: Expr
    channels: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def map(self, position: int, t: TensorType, pixels: int, chunk: int, swizzle: int) -> ParameterMap | None:
        """The map for copies of a chunk of channels of `pixels` windows; None where there can be none.

        What a copy brings beyond the channels must be zero: they end where the map does, or are whole chunks.
        """
        size, start = itemsize(t.dtype), self.channel if isinstance(self.channel, int) else 0
        if not isinstance(self.channel, int) and self.channels % chunk:
            return None
        count = self.channels if isinstance(self.channel, int) else self.shape[-1]
        window = Window(tuple(s.first for s in self.space), tuple(s.last for s in self.space), chunk, pixels)
        recipe = TensorMap(
            copied_as(storage_dtype(t.dtype).name),
            (*self.shape[:-1], count),
            tuple(step * size for step in self.strides[:-1]),
            steps=(1, *(s.stride for s in self.space), 1),
            swizzle=swizzle,
            promotion=WINDOW_PROMOTION_BYTES,
            window=window,
        )
        parameter = ParameterMap(position, recipe, (t.start + start) * size)
        if self.strides[-1] != 1 or parameter.offset % 16 or any(map_faults(recipe)):
            return None
        return parameter

    def start(self, index: Mapping[str, Expr], channel: Expr) -> tuple[Expr, ...]:
        """Coordinates of a copy whose first window has this index, from a channel of the product on."""
        image = index.get(self.image, 0)
        first = 0 if isinstance(self.channel, int) else substitute(self.channel, index)
        space = (index.get(s.row, 0) * s.stride + s.first for s in self.space)
        return (image, *space, first + channel)

    def offsets(self, index: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """Per spatial dimension the offset of a tap, and of the windows of a product of the batch."""
        return tuple(index.get(s.tap, 0) * s.dilation + index.get(s.shift, 0) * s.further for s in self.space)


def windows_of(view: MatrixView, operand: int) -> Windows | None:
    """How the copy engine sees a factor; None where it is no image, or its rows are in another order."""
    op, source = view.op, view.sources[operand]
    sizes = domain(op)
    at, shape, strides = _channels_merged(view, operand)
    rows = [d for d in view.outer(operand) if sizes[d] > 1]
    taps = [d for d in view.taps if sizes[d] > 1]
    varying = {d: r for d, r in ranges_of(op).items() if r[1] > 0}
    if not source.given or not 3 <= len(shape) <= MOST_RANK or view.along(operand) != view.channel:
        return None
    # channels begin where the batch says, in whatever way: what is left of their index
    moving = [*rows, *taps, *(d for d in view.batch if sizes[d] > 1)]
    forms = [
        coefficients(e, [*(moving if i < len(at) - 1 else ()), view.channel], varying)
        for i, e in enumerate(at)
    ]
    parts = [f for f in forms if f is not None]
    if len(parts) != len(shape) or any(not isinstance(rest, int) for _, rest in parts[:-1]):
        return None
    (image_steps, image_first), *spaces, (channel_steps, channel_rest) = parts
    image = next(iter(image_steps), "")
    if image_first != 0 or image_steps != ({image: 1} if image else {}) or (image and image not in rows):
        return None
    if channel_steps != {view.channel: 1}:
        return None
    space = [
        _spatial(s, rest, rows, taps, sizes, n) for (s, rest), n in zip(spaces, shape[1:-1], strict=True)
    ]
    known = [s for s in space if s is not None]
    order = [d for d in (image, *(s.row for s in known)) if d]
    used = {s.tap for s in known if s.tap}
    if len(known) != len(space) or order != rows or used != set(taps):
        return None
    farthest = (
        (sizes.get(s.tap, 1) - 1) * s.dilation + (sizes.get(s.shift, 1) - 1) * s.further for s in known
    )
    if any(offset > MOST_OFFSET for offset in farthest):
        return None
    return Windows(image, tuple(known), channel_rest, sizes[view.channel], shape, strides)


def _channels_merged(
    view: MatrixView, operand: int
) -> tuple[tuple[Expr, ...], tuple[int, ...], tuple[int, ...]]:
    """Indices, shape and strides of a factor, groups of channels that are one run as channels."""
    source, t = view.sources[operand], view.sources[operand].value.tensor
    at, shape, strides = source.at, t.shape, t.strides
    while (
        len(shape) > 1
        and strides[-2] == shape[-1] * strides[-1]
        and at[-2] != 0
        and set(symbols(at[-2])) <= set(view.batch)
    ):
        merged = simplify(at[-2] * shape[-1] + at[-1], ranges_of(view.op))
        at = (*at[:-2], merged)
        shape = (*shape[:-2], shape[-2] * shape[-1])
        strides = (*strides[:-2], strides[-1])
    return at, shape, strides


def _spatial(
    steps: Mapping[str, int],
    first: Expr,
    rows: list[str],
    taps: list[str],
    sizes: Mapping[str, int],
    extent: int,
) -> SpatialWindow | None:
    """One spatial dimension; None where its index is not that of windows."""
    own_rows, own_taps = [d for d in steps if d in rows], [d for d in steps if d in taps]
    shifts = [d for d in steps if d not in rows and d not in taps]
    if len(own_rows) > 1 or len(own_taps) > 1 or len(shifts) > 1:
        return None
    if any(n < 1 for n in steps.values()) or not isinstance(first, int):
        return None
    row, tap = (own_rows or [""])[0], (own_taps or [""])[0]
    windows = sizes[row] if row else 1
    shift = (shifts or [""])[0]
    return SpatialWindow(
        row, steps.get(row, 1), windows, tap, steps.get(tap, 1), first, extent, shift, steps.get(shift, 0)
    )
