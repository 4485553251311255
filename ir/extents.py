"""Dimensions of values as row-major factors, each with its old and its new extent, while shapes change.

What an op's attributes become at the new extents is a fact of the op (`Extents`).

A batch that is merged into another dimension (batch * heads) stays a factor of its own, so that a later
reshape that cuts the dimension apart again gives it back exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Attr


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
#: dimensions of the operands, attributes by name -> the attributes that are others at the new extents. Raises
#: UnsupportedError where the old extents do not say what a new attribute is, and where an operand that keeps
#: its extent would broadcast, or cut the result short, where it did not before.
Extents = Callable[[Sequence[Dims], Mapping[str, Any]], Mapping[str, Attr]]


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
    """Return whether a factor of old extent 1 belongs to a dimension that is complete without it."""
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


def attributes_stay(operands: Sequence[Dims], attrs: Mapping[str, Any]) -> Mapping[str, Attr]:
    """No attribute holds an extent of an operand, or those that do are sizes that the op gives itself."""
    return {}


def broadcasts_as_before(operands: Sequence[Dims], attrs: Mapping[str, Any]) -> Mapping[str, Attr]:
    """The operands keep broadcasting where they did; from 1 on all may grow, one with the others."""
    for d in range(1, max(map(len, operands)) + 1):
        here = [dims[-d] for dims in operands if d <= len(dims)]
        pairs = {dim.pair for dim in here if dim.old != 1}
        if len(pairs) > 1:
            a, b = sorted(pairs)[:2]
            raise UnsupportedError(
                f"expected operands that keep their common extent {a[0]} in dimension {-d}; one has "
                f"{a[1]} now, another {b[1]}"
            )
        grown = {dim.new for dim in here if dim.old == 1} - {1}
        if grown and pairs:
            ((old, new),) = pairs
            raise UnsupportedError(
                f"one element of dimension {-d} was repeated {old} times; now it is {grown.pop()} elements, "
                f"for {new}"
            )
    return {}


def same_places(count: int, axis: bool) -> Extents:
    """The first `count` operands keep the extents they have in common, but along the attribute `axis`."""

    def rule(operands: Sequence[Dims], attrs: Mapping[str, Any]) -> Mapping[str, Attr]:
        rank = len(operands[0])
        for d in range(rank):
            here = [dims[d] for dims in operands[:count]]
            alike = len({x.old for x in here}) == 1
            if not (axis and d == attrs["axis"] % rank) and alike and len({x.new for x in here}) > 1:
                extents = ", ".join(str(x.new) for x in here)
                raise UnsupportedError(
                    f"expected operands that keep their common extent {here[0].old} in dimension {d}, "
                    f"got {extents}"
                )
        return {}

    return rule
