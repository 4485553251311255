"""Index maps as steps in memory: what a library must know of the operands of a kernel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir import Op, TensorType
from tilewright.ir.expr import Expr
from tilewright.ir.simplify import coefficients, interval
from tilewright.ir.tensor.ops import dims, domain, fills, ranges_of, reads
from tilewright.passes.analysis.terms import Read


@dataclass(frozen=True)
class Strides:
    """Elements from one index of each dimension to the next, and where the index 0 of all of them is."""

    by_dim: Mapping[str, int]
    start: int = 0

    def __getitem__(self, dim: str) -> int:
        return self.by_dim.get(dim, 0)


@dataclass(frozen=True)
class Merged:
    """Dimensions that are one: `extent` indices, and per operand the elements from one to the next."""

    dims: tuple[str, ...]
    extent: int
    steps: tuple[int, ...]


def steps_of_read(op: Op, operand: int) -> Strides | None:
    """Strides of an operand of a structured op; None where a read is not affine or may lie outside."""
    return steps_at(op, op.operands[operand].tensor, reads(op)[operand], fills(op)[operand] is not None)


def steps_at(op: Op, t: TensorType, at: Sequence[Expr], checked: bool) -> Strides | None:
    """Strides of the element of `t` at these indices; None where `checked` reads may lie outside of it."""
    ranges = ranges_of(op)
    offset: Expr = 0
    for e, extent, step in zip(at, t.shape, t.strides, strict=True):
        low, high = interval(e, ranges)
        if checked and (low < 0 or high >= extent):
            return None
        offset += e * step
    form = coefficients(offset, domain(op), ranges)
    if form is None or not isinstance(form[1], int):
        return None
    return Strides(form[0], form[1] + t.start)


def steps_of_element(read: Read, ranges: Mapping[str, tuple[int, int]]) -> Strides | None:
    """Strides of an element whose index is over these dimensions; None where it is not affine."""
    t = read.value.tensor
    offset: Expr = 0
    for e, step in zip(read.at, t.strides, strict=True):
        offset = offset + e * step
    form = coefficients(offset, ranges, ranges)
    if form is None or not isinstance(form[1], int):
        return None
    return Strides(form[0], form[1] + t.start)


def steps_of_result(op: Op) -> Strides:
    """Strides of the result of a structured op over its parallel dimensions."""
    t = op.result.tensor
    return Strides(dict(zip(dims(op, "par"), t.strides, strict=True)), t.start)


def merged(names: Iterable[str], sizes: Mapping[str, int], operands: Sequence[Strides]) -> list[Merged]:
    """The dimensions with those that follow each other in every operand made one, longest steps first.

    Dimensions of one index are left out: their steps do not matter.
    """
    order = sorted((d for d in names if sizes[d] > 1), key=lambda d: [-s[d] for s in operands])
    out: list[Merged] = []
    for d in order:
        inner = Merged((d,), sizes[d], tuple(s[d] for s in operands))
        if out and all(o == i * inner.extent for o, i in zip(out[-1].steps, inner.steps, strict=True)):
            outer = out.pop()
            inner = Merged((*outer.dims, d), outer.extent * inner.extent, inner.steps)
        out.append(inner)
    return out


def common_step(group: Sequence[str], sizes: Mapping[str, int], steps: Strides) -> int | None:
    """The step of an operand along dimensions that are one in another, in the order of `merged`.

    0 where it does not depend on them; None where no single step leads along them.
    """
    inner = [prod(sizes[d] for d in group[i + 1 :]) for i in range(len(group))]
    last = steps[group[-1]] if group else 0
    return last if all(steps[d] == n * last for d, n in zip(group, inner, strict=True)) else None
