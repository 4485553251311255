"""Contractions that are convolutions, found by their index maps, as problems of cuDNN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir import Op
from tilewright.ir.expr import symbols
from tilewright.ir.simplify import coefficients, interval
from tilewright.ir.tensor.ops import dims, domain, fills, ranges_of, reads
from tilewright.libraries.matching.matmul import BUFFER_DTYPE, sums_in_f32
from tilewright.libraries.matching.strides import (
    Strides,
    common_step,
    merged,
    steps_at,
    steps_of_read,
    steps_of_result,
)
from tilewright.runtime.libraries.convolution import Array4, ConvolutionProblem
from tilewright.runtime.libraries.problem import POINTER_BYTES

#: dimensions of arrays from the longest steps to the shortest: channels before positions, or behind
CHANNELS_FIRST, CHANNELS_LAST = (0, 1, 2, 3), (0, 2, 3, 1)


@dataclass(frozen=True)
class ConvolutionMatch:
    """A contraction as a convolution; `images`, `filters` and `positions` are the dimensions of its result.

    weights: the dimensions of the filters in the order in which cuDNN wants them in memory.
    fits: whether they lie so already.
    """

    problem: ConvolutionProblem
    images: tuple[str, ...]
    filters: tuple[str, ...]
    positions: tuple[str, ...]
    sizes: Mapping[str, int]
    order: tuple[int, ...]
    weights: tuple[str, ...]
    fits: bool
    first: int = 0

    def bias(self, steps: Strides, result: str) -> ConvolutionProblem | None:
        """The problem with a vector added that has one element per filter."""
        if self.problem.has_bias or steps.start or any(steps[d] for d in (*self.images, *self.positions)):
            return None
        if common_step(self.filters, self.sizes, steps) != 1:
            return None
        return replace(self.problem, epilogue="bias", result=result)

    def residual(self, steps: Strides, result: str) -> ConvolutionProblem | None:
        """The problem with an array of the results' extents added."""
        if self.problem.c is not None or not _aligned(steps.start, result):
            return None
        array = _results(self.images, self.filters, self.positions, self.sizes, steps, self.order)
        return None if array is None else replace(self.problem, c=array, result=result)


@dataclass(frozen=True)
class WindowDim:
    """A dimension of the image that windows move along: index = step * position + dilation * tap - before."""

    dim: int
    position: str
    tap: str
    step: int
    dilation: int
    before: int


@dataclass(frozen=True)
class ImageAxis:
    """Height or width as a library sees it: the extent that is read, padded, and the steps in memory."""

    size: int = 1
    stride: int = 0
    start: int = 0
    tap: str = ""
    taps: int = 1
    step: int = 1
    dilation: int = 1
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class _Roles:
    """Dimensions of a contraction by what they are to a convolution; filters begin with the groups."""

    images: tuple[str, ...]
    filters: tuple[str, ...]
    channels: tuple[str, ...]
    group_count: int
    windows: tuple[WindowDim, ...]

    @property
    def positions(self) -> tuple[str, ...]:
        return tuple(p.position for p in self.windows)


def convolution_of(op: Op) -> ConvolutionMatch | None:
    """A tensor.contract as a two-dimensional convolution of its first operand; None where it is none.

    Windows must move along at most two dimensions of the image; what both operands and the
    result share are groups. A product of matrices is a convolution with one tap.
    """
    dtype = BUFFER_DTYPE.get(op.operands[0].tensor.dtype)
    if dtype is None or op.operands[0].tensor.dtype != op.operands[1].tensor.dtype or not sums_in_f32(op):
        return None
    windows, weights = _window_dims(op), steps_of_read(op, 1)
    image = steps_at(op, op.operands[0].tensor, reads(op)[0], False)
    if windows is None or weights is None or image is None:
        return None
    roles, axes = _roles(op, windows, image, weights), _image_axes(op, windows)
    return None if roles is None or axes is None else _convolution(op, roles, axes, image, weights, dtype)


