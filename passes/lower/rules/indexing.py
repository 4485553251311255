"""Elements picked by integer indices: each op is one tensor.gather; one_hot is a map that compares."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.expr import maximum, minimum
from tilewright.passes.lower.lowering import (
    broadcast_read,
    dim_names,
    elementwise,
    looked_up,
    lowering,
    point_names,
    result_type,
)
from tilewright.passes.lower.scalars import Scalar, Scalars


def picked(
    b: Builder,
    data: Value,
    indices: Sequence[Value],
    result: TensorType,
    reads: Sequence[Sequence[Expr]],
    at: Sequence[Expr],
    mode: str,
) -> Value:
    """`looked_up` over the dimensions d0, d1, ... of the result."""
    par = dict(zip(point_names(result.rank), result.shape, strict=True))
    return looked_up(b, data, indices, par, reads, at, mode)


def unravelled(place: Expr, shape: Sequence[int]) -> list[Expr]:
    """Coordinates of the row-major place, which is in bounds."""
    out: list[Expr] = []
    for d in range(len(shape) - 1, -1, -1):
        extent = max(1, shape[d])
        out.append(place % extent if d else place)
        place = place // extent
    return out[::-1]


@lowering("graph.take")
def take(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Dimensions of the indices stand where the axis was; a flat index is taken apart."""
    data, indices = x
    t, axis = result_type(op), op.get("axis")
    mode = "wrap" if op["mode"] == "wrap" else "clip"
    names: tuple[Expr, ...] = tuple(map(Sym, point_names(t.rank)))
    if axis is None:
        size = data.tensor.size
        place = Sym("i0") % max(1, size) if mode == "wrap" else maximum(0, minimum(Sym("i0"), size - 1))
        return [picked(b, data, [indices], t, [names], unravelled(place, data.tensor.shape), "clip")]
    before = op.integer("axis") % data.tensor.rank
    batch = op.integer("batch_dims")
    stop = before + indices.tensor.rank - batch
    at = (*names[:before], Sym("i0"), *names[stop:])
    return [picked(b, data, [indices], t, [(*names[:batch], *names[before:stop])], at, mode)]


@lowering("graph.gather")
def gather(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Each point reads its own index."""
    t = result_type(op)
    names: list[Expr] = list(map(Sym, point_names(t.rank)))
    at = list(names)
    at[op.integer("axis") % t.rank] = Sym("i0")
    return [picked(b, x[0], [x[1]], t, [names], at, "wrap")]


@lowering("graph.gather_nd")
def gather_nd(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Every coordinate is an index operand: one row of the indices."""
    data, indices = x
    t, batch = result_type(op), op.integer("batch_dims")
    depth, points = indices.tensor.shape[0], indices.tensor.rank - 1
    names: tuple[Expr, ...] = tuple(map(Sym, point_names(t.rank)))
    reads = [(k, *names[:points]) for k in range(depth)]
    at = (*names[:batch], *(Sym(f"i{k}") for k in range(depth)), *names[points:])
    return [picked(b, data, [indices] * depth, t, reads, at, "wrap")]


@lowering("graph.adv_index")
def adv_index(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The indices broadcast to the leading dimensions."""
    data, *indices = x
    t = result_type(op)
    points = t.rank - data.tensor.rank + len(indices)
    names = point_names(t.rank)
    reads = [broadcast_read(v.tensor.shape, names[:points], t.shape[:points]) for v in indices]
    at = (*(Sym(f"i{k}") for k in range(len(indices))), *map(Sym, names[points:]))
    return [picked(b, data, indices, t, reads, at, "wrap")]


@lowering("graph.one_hot")
def one_hot(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Compares every index with the place along the new axis."""
    t = result_type(op)
    names = dim_names(t.rank)
    axis = op.integer("axis") % t.rank
    index_dtype = "i64" if x[0].tensor.dtype in ("i64", "u64", "u32") else "i32"

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        here = i.cast(p[0], index_dtype).equals(i.index(Sym(names[axis]), index_dtype))
        return here.select(i.cast(p[1], t.dtype), i.cast(p[2], t.dtype))

    reads = [tuple(Sym(n) for d, n in enumerate(names) if d != axis), (), ()]
    return [elementwise(b, x, t, body, reads)]
