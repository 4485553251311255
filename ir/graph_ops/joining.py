"""Joining tensors along a dimension and cutting them apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from tilewright.ir.division import Labels, OperandRows, SlicedOp, along_other_axes
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.extents import Dims, attributes_stay
from tilewright.ir.facts import Elements, Gradient, movement
from tilewright.ir.graph_ops.operands import alike, axis_of, require, tensors
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type


def _infer_concatenate(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    parts = alike(types)
    require(bool(parts), "expected at least one operand")
    first = parts[0]
    axis = axis_of(attrs["axis"], first.rank)
    for t in parts:
        same = t.rank == first.rank and all(
            a == b for d, (a, b) in enumerate(zip(t.shape, first.shape, strict=True)) if d != axis
        )
        require(same, f"expected shapes that differ in axis {axis} only, got {first} and {t}")
    extent = sum(t.shape[axis] for t in parts)
    return [TensorType(first.dtype, (*first.shape[:axis], extent, *first.shape[axis + 1 :]))]


def _infer_stack(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    parts = alike(types)
    require(bool(parts), "expected at least one operand")
    first = parts[0]
    require(
        all(t == first for t in parts), f"expected operands of one type, got {', '.join(map(str, parts))}"
    )
    axis = axis_of(attrs["axis"], first.rank + 1)
    return [TensorType(first.dtype, (*first.shape[:axis], len(parts), *first.shape[axis:]))]


def _divided_concatenate(op: Op) -> Labels:
    axis = op.integer("axis") % op.result.tensor.rank
    dims = tuple(None if d == axis else d for d in range(op.result.tensor.rank))
    return Labels((dims,) * len(op.operands), (dims,), rows=_joined_rows)


def _joined_rows(op: Op, axis: int, start: int, end: int) -> SlicedOp:
    """Along the axis of joining: the rows of each part that lie within those wanted."""
    needs, before = [], 0
    for v in op.operands:
        extent = v.tensor.shape[axis]
        low, high = (min(max(at - before, 0), extent) for at in (start, end))
        needs.append(OperandRows(axis, low, high))
        before += extent
    return SlicedOp(tuple(needs), balanced=True)


def _divided_stack(op: Op) -> Labels:
    rank = op.result.tensor.rank
    axis = op.integer("axis") % rank
    dims = tuple(range(rank - 1))
    return Labels((dims,) * len(op.operands), ((*dims[:axis], None, *dims[axis:]),))


define(
    "graph.concatenate",
    ("parts*",),
    "The operands one after another along `axis`.",
    attrs={"axis": AttrDef("int", 0)},
    infer=_infer_concatenate,
    evaluate=lambda x, a: [np.concatenate(x, axis=a["axis"])],
    facts=movement(Elements.JOINS, _divided_concatenate, attributes_stay, gradient=Gradient.RULE),
)
define(
    "graph.stack",
    ("parts*",),
    "The operands side by side along a new dimension `axis`.",
    attrs={"axis": AttrDef("int", 0)},
    infer=_infer_stack,
    evaluate=lambda x, a: [np.stack(x, axis=a["axis"])],
    facts=movement(Elements.MOVES, _divided_stack, attributes_stay, gradient=Gradient.RULE),
)


def split_points(extent: int, indices_or_sections: int | Sequence[int]) -> tuple[int, ...]:
    """The places at which Relay's split cuts an extent: equal sections, or indices; raises InputError."""
    if not isinstance(indices_or_sections, int):
        return tuple(indices_or_sections)
    sections = indices_or_sections
    if sections < 1 or extent % sections:
        raise InputError(f"split: expected {extent} elements to divide into {sections} equal sections")
    return tuple(range(extent // sections, extent, extent // sections)) if extent else (0,) * (sections - 1)


def _infer_split(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types)
    axis = axis_of(attrs["axis"], x.rank)
    cuts = (0, *attrs["indices"], x.shape[axis])
    good = all(a <= b for a, b in pairwise(cuts))
    require(good, f"expected rising indices within {x.shape[axis]} elements, got {attrs['indices']}")
    extents = [b - a for a, b in pairwise(cuts)]
    return [TensorType(x.dtype, (*x.shape[:axis], n, *x.shape[axis + 1 :])) for n in extents]


def _new_cuts(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Cuts into equal parts stay cuts into as many equal parts."""
    (x,) = operands
    dim, cuts = x[attrs["axis"]], attrs["indices"]
    if not dim.changed:
        return {}
    sections = len(cuts) + 1
    extent = dim.old // sections
    equal = dim.old % sections == 0 and cuts == tuple(extent * i for i in range(1, sections))
    if not equal or (extent == 1 and sections > 1) or dim.new % sections:
        raise UnsupportedError(
            f"{dim.old} elements are cut before {cuts}; now there are {dim.new}, and the cuts may be others"
        )
    return {"indices": tuple(dim.new // sections * i for i in range(1, sections))}


define(
    "graph.split",
    ("x",),
    "x cut along `axis` before each of `indices`: one result more than indices.",
    attrs={"indices": AttrDef("ints"), "axis": AttrDef("int", 0)},
    results=None,
    infer=_infer_split,
    evaluate=lambda x, a: np.split(x[0], a["indices"], axis=a["axis"]),
    facts=movement(Elements.SPLITS, along_other_axes, _new_cuts, gradient=Gradient.RULE),
)
