"""Dimensions of values as row-major factors, each with its old and its new extent, while shapes change.

A batch that is merged into another dimension (batch * heads) stays a factor of its own, so that a later
reshape that cuts the dimension apart again gives it back exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Factor:
    """One row-major factor of a dimension: its extent at the old and at the new input shapes.

    outer: it comes from the first dimension of an input, hence is a batch.
    """

    old: int
    new: int
    outer: bool = False


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension as the product of its factors, outermost first."""

    factors: tuple[Factor, ...]

    @classmethod
    def of(cls, old: int, new: int, *, outer: bool = False) -> Dim:
        """A dimension of one factor."""
        return cls((Factor(old, new, outer),))

    @property
    def old(self) -> int:
        """The old extent."""
        return prod(f.old for f in self.factors)

    @property
    def new(self) -> int:
        """The new extent."""
        return prod(f.new for f in self.factors)

    @property
    def changed(self) -> bool:
        """True when the extents differ."""
        return self.old != self.new

    @property
    def pair(self) -> tuple[int, int]:
        """Old and new extent."""
        return self.old, self.new


Dims = tuple[Dim, ...]


def dims_of(old: Sequence[int], new: Sequence[int]) -> Dims:
    """Dimensions of one factor each, of two shapes of one rank."""
    return tuple(Dim.of(a, b) for a, b in zip(old, new, strict=True))


def regrouped(dims: Dims, shape: Sequence[int]) -> Dims:
    """The dimensions of a row-major reshape that gave `shape` at the old extents.

    Factors go to the dimensions they made up before. A factor of old extent 1 goes to the leftmost dimension
    of old extent 1 at its place. Raises UnsupportedError where the old extents leave more than one answer.
    """
    if tuple(d.old for d in dims) == tuple(shape):
        return dims
    if all(not d.changed for d in dims):
        return dims_of(shape, shape)
    if 0 in shape or any(0 in d.pair for d in dims):
        raise UnsupportedError("an extent of 0 does not say which dimension grows")
    queue = _merged(dims)
    out = []
    for d, extent in enumerate(shape):
        following = shape[d + 1] if d + 1 < len(shape) else None
        out.append(_take(queue, extent, following))
    return tuple(out)


def _merged(dims: Dims) -> list[Factor]:
    """All factors in a row; those that do not change and are larger than 1 become one where they meet."""
    out: list[Factor] = []
    for d in dims:
        inner = [f for f in d.factors if f.old != 1 or f.new != 1] or [Factor(1, 1)]
        for f in inner:
            if out and f.old == f.new > 1 and out[-1].old == out[-1].new > 1:
                f = Factor(out[-1].old * f.old, out.pop().new * f.new)
            out.append(f)
    return out


def _take(queue: list[Factor], extent: int, following: int | None) -> Dim:
    """Remove from the front of `queue` the factors of a dimension of old extent `extent`."""
    taken: list[Factor] = []
    left = extent
    while queue:
        head = queue[0]
        if left == 1 and not (head.old == 1 and _belongs(head, taken, queue, following)):
            break
        taken.append(_piece(queue, left))
        left //= taken[-1].old
    if left != 1:
        raise UnsupportedError("the elements do not divide among the dimensions")
    return Dim(tuple(taken) or (Factor(1, 1),))


def _belongs(head: Factor, taken: list[Factor], queue: list[Factor], following: int | None) -> bool:
    """Whether a factor of old extent 1 belongs to a dimension that is complete without it."""
    if not taken or following is None:
        return True
    if following == 1:
        return False
    if head.new == 1:
        return True
    after = next((f for f in queue[1:] if f.old != 1), None)
    if head.outer and after is not None and after.old == following:
        return True  # a batch belongs to other outer dimensions rather than to one of features
    raise UnsupportedError(
        f"a dimension that grows from 1 to {head.new} may belong to either neighbour of the result"
    )


def _piece(queue: list[Factor], left: int) -> Factor:
    """Remove the first factor, or as much of it as fits into `left` elements, which it has to fill."""
    head = queue.pop(0)
    if left % head.old == 0:
        return head
    if head.old % left:
        raise UnsupportedError(f"{head.old} elements straddle dimensions of the result")
    rest = head.old // left
    if head.old == head.new:
        queue.insert(0, Factor(rest, rest))
        return Factor(left, left)
    if not head.outer or left * head.new % head.old:
        raise UnsupportedError(
            f"a dimension that goes from {head.old} to {head.new} is cut into {left} and {rest}, "
            "either of which may be the one that changes"
        )
    queue.insert(0, Factor(rest, rest))
    return Factor(left, left * head.new // head.old, outer=True)


def inherited(operands: Sequence[Dims], old: Sequence[int], new: Sequence[int]) -> Dims:
    """Dimensions of a result: the factors of an operand's dimension of the same extents, where there is one.

    Looked for at the same place counted from the back, then from the front, then anywhere.
    """
    rank = len(old)
    out = []
    for d, pair in enumerate(zip(old, new, strict=True)):
        dim = Dim.of(*pair)
        if dim.changed:
            places = [dims[d - rank] for dims in operands if rank - d <= len(dims)]
            places += [dims[d] for dims in operands if d < len(dims)]
            places += [x for dims in operands for x in dims]
            dim = next((x for x in places if x.pair == pair), dim)
        out.append(dim)
    return tuple(out)
