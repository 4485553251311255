"""What the gradients of pooling are made of: which tap was the largest, and what comes back to the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from math import prod

import numpy as np

from tilewright.ir.division import Labels
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.extents import Dims, attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_tap
from tilewright.ir.graph_ops.layouts import SPATIAL, Window, padded, permuted, sliding, windows
from tilewright.ir.graph_ops.operands import dtype_of, quotient, require, require_float, tensors, wide
from tilewright.ir.graph_ops.pooling import counted_taps, lowest_finite, pool_attrs, pool_windows, with_image
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype

_IMAGE = AttrDef("ints", doc="spatial extents of what was pooled")


def position_dtype(taps: int) -> str:
    """The dtype of the number of a tap among so many."""
    return "u8" if taps <= 256 else "i32"


def image_windows(g: TensorType, attrs: Attrs, spatial: int) -> tuple[Window, ...]:
    """Windows of every spatial dimension over `image`; InputError where they do not give the type of `g`."""
    image = attrs["image"]
    require(len(image) == spatial, f"expected {spatial} entries in 'image', got {tuple(image)}")
    sequences = (attrs["pool_size"], attrs["strides"], attrs["padding"], attrs["dilation"])
    along = windows(image, *sequences, attrs["ceil_mode"])
    whole = with_image(g, attrs["layout"], [w.count for w in along])
    require(whole == g, f"expected a cotangent of shape {whole.shape} for an image of {image}, got {g}")
    return along


# -- which tap --------------------------------------------------------------------------------------------
def _infer_position(spatial: int, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types)
    require_float(x)
    along = pool_windows(x, attrs, spatial)
    t = with_image(x, attrs["layout"], [w.count for w in along])
    return [TensorType(position_dtype(prod(w.kernel for w in along)), t.shape)]


def _evaluate_position(spatial: int, inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    (x,) = inputs
    order = f"NC{SPATIAL[spatial]}"
    along = pool_windows(TensorType(dtype_of(x), x.shape), attrs, spatial)
    image = wide(permuted(x, attrs["layout"], order), dtype_of(x))
    taps = sliding(padded(image, along, lowest_finite(dtype_of(x))), along)
    count = prod(w.kernel for w in along)
    rows = taps.reshape(*taps.shape[:2], count, *(w.count for w in along))
    position = np.argmax(rows, axis=2).astype(numpy_dtype(position_dtype(count)))
    return [permuted(position, order, attrs["layout"])]


# -- what comes back --------------------------------------------------------------------------------------
def _infer_back(spatial: int, types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    g, *others = tensors(types)
    require_float(g)
    along = image_windows(g, attrs, spatial)
    for position in others:
        expected = TensorType(position_dtype(prod(w.kernel for w in along)), g.shape)
        require(position == expected, f"expected positions of type {expected}, got {position}")
    return [with_image(g, attrs["layout"], attrs["image"])]


def _returned(
    g: np.ndarray, along: Sequence[Window], taps: Mapping[tuple[int, ...], np.ndarray]
) -> np.ndarray:
    """Sums at [N, C, spatial...] of what every tap sends back to the element that it has read."""
    room = [max(w.needed, w.before + w.size) for w in along]
    full = np.zeros((*g.shape[:2], *room), g.dtype)
    for tap, part in taps.items():
        at = (
            slice(t * w.dilation, t * w.dilation + (w.count - 1) * w.stride + 1, w.stride)
            for t, w in zip(tap, along, strict=True)
        )
        full[:, :, *at] += part
    return np.asarray(full[:, :, *(slice(w.before, w.before + w.size) for w in along)])


def _evaluate_max(spatial: int, inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    order, dtype = f"NC{SPATIAL[spatial]}", inputs[0].dtype
    along = image_windows(TensorType(dtype_of(inputs[0]), inputs[0].shape), attrs, spatial)
    g, position = (permuted(v, attrs["layout"], order) for v in inputs)
    g = wide(g, dtype_of(g))
    taps = np.ndindex(*(w.kernel for w in along))
    parts = {tap: np.where(position == k, g, 0) for k, tap in enumerate(taps)}
    return [permuted(_returned(g, along, parts).astype(dtype, copy=False), order, attrs["layout"])]


def _evaluate_avg(spatial: int, inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    order, dtype = f"NC{SPATIAL[spatial]}", inputs[0].dtype
    along = image_windows(TensorType(dtype_of(inputs[0]), inputs[0].shape), attrs, spatial)
    g = wide(permuted(inputs[0], attrs["layout"], order), dtype_of(inputs[0]))
    counts = reduce(np.multiply.outer, (counted_taps(w, attrs["count_include_pad"]) for w in along))
    share = quotient(g, np.maximum(counts, 1))
    parts = dict.fromkeys(np.ndindex(*(w.kernel for w in along)), share)
    return [permuted(_returned(g, along, parts).astype(dtype, copy=False), order, attrs["layout"])]


def _divided(op: Op) -> Labels:
    """Samples and channels are independent."""
    dims = tuple(c if c in "NC" else None for c in str(op["layout"]))
    return Labels((dims,) * len(op.operands), (dims,))


def _same_image(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Extents of the cotangent do not tell those of the image."""
    for letter, dim in zip(attrs["layout"], operands[0], strict=True):
        if letter not in "NC" and dim.old != dim.new:
            raise UnsupportedError(
                f"the gradient of a pooling of {dim.old} windows has no image of known extents for {dim.new}"
            )
    return {}


def _flops(op: Op) -> int:
    """One per window and tap."""
    return op.operands[0].tensor.size * prod(op.integers("pool_size"))


#: facts that ops below share; each replaces those that differ
_FACTS = Facts(
    elements=Elements.SLIDES,
    flops=_flops,
    precision=Precision.FOLLOWS,
    exact=False,
    division=_divided,
    extents=_same_image,
    report=ReportClass.POOLING,
    gradient=Gradient.DERIVED,
)
for _spatial in SPATIAL:
    define(
        f"graph.max_pool{_spatial}d_position",
        ("x",),
        "The number of the tap, in row-major order of the window, that holds the largest element: the first "
        "of several, and a nan counts as such. Padding counts as the lowest finite number.",
        attrs=pool_attrs(_spatial),
        infer=partial(_infer_position, _spatial),
        evaluate=partial(_evaluate_position, _spatial),
        facts=replace(_FACTS, flops=flops_per_tap, extents=attributes_stay, gradient=Gradient.NONE),
    )
    define(
        f"graph.max_pool{_spatial}d_grad",
        ("cotangent", "position"),
        f"The gradient of max_pool{_spatial}d: an element gathers from the windows whose `position` it is.",
        attrs={**pool_attrs(_spatial), "image": _IMAGE},
        infer=partial(_infer_back, _spatial),
        evaluate=partial(_evaluate_max, _spatial),
        facts=_FACTS,
    )
    define(
        f"graph.avg_pool{_spatial}d_grad",
        ("cotangent",),
        f"The gradient of avg_pool{_spatial}d: every element gathers its shares from the windows that hold "
        "it.",
        attrs={
            **pool_attrs(_spatial),
            "count_include_pad": AttrDef("bool", False, "padding has shares too"),
            "image": _IMAGE,
        },
        infer=partial(_infer_back, _spatial),
        evaluate=partial(_evaluate_avg, _spatial),
        facts=replace(_FACTS, gradient=Gradient.RULE),
    )
