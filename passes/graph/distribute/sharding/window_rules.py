"""Rows of convolutions, poolings and resizings: the rows of the image they read, and every rank's padding."""

from __future__ import annotations

import numpy as np

from tilewright.ir.graph_ops.adaptive_pooling import cell
from tilewright.ir.graph_ops.interpolation import CROPPING, spatial
from tilewright.ir.graph_ops.layouts import SPATIAL
from tilewright.ir.graph_ops.resizing import axis_taps
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.windows import input_interval
from tilewright.passes.graph.distribute.distribution import (
    Need,
    Partial,
    Sliced,
    partial_rule,
    replaced,
    slice_rule,
)

_CONVOLUTIONS = tuple(f"conv{n}d" for n in SPATIAL)
_TRANSPOSED = tuple(f"conv{n}d_transpose" for n in SPATIAL)
_POOLS = tuple(f"{kind}_pool{n}d" for kind in ("max", "avg") for n in SPATIAL)
#: ops whose rows are windows that slide over the rows of their first operand
SLIDING = frozenset(f"graph.{n}" for n in (*_CONVOLUTIONS, *_TRANSPOSED, *_POOLS))
_WHOLE_IMAGE = tuple(
    f"{how}_{kind}_pool{n}d" for how in ("global", "adaptive") for kind in ("avg", "max") for n in SPATIAL
)


@slice_rule(*_CONVOLUTIONS)
def convolution_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Samples, output channels (with their filters) or rows of the image (with halos)."""
    layout, kernel_layout = str(op["data_layout"]), str(op["kernel_layout"])
    letter = layout[axis]
    x, w = (v.tensor for v in op.operands)
    if letter == "N":
        return Sliced((Need(axis, start, end), None))
    if letter == "C":
        return _output_channels(op, axis, start, end)
    d = SPATIAL[len(layout) - 2].index(letter)
    kernel = w.shape[kernel_layout.index(letter)]
    strides, dilation, padding = (op.integers(k) for k in ("strides", "dilation", "padding"))
    rows = input_interval((start, end), x.shape[axis], kernel, strides[d], dilation[d], padding[d])
    if rows.start == rows.end:
        return None
    pads = replaced(replaced(padding, d, rows.pad_before), d + len(strides), rows.pad_after)
    return Sliced((Need(axis, rows.start, rows.end), None), {"padding": pads}, balanced=True)


def _output_channels(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Filters are cut along with the channels they make; of groups, only whole ones."""
    x, w = (v.tensor for v in op.operands)
    groups = op.integer("groups")
    kernel_axis = str(op["kernel_layout"]).index("O")
    if groups == 1:
        return Sliced((None, Need(kernel_axis, start, end)), balanced=True)
    filters, channels = op.result.tensor.shape[axis] // groups, x.shape[axis] // groups
    first, last = start // filters, end // filters
    per_group = w.shape[kernel_axis] // groups
    multiplied = per_group != filters  # a kernel [channels, multiplier, h, w] must keep more than one group
    if start % filters or end % filters or (multiplied and last - first == 1):
        return None
    needs = (
        Need(axis, first * channels, last * channels),
        Need(kernel_axis, first * per_group, last * per_group),
    )
    return Sliced(needs, {"groups": last - first}, align=filters)


@partial_rule(*_CONVOLUTIONS)
def convolution_channels(op: Op, operand: int, axis: int, start: int, end: int) -> Partial | None:
    """Input channels: the ranks' results add up."""
    if operand != 0 or str(op["data_layout"])[axis] != "C" or op["groups"] != 1:
        return None
    kernel_axis = str(op["kernel_layout"]).index("I")
    return Partial((Need(axis, start, end), Need(kernel_axis, start, end)))


