"""Elements picked by integer indices: take, gather, gather_nd, adv_index, and one_hot.

Indices out of bounds wrap around, so that negative ones count from the end; take can also clip them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from tilewright.ir.division import Labels, broadcast_labels, undivided, unlabelled, where_untouched
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.extents import Dim, Dims, attributes_stay, same_places
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, movement, no_flops
from tilewright.ir.graph_ops.operands import axis_of, broadcast_shapes, require, require_integer, tensors
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

TAKE_MODES = ("clip", "wrap", "fast")


def _indexed(types: Sequence[Type]) -> tuple[TensorType, list[TensorType]]:
    """The data and its index operands, which hold integers."""
    x, *indices = tensors(types)
    for t in indices:
        require_integer(t)
    return x, indices


def _require_elements(extents: Sequence[int], result: TensorType, x: TensorType) -> None:
    require(result.size == 0 or 0 not in extents, f"expected elements to pick from, got {x}")


def bounded(index: np.ndarray, extent: int, mode: str) -> np.ndarray:
    """`index` (any integer dtype) as int64 within [0, extent): wrapped around, or clipped."""
    i = index.astype(np.int64)
    if extent == 0:
        return i
    return i % extent if mode == "wrap" else np.clip(i, 0, extent - 1)


def ramp(extent: int, dim: int, rank: int) -> np.ndarray:
    """0, 1, ... along dimension `dim` of an array of rank `rank`."""
    return np.arange(extent).reshape([-1 if d == dim else 1 for d in range(rank)])


def _infer_take(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, (indices,) = _indexed(types)
    batch, mode = attrs["batch_dims"], attrs["mode"]
    require(mode in TAKE_MODES, f"expected mode {', '.join(TAKE_MODES)}, got '{mode}'")
    if attrs["axis"] is None:
        require(batch == 0, f"expected an axis where batch_dims is {batch}")
        out = TensorType(x.dtype, indices.shape)
        _require_elements(x.shape, out, x)
        return [out]
    axis = axis_of(attrs["axis"], x.rank)
    fits = 0 <= batch <= min(axis, indices.rank)
    require(fits, f"expected batch_dims from 0 to {min(axis, indices.rank)}, got {batch}")
    same = x.shape[:batch] == indices.shape[:batch]
    require(same, f"expected {batch} leading dimensions alike, got {x} and {indices}")
    out = TensorType(x.dtype, (*x.shape[:axis], *indices.shape[batch:], *x.shape[axis + 1 :]))
    _require_elements(x.shape[axis : axis + 1], out, x)
    return [out]


def _evaluate_take(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, indices = inputs
    axis, batch = attrs["axis"], attrs["batch_dims"]
    if axis is None:
        return [x.reshape(-1)[bounded(indices, x.size, attrs["mode"])]]
    axis %= x.ndim
    at = bounded(indices, x.shape[axis], attrs["mode"])
    if batch == 0:
        return [np.take(x, at, axis=axis)]
    picked, rank = indices.ndim - batch, x.ndim + indices.ndim - batch - 1
    places = [ramp(n, d if d < axis else d + picked - 1, rank) for d, n in enumerate(x.shape)]
    middle = (1,) * (axis - batch)
    after = (1,) * (x.ndim - axis - 1)
    places[axis] = at.reshape(*at.shape[:batch], *middle, *at.shape[batch:], *after)
    return [x[tuple(places)]]


def _divided_take(op: Op) -> Labels:
    """Indices, and the dimensions of x that are not picked from."""
    x, indices = (v.tensor.rank for v in op.operands)
    picked = tuple(f"i{d}" for d in range(indices))
    if op["axis"] is None:
        return Labels((unlabelled(x), picked), (picked,))
    axis, batch = op.integer("axis") % x, op.integer("batch_dims")
    dims = tuple(None if d == axis else d for d in range(x))
    at = (*dims[:batch], *picked[batch:])
    return Labels((dims, at), ((*dims[:axis], *picked[batch:], *dims[axis + 1 :]),))


def _picks_as_before(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Indices grow with what they pick from, or pick from fewer elements than there were."""
    x, indices = operands
    if attrs["axis"] is None:
        fixed, whole = any(d.changed for d in x), prod(d.old for d in x)
    else:
        fixed, whole = x[attrs["axis"]].changed, x[attrs["axis"]].old
    picked = indices[attrs["batch_dims"] :]
    if fixed and not any(d.changed for d in picked) and prod(d.old for d in picked) >= whole:
        raise UnsupportedError(
            f"as many indices as there were elements ({whole}) pick from an extent that changes"
        )
    return {}


