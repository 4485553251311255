"""How a contraction walks over an image: which dimensions it moves along, with steps, taps and padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir import Op
from tilewright.ir.expr import symbols
from tilewright.ir.simplify import coefficients, interval
from tilewright.ir.tensor.ops import dims, domain, fills, ranges_of, reads


@dataclass(frozen=True)
class Place:
    """How one dimension of the image is walked: position = step * place + dilation * tap - before."""

    dim: int
    place: str
    tap: str
    step: int
    dilation: int
    before: int


@dataclass(frozen=True)
class Axis:
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


def places_of(op: Op) -> list[Place] | None:
    """The dimensions of the first operand that are walked with steps, taps or padding, at most two.

    Where there are none, the innermost ones of those walked one by one: one, and two of three. None where a
    read is not affine, or leaves the image along a dimension that is not walked.
    """
    ranges, sizes = ranges_of(op), domain(op)
    par, red = dims(op, "par"), dims(op, "red")
    columns = {n for e in reads(op)[1] for n in symbols(e)}
    moving: list[Place] = []
    plain: list[Place] = []
    for i, (e, extent) in enumerate(zip(reads(op)[0], op.operands[0].tensor.shape, strict=True)):
        form = coefficients(e, sizes, ranges)
        if form is None or not isinstance(form[1], int):
            return None
        names = {d: c for d, c in form[0].items() if sizes[d] > 1}
        walking = [d for d in names if d in par and d not in columns]
        taps = [d for d in names if d in red]
        low, high = interval(e, ranges)
        if len(walking) == 1 and len(taps) <= 1 and len(names) == 1 + len(taps):
            place = _place(i, walking[0], taps[0] if taps else "", names, -form[1])
            simple = not taps and place.step == 1 and not form[1] and high < extent
            (plain if simple else moving).append(place)
        elif low < 0 or high >= extent:
            return None
    plain.sort(key=lambda p: -op.operands[0].tensor.strides[p.dim])
    found = moving or (plain[-1:] if len(plain) < 3 else plain[-2:])
    return found if len(found) <= 2 and all(p.step > 0 and p.dilation > 0 for p in found) else None


def _place(dim: int, place: str, tap: str, names: dict[str, int], before: int) -> Place:
    return Place(dim, place, tap, names[place], names.get(tap, 1), before)


def axes_of(op: Op, walked: Sequence[Place]) -> list[Axis] | None:
    """Height and width; the image is cut to what is read of it. None where padding is no zeros."""
    axes = [_axis(op, p) for p in walked]
    found = [a for a in axes if a is not None]
    return [Axis()] * (2 - len(walked)) + found if len(found) == len(axes) else None


def _axis(op: Op, p: Place) -> Axis | None:
    sizes, t = domain(op), op.operands[0].tensor
    taps = sizes[p.tap] if p.tap else 1
    window = (taps - 1) * p.dilation + 1
    reach = (sizes[p.place] - 1) * p.step + window
    skipped, before = max(0, -p.before), max(0, p.before)
    size = t.shape[p.dim] - skipped
    after = reach - before - size
    if after < before and (size + 2 * before - window) // p.step + 1 == sizes[p.place]:
        after = before  # more engines take equal paddings; no place reaches what is added
    if after < 0:
        size, after = size + after, 0
    padded = before > 0 or reach - before > size
    if size < 1 or (padded and fills(op)[0] != 0):
        return None
    stride = t.strides[p.dim]
    return Axis(size, stride, skipped * stride, p.tap, taps, p.step, p.dilation, before, after)
