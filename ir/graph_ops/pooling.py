"""Pooling over sliding windows, over the whole image, and to a given number of cells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.graph_ops.layouts import (
    DATA_LAYOUTS,
    Window,
    arranged,
    check_layout,
    padded,
    permuted,
    sliding,
    windows,
)
from tilewright.ir.graph_ops.operands import (
    dtype_of,
    entries,
    lowest,
    require,
    require_float,
    require_rank,
    tensors,
    wide,
)
from tilewright.ir.opdef import AttrDef, Attrs, OpDef, define, op_def
from tilewright.ir.types import TensorType, Type

_LAYOUT = AttrDef("str", "NCHW", "NCHW or NHWC, of x and of the result")
_POOL_ATTRS = {
    "pool_size": AttrDef("ints"),
    "strides": AttrDef("ints", (1, 1)),
    "padding": AttrDef("ints", (0, 0, 0, 0), "top, left, bottom, right"),
    "dilation": AttrDef("ints", (1, 1)),
    "layout": _LAYOUT,
    "ceil_mode": AttrDef("bool", False, "round the number of windows up"),
}


def pool_windows(x: TensorType, attrs: Attrs, name: str) -> tuple[Window, Window]:
    """Windows of both spatial dimensions; raises InputError where the attributes do not fit."""
    check_layout(attrs["layout"], DATA_LAYOUTS, name, "layout")
    require_rank(x, 4, name)
    sizes = arranged(x.shape, attrs["layout"], "HW")
    given = (attrs["pool_size"], attrs["strides"], attrs["padding"], attrs["dilation"])
    return windows(sizes, *given, name, attrs["ceil_mode"])


def _with_image(x: TensorType, layout: str, image: tuple[int, int]) -> TensorType:
    n, c = arranged(x.shape, layout, "NC")
    return TensorType(x.dtype, arranged((n, c, *image), "NCHW", layout))


def _infer_pool(name: str, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types, name)
    require("max" in name or x.dtype != "bool", name, f"expected numbers, got {x}")
    rows, columns = pool_windows(x, attrs, name)
    return [_with_image(x, attrs["layout"], (rows.count, columns.count))]


def _taps(
    x: np.ndarray, attrs: Attrs, fill: float | int | bool, name: str
) -> tuple[np.ndarray, Window, Window]:
    rows, columns = pool_windows(TensorType(dtype_of(x), x.shape), attrs, name)
    image = permuted(x, attrs["layout"], "NCHW")
    return sliding(padded(image, rows, columns, fill), rows, columns), rows, columns


def _evaluate_max_pool(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    taps, rows, columns = _taps(x, attrs, lowest(dtype_of(x)), "graph.max_pool2d")
    out = taps[:, :, 0, 0].copy()
    for r in range(rows.kernel):
        for s in range(columns.kernel):
            np.maximum(out, taps[:, :, r, s], out=out)
    return [permuted(out, "NCHW", attrs["layout"])]


def _evaluate_avg_pool(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    taps, rows, columns = _taps(wide(x, dtype_of(x)), attrs, 0, "graph.avg_pool2d")
    out = np.zeros(taps.shape[:2] + taps.shape[4:], dtype=taps.dtype)
    for r in range(rows.kernel):
        for s in range(columns.kernel):
            out += taps[:, :, r, s]
    padding = attrs["count_include_pad"]
    counts = np.outer(_counted(rows, padding), _counted(columns, padding)).astype(out.dtype)
    out = _quotient(out, np.maximum(counts, 1))
    return [permuted(out.astype(x.dtype, copy=False), "NCHW", attrs["layout"])]


def _quotient(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    division = op_def("scalar.truncdiv" if np.issubdtype(a.dtype, np.integer) else "scalar.div").evaluate
    assert division is not None
    return np.asarray(division([a, b], {})[0])


def _counted(w: Window, padding: bool) -> np.ndarray:
    """Per window, how many taps count: those that read elements, or padding that was asked for as well.

    What a window reaches beyond that, where the number of windows was rounded up, never counts.
    """
    at = np.arange(w.count)[:, None] * w.stride - w.before + np.arange(w.kernel) * w.dilation
    low, high = (-w.before, w.size + w.after) if padding else (0, w.size)
    return ((at >= low) & (at < high)).sum(axis=1)


define(
    OpDef(
        "graph.max_pool2d",
        ("x",),
        "The largest element of every window; padding never counts.",
        attrs=_POOL_ATTRS,
        infer=lambda t, a: _infer_pool("graph.max_pool2d", t, a),
        evaluate=_evaluate_max_pool,
    )
)
define(
    OpDef(
        "graph.avg_pool2d",
        ("x",),
        "The mean of every window over the elements inside x, with `count_include_pad` also over padding; "
        "integers round towards zero.",
        attrs={**_POOL_ATTRS, "count_include_pad": AttrDef("bool", False)},
        infer=lambda t, a: _infer_pool("graph.avg_pool2d", t, a),
        evaluate=_evaluate_avg_pool,
    )
)


def _infer_global(name: str, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types, name)
    check_layout(attrs["layout"], DATA_LAYOUTS, name, "layout")
    require_rank(x, 4, name)
    if "avg" in name:
        require_float(x, name)
    require(
        0 not in arranged(x.shape, attrs["layout"], "HW"), name, f"expected an image with elements, got {x}"
    )
    return [_with_image(x, attrs["layout"], (1, 1))]


def image_axes(layout: str) -> tuple[int, int]:
    """Positions of height and width in a layout."""
    return layout.index("H"), layout.index("W")


def _evaluate_global_avg(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    mean = wide(x, dtype_of(x)).mean(axis=image_axes(attrs["layout"]), keepdims=True)
    return [mean.astype(x.dtype, copy=False)]


define(
    OpDef(
        "graph.global_avg_pool2d",
        ("x",),
        "The mean of every channel's image.",
        attrs={"layout": _LAYOUT},
        infer=lambda t, a: _infer_global("graph.global_avg_pool2d", t, a),
        evaluate=_evaluate_global_avg,
    )
)
define(
    OpDef(
        "graph.global_max_pool2d",
        ("x",),
        "The largest element of every channel's image.",
        attrs={"layout": _LAYOUT},
        infer=lambda t, a: _infer_global("graph.global_max_pool2d", t, a),
        evaluate=lambda x, a: [x[0].max(axis=image_axes(a["layout"]), keepdims=True)],
    )
)


def _infer_adaptive(name: str, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = _checked = tensors(types, name)
    _infer_global(name, _checked, attrs)
    cells = entries(attrs["output_size"], 2, name, "output_size", 1)
    return [_with_image(x, attrs["layout"], (cells[0], cells[1]))]


def cell(index: int, size: int, cells: int) -> tuple[int, int]:
    """First and past-the-last element of one of `cells` overlapping parts that cover `size` elements."""
    return index * size // cells, -(-(index + 1) * size // cells)


def _evaluate_adaptive(inputs: Sequence[np.ndarray], attrs: Attrs, largest: bool) -> Sequence[np.ndarray]:
    x = permuted(inputs[0], attrs["layout"], "NCHW")
    rows, columns = attrs["output_size"]
    out = np.empty((*x.shape[:2], rows, columns), dtype=x.dtype)
    for i in range(rows):
        for j in range(columns):
            (top, bottom), (left, right) = cell(i, x.shape[2], rows), cell(j, x.shape[3], columns)
            part = x[:, :, top:bottom, left:right]
            value = part.max(axis=(2, 3)) if largest else wide(part, dtype_of(x)).mean(axis=(2, 3))
            out[:, :, i, j] = value.astype(x.dtype, copy=False)
    return [permuted(out, "NCHW", attrs["layout"])]


for _kind, _what in (("avg", "mean"), ("max", "largest element")):
    define(
        OpDef(
            f"graph.adaptive_{_kind}_pool2d",
            ("x",),
            f"The {_what} of each of `output_size` parts that cover the image.",
            attrs={"output_size": AttrDef("ints", doc="rows and columns of the result"), "layout": _LAYOUT},
            infer=lambda t, a, kind=_kind: _infer_adaptive(f"graph.adaptive_{kind}_pool2d", t, a),  # type: ignore[misc]
            evaluate=lambda x, a, kind=_kind: _evaluate_adaptive(x, a, kind == "max"),  # type: ignore[misc]
        )
    )