define(
    "graph.take",
    ("x", "indices"),
    "Slices of x along `axis` at the indices, whose dimensions replace the axis; elements of the "
    "flattened x without an axis. The first `batch_dims` dimensions of both go together.",
    attrs={
        "axis": AttrDef("int?", None),
        "mode": AttrDef("str", "clip", "indices out of bounds: wrap around; clip and fast are clipped"),
        "batch_dims": AttrDef("int", 0),
    },
    infer=_infer_take,
    evaluate=_evaluate_take,
    facts=movement(Elements.LOOKS_UP, _divided_take, _picks_as_before, gradient=Gradient.RULE),
)


def _infer_gather(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, (indices,) = _indexed(types)
    axis = axis_of(attrs["axis"], x.rank)
    fits = indices.rank == x.rank and all(d == axis or n <= x.shape[d] for d, n in enumerate(indices.shape))
    require(fits, f"expected indices no larger than {x} but along axis {axis}, got {indices}")
    out = TensorType(x.dtype, indices.shape)
    _require_elements(x.shape[axis : axis + 1], out, x)
    return [out]


def _evaluate_gather(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, indices = inputs
    axis = attrs["axis"] % x.ndim
    at = bounded(indices, x.shape[axis], "wrap")
    places = [at if d == axis else ramp(n, d, x.ndim) for d, n in enumerate(indices.shape)]
    return [x[tuple(places)]]


define(
    "graph.gather",
    ("x", "indices"),
    "result[.., i, ..] = x[.., indices[.., i, ..], ..] along `axis`; the result has the shape of "
    "indices, which wrap around.",
    attrs={"axis": AttrDef("int")},
    infer=_infer_gather,
    evaluate=_evaluate_gather,
    facts=movement(Elements.LOOKS_UP, where_untouched, same_places(2, axis=True), gradient=Gradient.RULE),
)


def _infer_gather_nd(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, (indices,) = _indexed(types)
    batch, rank = attrs["batch_dims"], attrs["index_rank"]
    require(indices.rank > 0, f"expected indices of rank 1 or more, got {indices}")
    depth, points = indices.shape[0], indices.shape[1:]
    require(rank is None or rank == depth, f"expected {rank} coordinates in dimension 0 of {indices}")
    fits = 0 <= batch <= len(points) and batch + depth <= x.rank
    require(fits, f"expected at most {x.rank} batch dimensions and coordinates, got {batch} and {depth}")
    same = x.shape[:batch] == points[:batch]
    require(same, f"expected {batch} batch dimensions alike, got {x} and {indices}")
    out = TensorType(x.dtype, (*points, *x.shape[batch + depth :]))
    _require_elements(x.shape[batch : batch + depth], out, x)
    return [out]


def _evaluate_gather_nd(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, indices = inputs
    batch, points = attrs["batch_dims"], indices.ndim - 1
    lead = [ramp(n, d, points) for d, n in enumerate(x.shape[:batch])]
    at = [bounded(i, x.shape[batch + k], "wrap") for k, i in enumerate(indices)]
    if not (lead or at):
        return [np.broadcast_to(x, (*indices.shape[1:], *x.shape))]
    if not at:
        lead = list(np.broadcast_arrays(*lead, np.empty(indices.shape[1:]))[:-1])
    return [x[(*lead, *at)]]


def _nd_picks_as_before(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Indices that keep their shape pick from extents that stay."""
    x, indices = operands
    batch = attrs["batch_dims"]
    _fixed_indices(x[batch : batch + indices[0].old], indices[1:])
    return {}


def _fixed_indices(picked_from: Sequence[Dim], indices: Sequence[Dim]) -> None:
    """Refuse indices that stay as many while there is another number of elements to pick from."""
    for d in picked_from:
        if d.changed and not any(i.changed for i in indices):
            raise UnsupportedError(
                f"indices that keep their shape pick from an extent that goes from {d.old} to {d.new}"
            )


define(
    "graph.gather_nd",
    ("x", "indices"),
    "result[b, y, ..] = x[b, indices[0, b, y], indices[1, b, y], .., ..] with `batch_dims` dimensions b: "
    "dimension 0 of indices lists coordinates, which wrap around.",
    attrs={
        "batch_dims": AttrDef("int", 0),
        "index_rank": AttrDef("int?", None, "extent of dimension 0 of indices"),
    },
    infer=_infer_gather_nd,
    evaluate=_evaluate_gather_nd,
    facts=movement(Elements.LOOKS_UP, undivided, _nd_picks_as_before, gradient=Gradient.RULE),
)


def _infer_adv_index(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, indices = _indexed(types)
    fits = 1 <= len(indices) <= x.rank
    require(fits, f"expected from 1 to {x.rank} index operands for {x}, got {len(indices)}")
    points = broadcast_shapes([t.shape for t in indices])
    out = TensorType(x.dtype, (*points, *x.shape[len(indices) :]))
    _require_elements(x.shape[: len(indices)], out, x)
    return [out]


def _evaluate_adv_index(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, *indices = inputs
    return [x[tuple(bounded(i, n, "wrap") for i, n in zip(indices, x.shape, strict=False))]]


def _divided_adv_index(op: Op) -> Labels:
    """Places that are looked up, and the dimensions of x behind those picked from."""
    x, *indices = (v.tensor for v in op.operands)
    trailing = tuple(f"x{d}" for d in range(len(indices), x.rank))
    points = op.result.tensor.shape[: op.result.tensor.rank - len(trailing)]
    dims = (broadcast_labels(t.shape, points, range(len(points))) for t in indices)
    return Labels(((*unlabelled(len(indices)), *trailing), *dims), ((*range(len(points)), *trailing),))


def _points_as_before(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Indices that keep their shape pick from extents that stay."""
    x, *indices = operands
    _fixed_indices(x[: len(indices)], [d for dims in indices for d in dims])
    return {}


define(
    "graph.adv_index",
    ("x", "indices*"),
    "x[i0, i1, ..] with index operands that broadcast to one shape, which replaces the dimensions "
    "indexed. Indices wrap around.",
    infer=_infer_adv_index,
    evaluate=_evaluate_adv_index,
    facts=movement(Elements.LOOKS_UP, _divided_adv_index, _points_as_before, gradient=Gradient.RULE),
)


def _infer_one_hot(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    indices, on, off = tensors(types)
    require_integer(indices)
    if on.rank or off.rank:
        raise InputError(f"expected scalars on and off, got {on} and {off}")
    depth = attrs["depth"]
    require(depth >= 0, f"expected a depth of at least 0, got {depth}")
    axis = axis_of(attrs["axis"], indices.rank + 1)
    return [TensorType(attrs["dtype"], (*indices.shape[:axis], depth, *indices.shape[axis:]))]


def _evaluate_one_hot(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    indices, on, off = inputs
    rank, dtype = indices.ndim + 1, numpy_dtype(attrs["dtype"])
    axis = attrs["axis"] % rank
    here = np.expand_dims(indices.astype(np.int64), axis) == ramp(attrs["depth"], axis, rank)
    return [np.where(here, on.astype(dtype), off.astype(dtype))]


def _divided_one_hot(op: Op) -> Labels:
    axis = op.integer("axis") % op.result.tensor.rank
    dims = tuple(range(op.operands[0].tensor.rank))
    return Labels((dims, (), ()), ((*dims[:axis], None, *dims[axis:]),))


define(
    "graph.one_hot",
    ("indices", "on", "off"),
    "A new dimension `axis` of extent `depth` that holds `on` at the index and `off` elsewhere; only "
    "`off` for an index out of bounds.",
    attrs={
        "depth": AttrDef("int"),
        "axis": AttrDef("int", -1),
        "dtype": AttrDef("dtype", "f32", "of the result"),
    },
    infer=_infer_one_hot,
    evaluate=_evaluate_one_hot,
    facts=Facts(
        elements=Elements.MOVES,
        flops=no_flops,
        precision=Precision.WIDE,
        division=_divided_one_hot,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.RULE,
        exact=True,
    ),
)
