"""Gradients of elements that indices pick: each element gathers the sum of what comes back to its picks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.graph_code import Tensor
from tilewright.ir.types import FLOATS
from tilewright.passes.graph.gradients.places import clipped, counted, signed_dtype, wrapped, wrapped_rows
from tilewright.passes.graph.gradients.registry import Backward, gradient


@gradient("graph.take")
def take(b: Backward) -> Sequence[Tensor | None]:
    """Slices of g added to zeros at the indices, which wrap around or are clipped as in the op."""
    x, indices = b.x
    bounded = wrapped if b.attr("mode") == "wrap" else clipped
    axis, batch = b.op.get("axis"), b.op.integer("batch_dims")
    if axis is None:
        rows = bounded(indices, x.size).reshape(1, indices.size)
        flat = b.w.full(0, x.type).reshape(x.size)
        total = b.w.op("scatter_nd", flat, rows, b.g.reshape(indices.size), mode="add")
        return [total.reshape(*x.shape), None]
    axis = b.op.integer("axis") % x.rank
    index = bounded(indices, x.shape[axis])
    zeros = b.w.full(0, x.type)
    if axis == 0:
        return [b.w.op("scatter_nd", zeros, index.reshape(1, *index.shape), b.g, mode="add"), None]
    picks = prod(index.shape[batch:])
    updates = b.g.reshape(*x.shape[:axis], picks, *x.shape[axis + 1 :])
    spread = (*index.shape[:batch], *(1,) * (axis - batch), picks, *(1,) * (x.rank - axis - 1))
    places = index.reshape(*spread).broadcast_to(*updates.shape)
    return [b.w.op("scatter_elements", zeros, places, updates, axis=axis, reduction="add"), None]


@gradient("graph.gather")
def gather(b: Backward) -> Sequence[Tensor | None]:
    """g added to zeros at the indices along the axis."""
    x, indices = b.x
    axis = b.op.integer("axis") % x.rank
    places = wrapped(indices, x.shape[axis])
    zeros = b.w.full(0, x.type)
    return [b.w.op("scatter_elements", zeros, places, b.g, axis=axis, reduction="add"), None]


@gradient("graph.gather_nd")
def gather_nd(b: Backward) -> Sequence[Tensor | None]:
    """Slices of g added to zeros at the coordinates; those of the batch are counted."""
    x, indices = b.x
    batch = b.op.integer("batch_dims")
    depth, points = indices.shape[0], indices.shape[1:]
    if depth == 0:
        axes = tuple(range(batch, len(points)))
        return [b.g.sum(axes) if axes else b.g, None]
    rows = wrapped_rows(indices, x.shape[batch : batch + depth])
    if batch:
        dtype = signed_dtype(indices)
        lead = [counted(b.w, points[d], 1 + d, (1, *points), dtype) for d in range(batch)]
        rows = b.w.op("concatenate", *lead, rows, axis=0)
    return [b.w.op("scatter_nd", b.w.full(0, x.type), rows, b.g, mode="add"), None]


@gradient("graph.adv_index")
def adv_index(b: Backward) -> Sequence[Tensor | None]:
    """Slices of g added to zeros at the coordinates, which are broadcast to one shape."""
    x, *indices = b.x
    points = b.g.shape[: b.g.rank - x.rank + len(indices)]
    coordinates = [wrapped(i, n) for i, n in zip(indices, x.shape, strict=False)]
    dtype = "i64" if any(c.dtype == "i64" for c in coordinates) else "i32"
    rows = b.w.op("stack", *(c.cast(dtype).broadcast_to(*points) for c in coordinates), axis=0)
    return [
        b.w.op("scatter_nd", b.w.full(0, x.type), rows, b.g, mode="add"),
        *(None for _ in indices),
    ]


@gradient("graph.one_hot")
def one_hot(b: Backward) -> Sequence[Tensor | None]:
    """`on` gathers the sum of g at the indices, `off` that of the rest."""
    indices, on, off = b.x
    yes, no = b.w.number(1, "i32"), b.w.number(0, "i32")
    attrs = {**b.op.attributes, "dtype": "bool"}
    here = b.w.op("one_hot", indices, yes, no, **attrs)
    return [
        None,
        here.where(b.g, 0).sum().cast(on.dtype) if b.needed[1] and on.dtype in FLOATS else None,
        here.where(0, b.g).sum().cast(off.dtype) if b.needed[2] and off.dtype in FLOATS else None,
    ]
