"""Pass crop-sums: sums of products leave out what is outside of an array at every point."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from tilewright.ir import Attr, Expr, Func, Level, Op, Pairs, Sym, TensorType
from tilewright.ir.expr import substitute
from tilewright.ir.simplify import coefficients, interval, simplify, within
from tilewright.ir.tensor.ops import contraction, dims, fills, ranges_of, reads
from tilewright.passes import PassContext, register_pass

_CROPPED = frozenset({"tensor.contract", "tensor.window"})


@register_pass(Level.TENSOR)
def crop_sums(func: Func, ctx: PassContext) -> Func:
    """Narrow reduced dimensions to where no factor is outside of its array for all points of a result.

    rewrite:  %y = tensor.contract(%x, %w, red = (c: 64, r: 3), reads = [[n, c, r - 1], [k, c, r]],
                                   fill = [0.0, none])      with %x : f32[8, 64, 1]
        -->   %y = tensor.contract(%x, %w, red = (c: 64), reads = [[n, c, 0], [k, c, 1]])

    A factor that is zero there adds nothing. So of a filter of 3 x 3 on images of one point, as the last ones
    of a network of small images are, one tap is left, and a ninth of the products and of the filter. Other
    dimensions that are left with one index go, and so do fills where no reading is outside any more.
    """
    ops = tuple(_cropped(op) if op.name in _CROPPED else op for op in func.body.ops)
    return func.with_body(func.body.with_ops(ops))


def _cropped(op: Op) -> Op:
    """The op with narrowed dimensions; itself where every index is read inside somewhere."""
    if contraction(op) is None or 0.0 not in fills(op):
        return op
    red, ranges = dims(op, "red"), ranges_of(op)
    kept = {d: (0, n) for d, n in red.items()}
    for v, at, fill in zip(op.operands, reads(op), fills(op), strict=True):
        if fill != 0.0:
            continue
        for e, extent in zip(at, v.tensor.shape, strict=True):
            for d in red:
                first, end = kept[d]
                inside = _inside(e, d, red[d], extent, ranges)
                kept[d] = max(first, inside[0]), min(end, inside[1])
    if any(first >= end for first, end in kept.values()):
        return op  # the result is zero, which is for others to see
    if all(kept[d] == (0, n) for d, n in red.items()):
        return op
    return _narrowed(op, kept)


def _inside(
    e: Expr, dim: str, extent: int, bound: int, ranges: Mapping[str, tuple[int, int]]
) -> tuple[int, int]:
    """The first index of a dimension at which an expression can be from 0 to below a bound, and the end."""
    form = coefficients(e, [dim], ranges)
    if form is None or not (step := form[0].get(dim, 0)):
        return 0, extent
    low, high = interval(form[1], ranges)
    if low == -inf or high == inf:
        return 0, extent
    if step > 0:  # step * i + high >= 0 and step * i + low < bound
        first, last = -(high // step), (bound - 1 - low) // step
    else:
        first, last = -((bound - 1 - low) // -step), high // -step
    return max(0, int(first)), min(extent, int(last) + 1)


def _narrowed(op: Op, kept: Mapping[str, tuple[int, int]]) -> Op:
    left = {d: end - first for d, (first, end) in kept.items()}
    gone = [d for d, n in left.items() if n == 1]
    if len(gone) == len(left):  # a sum has one dimension at least
        gone.pop()
    from_first: dict[str, Expr] = {
        d: first if d in gone else Sym(d) + first for d, (first, _) in kept.items() if d in gone or first
    }
    red = Pairs(tuple((d, n) for d, n in left.items() if d not in gone))
    new = op.with_attrs(red=red)
    ranges = ranges_of(new)
    moved = tuple(tuple(simplify(substitute(e, from_first), ranges) for e in at) for at in reads(op))
    attrs: dict[str, Attr] = {"reads": moved}
    shapes = [v.tensor for v in op.operands]
    inside = [_is_inside(at, t, ranges) for at, t in zip(moved, shapes, strict=True)]
    filled = tuple(None if known else fill for fill, known in zip(fills(op), inside, strict=True))
    attrs["fill"] = filled if any(fill is not None for fill in filled) else ()
    return new.with_attrs(**attrs)


def _is_inside(at: Sequence[Expr], t: TensorType, ranges: Mapping[str, tuple[int, int]]) -> bool:
    return all(within(e, n, ranges) for e, n in zip(at, t.shape, strict=True))
