"""Pooling over whole images and to a given number of cells, of one, two or three spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from tilewright.ir.division import (
    OperandRows,
    PartialOp,
    PartRule,
    SlicedOp,
    by_rules,
    of_image,
    part_of_mean,
    replaced,
)
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.convolution import layout_attr
from tilewright.ir.graph_ops.layouts import SPATIAL, arranged, check_layout, data_layouts, permuted
from tilewright.ir.graph_ops.operands import dtype_of, entries, quotient, require, require_rank, tensors, wide
from tilewright.ir.graph_ops.pooling import with_image
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type


def _image(spatial: int, largest: bool, types: Sequence[Type], attrs: Attrs) -> TensorType:
    """The operand, known to be numbers over images with elements."""
    (x,) = tensors(types)
    check_layout(attrs["layout"], data_layouts(spatial), "layout")
    require_rank(x, spatial + 2)
    require(largest or x.dtype != "bool", f"expected numbers, got {x}")
    good = 0 not in arranged(x.shape, attrs["layout"], SPATIAL[spatial])
    require(good, f"expected an image with elements, got {x}")
    return x


def _infer_global(spatial: int, largest: bool, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    return [with_image(_image(spatial, largest, types, attrs), attrs["layout"], (1,) * spatial)]


def _infer_adaptive(spatial: int, largest: bool, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x = _image(spatial, largest, types, attrs)
    cells = entries(attrs["output_size"], spatial, "output_size", 1)
    return [with_image(x, attrs["layout"], cells)]


def image_axes(layout: str, spatial: int) -> tuple[int, ...]:
    """Positions of the spatial dimensions in a layout."""
    return tuple(layout.index(d) for d in SPATIAL[spatial])


def _folded(x: np.ndarray, axes: tuple[int, ...], largest: bool, keepdims: bool) -> np.ndarray:
    """The maximum, or the mean in the dtype of x, over some axes."""
    if largest:
        return np.asarray(x.max(axis=axes, keepdims=keepdims))
    terms = wide(x, dtype_of(x))
    total = terms.sum(axis=axes, dtype=terms.dtype, keepdims=keepdims)
    count = np.asarray(prod(x.shape[d] for d in axes))
    return quotient(total, count).astype(x.dtype, copy=False)


def _evaluate_global(
    spatial: int, largest: bool, inputs: Sequence[np.ndarray], attrs: Attrs
) -> Sequence[np.ndarray]:
    return [_folded(inputs[0], image_axes(attrs["layout"], spatial), largest, True)]


def cell(index: int, size: int, cells: int) -> tuple[int, int]:
    """First and past-the-last element of one of `cells` overlapping parts that cover `size` elements."""
    return index * size // cells, -(-(index + 1) * size // cells)


def _evaluate_adaptive(
    spatial: int, largest: bool, inputs: Sequence[np.ndarray], attrs: Attrs
) -> Sequence[np.ndarray]:
    order = f"NC{SPATIAL[spatial]}"
    x, counts = permuted(inputs[0], attrs["layout"], order), attrs["output_size"]
    out = np.empty((*x.shape[:2], *counts), dtype=x.dtype)
    for at in np.ndindex(*counts):
        bounds = [cell(i, size, n) for i, size, n in zip(at, x.shape[2:], counts, strict=True)]
        part = x[:, :, *(slice(a, b) for a, b in bounds)]
        out[:, :, *at] = _folded(part, tuple(range(2, x.ndim)), largest, False)
    return [permuted(out, order, attrs["layout"])]


def _cell_rows(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Parts of an image that divides evenly."""
    layout = str(op["layout"])
    size, cells = op.operands[0].tensor.shape[axis], op.result.tensor.shape[axis]
    if size % cells:
        return None
    d = SPATIAL[len(layout) - 2].index(layout[axis])
    need = OperandRows(axis, cell(start, size, cells)[0], cell(end - 1, size, cells)[1])
    return SlicedOp((need,), {"output_size": replaced(op.integers("output_size"), d, end - start)})


def _parts(kind: str) -> PartRule:
    """Parts of an image that becomes one row: their largest maximum, or the weighted mean of their means."""

    def parts(op: Op, operand: int, axis: int, start: int, end: int) -> PartialOp | None:
        if op.result.tensor.shape[axis] != 1:
            return None
        if kind == "max":
            return PartialOp((OperandRows(axis, start, end),), reduction="max")
        return part_of_mean(op, operand, axis, start, end)

    return parts


for _spatial in SPATIAL:
    for _kind, _what in (("avg", "mean"), ("max", "largest element")):
        _facts = Facts(
            elements=Elements.SLIDES,
            flops=flops_per_element,
            precision=Precision.FOLLOWS,
            division=by_rules(parts=_parts(_kind), labels=of_image("NC")),
            extents=attributes_stay,
            report=ReportClass.POOLING,
            gradient=Gradient.RULE,
            exact=_kind == "max",
        )
        define(
            f"graph.global_{_kind}_pool{_spatial}d",
            ("x",),
            f"The {_what} of every channel's image; means of integers round towards zero.",
            attrs={"layout": layout_attr(_spatial)},
            infer=partial(_infer_global, _spatial, _kind == "max"),
            evaluate=partial(_evaluate_global, _spatial, _kind == "max"),
            facts=_facts,
        )
        define(
            f"graph.adaptive_{_kind}_pool{_spatial}d",
            ("x",),
            f"The {_what} of each of `output_size` parts that cover the image; means of integers round "
            "towards zero.",
            attrs={
                "output_size": AttrDef("ints", doc="spatial extents of the result"),
                "layout": layout_attr(_spatial),
            },
            infer=partial(_infer_adaptive, _spatial, _kind == "max"),
            evaluate=partial(_evaluate_adaptive, _spatial, _kind == "max"),
            facts=replace(_facts, division=by_rules(_cell_rows, _parts(_kind), of_image("NC"))),
        )