def _roles(op: Op, windows: Sequence[WindowDim], image: Strides, weights: Strides) -> _Roles | None:
    sizes, result = domain(op), steps_of_result(op)
    positions, taps = {p.position for p in windows}, {p.tap for p in windows}
    wide = [d for d in dims(op, "par") if sizes[d] > 1 and d not in positions]
    groups = [d for d in wide if image[d] and weights[d]]
    filters = [d for d in wide if weights[d] and not image[d]]
    images = [d for d in wide if image[d] and not weights[d]]
    channels = merged([d for d in dims(op, "red") if d not in taps], sizes, (image, weights))
    batch = merged(images, sizes, (result, image))
    total = merged([*groups, *filters], sizes, (result,))
    if len(groups) + len(filters) + len(images) != len(wide) or any(
        len(m) > 1 for m in (channels, batch, total)
    ):
        return None
    if any(0 in c.steps for c in channels) or any(weights[p] for p in positions):
        return None
    ordered, summed = (total[0].dims if total else ()), (channels[0].dims if channels else ())
    # Channels and filters of one group follow each other, groups outermost.
    beside = common_step((*ordered[: len(groups)], *summed), sizes, image)
    if set(ordered[: len(groups)]) != set(groups) or (groups and beside is None):
        return None
    images = list(batch[0].dims if batch else ())
    return _Roles(tuple(images), ordered, summed, prod(sizes[d] for d in groups), tuple(windows))


def _convolution(
    op: Op, roles: _Roles, axes: Sequence[ImageAxis], image: Strides, weights: Strides, dtype: str
) -> ConvolutionMatch | None:
    sizes = domain(op)
    n, k, per_group = (prod(sizes[d] for d in g) for g in (roles.images, roles.filters, roles.channels))
    c_step, n_step = _last(roles.channels, image), _last(roles.images, image)
    positions = ("",) * (2 - len(roles.positions)) + roles.positions
    apart = [a.stride for a in axes if a.size > 1]
    order = CHANNELS_LAST if c_step == 1 and apart and min(apart) > 1 else CHANNELS_FIRST
    a_dims = (n, per_group * roles.group_count, *(a.size for a in axes))
    a_steps = (n_step, c_step, *(a.stride for a in axes))
    a = Array4(a_dims, packed(a_dims, a_steps, order), _start(op, roles.windows) + sum(x.start for x in axes))
    b_dims = (k, per_group, *(x.taps for x in axes))
    k_step = common_step(roles.filters, sizes, weights)
    b_steps = (k_step or 0, _last(roles.channels, weights), *(weights[x.tap] for x in axes))
    b = Array4(b_dims, packed(b_dims, (0, 0, 0, 0), order), weights.start)
    fits = k_step is not None and packed(b_dims, b_steps, order) == b.strides
    d = _results(roles.images, roles.filters, positions, sizes, steps_of_result(op), order)
    problem_dtypes = ((a, dtype), (b, dtype), (d, "float32"))
    if d is None or not all(x is not None and _aligned(x.start, t) for x, t in problem_dtypes):
        return None
    problem = ConvolutionProblem(
        a, b, d, dtype, "float32",
        before=tuple(x.before for x in axes), after=tuple(x.after for x in axes),
        strides=tuple(x.step for x in axes), dilations=tuple(x.dilation for x in axes),
        tf32=op.get("factors") == "tf32",
    )  # fmt: skip
    taps = tuple(x.tap for x in axes if x.tap)
    inner = (*roles.channels, *taps) if order == CHANNELS_FIRST else (*taps, *roles.channels)
    filter_order = (*roles.filters, *inner)
    return ConvolutionMatch(problem, roles.images, roles.filters, positions, sizes, order, filter_order, fits)


def _last(names: Sequence[str], steps: Strides) -> int:
    return steps[names[-1]] if names else 0


def _start(op: Op, windows: Sequence[WindowDim]) -> int:
    """Elements before what is read of the image, but for what windows leave out."""
    t, ranges, dims_of_windows = op.operands[0].tensor, ranges_of(op), {p.dim for p in windows}
    read = enumerate(zip(reads(op)[0], t.strides, strict=True))
    return t.start + sum(int(interval(e, ranges)[0]) * s for i, (e, s) in read if i not in dims_of_windows)