@slice_rule(*_TRANSPOSED)
def transposed_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Output row o adds element i by tap k where o = i S - P + k D; the padding cuts to the rows wanted."""
    layout, kernel_layout = str(op["data_layout"]), str(op["kernel_layout"])
    letter = layout[axis]
    x, w = (v.tensor for v in op.operands)
    if letter == "N":
        return Sliced((Need(axis, start, end), None))
    if letter == "C":
        one = op["groups"] == 1
        return Sliced((None, Need(kernel_layout.index("O"), start, end)), balanced=True) if one else None
    d = SPATIAL[len(layout) - 2].index(letter)
    strides, dilation, padding = (op.integers(k) for k in ("strides", "dilation", "padding"))
    step, reach = strides[d], (w.shape[kernel_layout.index(letter)] - 1) * dilation[d]
    shifted = start + padding[d]
    first = min(max(0, -((reach - shifted) // step)), shifted // step, x.shape[axis] - 1)
    last = min(x.shape[axis], (end - 1 + padding[d]) // step + 1)
    if last <= first:
        return None
    before = shifted - first * step
    after = (last - first - 1) * step + reach + 1 - before - (end - start)
    extra = max(0, -after)
    pads = replaced(replaced(padding, d, before), d + len(strides), max(0, after))
    attrs: dict[str, Attr] = {
        "padding": pads,
        "output_padding": replaced(op.integers("output_padding"), d, extra),
    }
    return Sliced((Need(axis, first, last), None), attrs, balanced=True)


@slice_rule(*_POOLS)
def pool_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """What the last window reaches beyond the padding (ceil mode) is never padding of a piece either."""
    layout = str(op["layout"])
    if layout[axis] in "NC":
        return Sliced((Need(axis, start, end),))
    d = SPATIAL[len(layout) - 2].index(layout[axis])
    kernel, strides, dilation, padding = (
        op.integers(k) for k in ("pool_size", "strides", "dilation", "padding")
    )
    extent = op.operands[0].tensor.shape[axis]
    rows = input_interval((start, end), extent, kernel[d], strides[d], dilation[d], padding[d])
    if rows.start == rows.end:
        return None
    after = min(rows.pad_after, padding[d + len(strides)])
    pads = replaced(replaced(padding, d, rows.pad_before), d + len(strides), after)
    return Sliced((Need(axis, rows.start, rows.end),), {"padding": pads}, balanced=True)


@slice_rule(*_WHOLE_IMAGE)
def adaptive_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Parts of an image that divides evenly, samples and channels."""
    layout = str(op["layout"])
    if layout[axis] in "NC":
        return Sliced((Need(axis, start, end),))
    size, cells = op.operands[0].tensor.shape[axis], op.result.tensor.shape[axis]
    if "adaptive" not in op.name or size % cells:
        return None
    d = SPATIAL[len(layout) - 2].index(layout[axis])
    first, last = cell(start, size, cells)[0], cell(end - 1, size, cells)[1]
    counts = replaced(op.integers("output_size"), d, end - start)
    return Sliced((Need(axis, first, last),), {"output_size": counts})


@partial_rule(*_WHOLE_IMAGE)
def pooled_rows(op: Op, operand: int, axis: int, start: int, end: int) -> Partial | None:
    """The mean over all rows is the weighted mean of means over some; the largest, the largest of those."""
    layout, x = str(op["layout"]), op.operands[0].tensor
    if layout[axis] in "NC" or op.result.tensor.shape[axis] != 1:
        return None
    need = (Need(axis, start, end),)
    if "max" in op.name:
        return Partial(need, reduction="max")
    if not x.dtype.startswith(("f", "bf")):
        return None
    return Partial(need, weight=end - start, divisor=x.shape[axis])


@slice_rule("resize1d", "resize2d", "resize3d")
def resized_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Rows of an image enlarged by a whole factor, made from a piece whose taps are the same ones.

    Pieces take as many rows more on either side as the method reads; what those make is cut off again.
    """
    attrs, x = dict(op.attrs), op.operands[0].tensor
    places = spatial(str(op["layout"]))
    if axis not in places:
        return Sliced((Need(axis, start, end),))
    d, size, target = places.index(axis), x.shape[axis], op.result.tensor.shape[axis]
    if attrs["coordinate_transformation_mode"] == CROPPING or target % size:
        return None
    factor = target // size
    taps, weights, _ = axis_taps(attrs, d, size, target)
    wanted, read = np.s_[:, start:end], taps[:, start:end]
    margin = 0 if attrs["method"] == "nearest_neighbor" else 2
    first = max(0, min(int(read.min()), start // factor) - margin)
    last = min(size, max(int(read.max()) + 1, -(-end // factor)) + margin)
    again = {**attrs, "size": replaced(op.integers("size"), d, (last - first) * factor)}
    own_taps, own_weights, _ = axis_taps(again, d, last - first, (last - first) * factor)
    keep = start - first * factor, end - first * factor
    same = np.array_equal(own_taps[:, slice(*keep)] + first, taps[wanted])
    if not same or not np.allclose(own_weights[:, slice(*keep)], weights[wanted], rtol=0, atol=1e-15):
        return None
    return Sliced((Need(axis, first, last),), {"size": again["size"]}, keep=keep)


@slice_rule("depth_to_space", "space_to_depth")
def block_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Samples, and whole blocks of pixels."""
    letter, size = str(op["layout"])[axis], op.integer("block_size")
    if letter == "N":
        return Sliced((Need(axis, start, end),))
    if letter == "C":
        return None
    if op.name == "graph.space_to_depth":
        return Sliced((Need(axis, start * size, end * size),))
    if start % size or end % size:
        return None
    return Sliced((Need(axis, start // size, end // size),), align=size)
