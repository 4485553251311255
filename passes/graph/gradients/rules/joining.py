"""Gradients of joining and cutting, which are each other's."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.concatenate")
def concatenate(b: Backward) -> Sequence[Tensor | None]:
    """g cut into the parts that were joined."""
    if len(b.x) == 1:
        return [b.g]
    axis = b.op.integer("axis") % b.g.rank
    *cuts, _ = accumulate(part.shape[axis] for part in b.x)
    return b.w.ops_of("split", (b.g,), indices=tuple(cuts), axis=axis)


@gradient("graph.stack")
def stack(b: Backward) -> Sequence[Tensor | None]:
    """The slices of g along the new dimension."""
    axis = b.op.integer("axis") % b.g.rank
    slices = b.w.ops_of("split", (b.g,), indices=tuple(range(1, len(b.x))), axis=axis)
    return [part.reshape(*x.shape) for part, x in zip(slices, b.x, strict=True)]


@gradient("graph.split")
def split(b: Backward) -> Sequence[Tensor | None]:
    """The cotangents of the parts joined; zeros around the only one that came back."""
    (x,) = b.x
    axis = b.op.integer("axis") % x.rank
    present = [i for i, g in enumerate(b.cotangents) if g is not None]
    if len(b.y) > 1 and len(present) == 1:
        ends = list(accumulate((part.shape[axis] for part in b.y), initial=0))
        (i,) = present
        return [_padded(b.cotangent(i), axis, ends[i], x.shape[axis] - ends[i + 1])]
    parts = [b.cotangent(i) for i in range(len(b.y))]
    return [b.w.op("concatenate", *parts, axis=axis) if len(parts) > 1 else parts[0]]


def _padded(g: Tensor, axis: int, before: int, after: int) -> Tensor:
    widths = [tuple(n if d == axis else 0 for d in range(g.rank)) for n in (before, after)]
    return g.writer.op("pad", g, pad_before=widths[0], pad_after=widths[1])