def _results(
    images: Sequence[str], filters: Sequence[str], positions: Sequence[str], sizes: Mapping[str, int],
    steps: Strides, order: Sequence[int],
) -> Array4 | None:  # fmt: skip
    """An operand of the results' extents, where one step leads along each of their four dimensions."""
    n, k = common_step(images, sizes, steps), common_step(filters, sizes, steps)
    strides = (n, k, *(steps[p] for p in positions))
    extents = (*(prod(sizes[d] for d in g) for g in (images, filters)), *(sizes.get(p, 1) for p in positions))
    if any(s is None or (s == 0 and e > 1) for s, e in zip(strides, extents, strict=True)):
        return None
    return Array4(extents, packed(extents, [s or 0 for s in strides], order), steps.start)


def packed(extents: Sequence[int], steps: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """The steps, where there are none (0, or an extent of 1) those of an array packed in this order."""
    out, inner = [0] * len(extents), 1
    for i in reversed(order):
        out[i] = steps[i] if steps[i] and extents[i] > 1 else inner
        inner = max(inner, out[i] * extents[i])
    return tuple(out)


def _aligned(start: int, dtype: str) -> bool:
    return start * (4 if dtype == "float32" else 2) % POINTER_BYTES == 0


def _window_dims(op: Op) -> list[WindowDim] | None:
    """The dimensions of the first operand that windows move along with steps, taps or padding, at most two.

    Where there are none, the innermost ones of those read index by index: one, and two of three. None where a
    read is not affine, or leaves the image along a dimension that no window moves along.
    """
    ranges, sizes = ranges_of(op), domain(op)
    par, red = dims(op, "par"), dims(op, "red")
    columns = {n for e in reads(op)[1] for n in symbols(e)}
    moving: list[WindowDim] = []
    plain: list[WindowDim] = []
    for i, (e, extent) in enumerate(zip(reads(op)[0], op.operands[0].tensor.shape, strict=True)):
        form = coefficients(e, sizes, ranges)
        if form is None or not isinstance(form[1], int):
            return None
        names = {d: c for d, c in form[0].items() if sizes[d] > 1}
        walking = [d for d in names if d in par and d not in columns]
        taps = [d for d in names if d in red]
        low, high = interval(e, ranges)
        if len(walking) == 1 and len(taps) <= 1 and len(names) == 1 + len(taps):
            position = _window_dim(i, walking[0], taps[0] if taps else "", names, -form[1])
            simple = not taps and position.step == 1 and not form[1] and high < extent
            (plain if simple else moving).append(position)
        elif low < 0 or high >= extent:
            return None
    plain.sort(key=lambda p: -op.operands[0].tensor.strides[p.dim])
    windows = moving or (plain[-1:] if len(plain) < 3 else plain[-2:])
    return windows if len(windows) <= 2 and all(p.step > 0 and p.dilation > 0 for p in windows) else None


def _window_dim(dim: int, position: str, tap: str, names: dict[str, int], before: int) -> WindowDim:
    return WindowDim(dim, position, tap, names[position], names.get(tap, 1), before)


def _image_axes(op: Op, windows: Sequence[WindowDim]) -> list[ImageAxis] | None:
    """Height and width; the image is cut to what is read of it. None where padding is no zeros."""
    axes = [_image_axis(op, p) for p in windows]
    present = [a for a in axes if a is not None]
    return [ImageAxis()] * (2 - len(windows)) + present if len(present) == len(axes) else None


def _image_axis(op: Op, p: WindowDim) -> ImageAxis | None:
    sizes, t = domain(op), op.operands[0].tensor
    taps = sizes[p.tap] if p.tap else 1
    window = (taps - 1) * p.dilation + 1
    reach = (sizes[p.position] - 1) * p.step + window
    skipped, before = max(0, -p.before), max(0, p.before)
    size = t.shape[p.dim] - skipped
    after = reach - before - size
    if after < before and (size + 2 * before - window) // p.step + 1 == sizes[p.position]:
        after = before  # more engines take equal paddings; no position reaches what is added
    if after < 0:
        size, after = size + after, 0
    padded = before > 0 or reach - before > size
    if size < 1 or (padded and fills(op)[0] != 0):
        return None
    stride = t.strides[p.dim]
    return ImageAxis(size, stride, skipped * stride, p.tap, taps, p.step, p.dilation, before, after)
