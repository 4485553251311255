"""Pooling to a given number of cells: windows of the largest cell, taps beyond a cell left out."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.adaptive_pooling import cell
from tilewright.ir.graph_ops.operands import lowest, zero
from tilewright.passes.lower.lowering import accumulated, dim_names, lowering, reduced, result_type
from tilewright.passes.lower.rules.pooling import over_whole_images
from tilewright.passes.lower.rules.windowed import OUTPUTS, TAPS, divided, letters_of, tap_dims
from tilewright.passes.lower.scalars import Scalar, Scalars

_NAMES = {"N": "n", "C": "c", **OUTPUTS}


@lowering(*(f"graph.adaptive_max_pool{n}d" for n in (1, 2, 3)))
def adaptive_max_pool(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The largest element of every cell."""
    if _is_one_cell(op):
        return [over_whole_images(b, op, x)]
    t = result_type(op)
    return [_cells(b, op, x, t, "scalar.max", lowest(t.dtype))]


@lowering(*(f"graph.adaptive_avg_pool{n}d" for n in (1, 2, 3)))
def adaptive_avg_pool(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """The sum of every cell over its number of elements."""
    if _is_one_cell(op):
        return [over_whole_images(b, op, x)]
    t, attrs = result_type(op), op.attributes
    layout = attrs["layout"]
    sums = _cells(b, op, x, accumulated(t), "scalar.add", zero(t.dtype))
    shape = dict(zip(layout, x[0].tensor.shape, strict=True))
    where = dict(zip(layout, dim_names(t.rank), strict=True))
    counts: dict[str, Expr] = {}
    for d, cells in zip(letters_of(layout), attrs["output_size"], strict=True):
        first, end = _bounds(where[d], shape[d], cells)
        counts[d] = end - first
    return [divided(b, sums, op, counts)]


def _is_one_cell(op: Op) -> bool:
    return all(cells == 1 for cells in op.attributes["output_size"])


def _bounds(name: str, size: int, cells: int) -> tuple[Expr, Expr]:
    """First and past-the-last element of the cell that a dimension counts."""
    start = Sym(name) * size
    end = (start + (size + cells - 1)) // cells
    return start // cells, end


def _cells(
    b: Builder, op: Op, x: Sequence[Value], t: TensorType, fold: str, neutral: float | int | bool
) -> Value:
    attrs = op.attributes
    layout = attrs["layout"]
    shape = dict(zip(layout, x[0].tensor.shape, strict=True))
    at: dict[str, Expr] = {d: Sym(n) for d, n in _NAMES.items()}
    taps: dict[str, int] = {}
    ends: dict[str, Expr] = {}
    for d, cells in zip(letters_of(layout), attrs["output_size"], strict=True):
        first, end = _bounds(_NAMES[d], shape[d], cells)
        extents = {stop - start for start, stop in (cell(i, shape[d], cells) for i in range(cells))}
        taps[d] = max(extents)
        at[d] = first + Sym(TAPS[d])
        if len(extents) > 1:
            ends[d] = end

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        value = i.cast(p[0], t.dtype)
        for d, end in ends.items():
            inside = i.index(at[d]) < i.index(end)
            value = inside.select(value, neutral)
        return i.value(fold, value, p[1])

    par = {_NAMES[d]: n for d, n in zip(layout, t.shape, strict=True)}
    reads = [tuple(at[d] for d in layout)]
    red = tap_dims(taps, {})
    return reduced(b, "tensor.window", x, t, par, red, reads, body, init=neutral, fill=(neutral,))
