"""ONNX operators that sample images at coordinates that are data, and that put patches together."""

from __future__ import annotations

from math import prod

import numpy as np

from tilewright.frontends.importing.emitter import Result, bounded
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rules
from tilewright.frontends.onnx.rules.layers import biased, check_kernel
from tilewright.frontends.onnx.windows import geometry
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import storage_dtype

_METHODS = {
    "linear": "bilinear",
    "bilinear": "bilinear",
    "nearest": "nearest",
    "cubic": "bicubic",
    "bicubic": "bicubic",
}


def _grid_sample(emit: FoldingEmitter, node: Node) -> Result:
    data, grid = node.tensor(0), node.tensor(1)
    mode = node.choice("mode", tuple(_METHODS), "linear" if node.opset >= 20 else "bilinear")
    rank = grid.tensor.rank
    return emit.value(
        "grid_sample", data, emit.transpose(grid, (0, rank - 1, *range(1, rank - 1))),
        method=_METHODS[mode], padding_mode=node.text("padding_mode", "zeros"),
        align_corners=node.flag("align_corners", False),
    )  # fmt: skip


def _roi_align(emit: FoldingEmitter, node: Node) -> Result:
    """Samples of a bin as products with the weights that every row and column of the image has in them."""
    x, rois, batch = node.tensors(3)
    attrs = node
    mode = attrs.text("mode", "avg")
    transform = attrs.text("coordinate_transformation_mode", "half_pixel")
    scale, ratio = attrs.real("spatial_scale", 1.0), attrs.integer("sampling_ratio", 0)
    bins = (attrs.integer("output_height", 1), attrs.integer("output_width", 1))
    shifted = node.opset >= 16 and transform == "half_pixel"
    if mode not in ("avg", "max") or transform not in ("half_pixel", "output_half_pixel"):
        raise InputError(f"expected mode avg or max and a known transformation, got '{mode}', '{transform}'")
    if x.tensor.rank != 4 or rois.tensor.rank != 2 or rois.tensor.shape[1] != 4 or min(bins) < 1:
        raise InputError(f"expected images [N, C, H, W] and regions [R, 4], got {x.type} and {rois.type}")
    if ratio < 1:
        raise UnsupportedError(
            "expected a sampling_ratio of at least 1: the number of samples depends on data"
        )
    picked = emit.value("take", x, emit.cast(batch, "i64"), axis=0, mode="wrap")
    sides = []
    for k, size in enumerate(x.tensor.shape[2:]):
        low, high = (emit.cut(rois, 1, 1 - k + end, 1) for end in (0, 2))
        low, high = (_offset(emit, v, scale, 0.5 if shifted else 0.0) for v in (low, high))
        sides.append(_bin_weights(emit, low, high, bins[k], ratio, size, clamp=not shifted))
    if mode == "avg":
        rows, columns = (
            emit.value("mean", emit.value("add", *side), axis=(2,), keepdims=False) for side in sides
        )
        return _weighed(emit, picked, rows, columns)
    return _largest(emit, picked, sides, bins, ratio)


def _offset(emit: FoldingEmitter, x: Value, scale: float, shift: float) -> Value:
    scaled = emit.op("multiply", x, scale)
    return scaled if shift == 0 else emit.value("subtract", scaled, emit.full(shift, x.tensor.dtype))


def _bin_weights(
    emit: FoldingEmitter, low: Value, high: Value, bins: int, ratio: int, size: int, *, clamp: bool
) -> tuple[Value, Value]:
    """Weights [regions, bins, samples, size] of the elements before and behind each sample."""
    dtype = low.tensor.dtype
    span = emit.value("subtract", high, low)
    if clamp:
        span = emit.op("maximum", span, 1)
    bounded(bins, ratio, size)
    # samples lie at these fractions of a region
    fractions = (np.arange(bins * ratio) + 0.5) / (bins * ratio)
    steps = emit.constant(fractions.astype(storage_dtype(dtype))[None])
    at = emit.value("add", low, emit.value("multiply", span, steps))
    inside = emit.value("logical_and", emit.op("greater_equal", at, -1), emit.op("less_equal", at, size))
    at = emit.value("clip", at, a_min=0.0, a_max=float(size - 1))
    shape = (low.tensor.shape[0], bins, ratio, 1)
    at, inside = emit.reshape(at, shape), emit.reshape(inside, shape)
    base = emit.value("floor", at)
    part = emit.value("subtract", at, base)
    places = emit.constant(np.arange(size).astype(storage_dtype(dtype)))
    one, zero = emit.full(1, dtype), emit.full(0, dtype)
    weights = []
    for distance, weight in ((0, emit.value("subtract", one, part)), (1, part)):
        place = base if distance == 0 else emit.value("add", base, one)
        here = emit.value("logical_and", emit.value("equal", places, place), inside)
        weights.append(emit.value("where", here, weight, zero))
    return weights[0], weights[1]


def _weighed(emit: FoldingEmitter, images: Value, rows: Value, columns: Value) -> Value:
    """rows [R, p, H] x images [R, C, H, W] x columns [R, q, W] -> [R, C, p, q]."""
    left = emit.value("expand_dims", rows, axis=1)
    right = emit.value("expand_dims", columns, axis=1)
    return emit.value("matmul", emit.value("matmul", left, images), right, transpose_b=True)


def _largest(
    emit: FoldingEmitter, images: Value, sides: list[tuple[Value, Value]], bins: tuple[int, int], ratio: int
) -> Value:
    """The largest weighted element among the four around every sample of a bin."""
    regions, channels = images.tensor.shape[:2]
    flat = [
        [emit.reshape(v, (regions, n * ratio, v.tensor.shape[-1])) for v in side]
        for side, n in zip(sides, bins, strict=True)
    ]
    corners = [_weighed(emit, images, r, c) for r in flat[0] for c in flat[1]]
    best = corners[0]
    for other in corners[1:]:
        best = emit.value("maximum", best, other)
    split = emit.reshape(best, (regions, channels, bins[0], ratio, bins[1], ratio))
    return emit.value("max", split, axis=(3, 5), keepdims=False)


def _deform_conv(emit: FoldingEmitter, node: Node) -> Result:
    """Bilinear samples where the offsets say, then one product per group."""
    x, weight, offset = node.tensors(3)
    mask = node.optional(4)
    if x.tensor.rank != 4:
        raise UnsupportedError(f"expected two spatial dimensions, got {x.type}")
    if weight.tensor.rank != 4 or offset.tensor.rank != 4:
        raise InputError(f"expected weights and offsets of rank 4, got {weight.type} and {offset.type}")
    (n, channels, *sizes), (filters, each, *kernel) = x.tensor.shape, weight.tensor.shape
    check_kernel(node, weight)
    g = geometry(node, sizes, kernel)
    groups, offset_groups = node.integer("group", 1), node.integer("offset_group", 1)
    counts, taps = offset.tensor.shape[2:], prod(kernel)
    if each * groups != channels or channels % offset_groups or filters % groups:
        raise InputError(f"expected channels that fit {groups} groups, got {x.type} and {weight.type}")
    split = emit.reshape(offset, (n * offset_groups, taps, 2, prod(counts)))
    base = _tap_positions(tuple(kernel), counts, g.strides, g.dilation, g.padding)
    dtype = storage_dtype(x.tensor.dtype)
    at = [
        emit.value(
            "add",
            emit.reshape(emit.cut(split, 2, d, 1), (n * offset_groups, taps * prod(counts))),
            emit.constant(base[d].astype(dtype).reshape(-1)),
        )
        for d in (0, 1)
    ]
    rows = emit.reshape(x, (n * offset_groups, channels // offset_groups, prod(sizes)))
    sampled = _bilinear(emit, emit.transpose(rows, (0, 2, 1)), at, sizes)
    if mask is not None:
        sampled = emit.value(
            "multiply", sampled, emit.reshape(mask, (n * offset_groups, taps * prod(counts), 1))
        )
    columns = emit.reshape(emit.transpose(sampled, (0, 2, 1)), (n, groups, each * taps, prod(counts)))
    kernels = emit.reshape(weight, (1, groups, filters // groups, each * taps))
    out = emit.reshape(emit.value("matmul", kernels, columns), (n, filters, *counts))
    return biased(emit, node, out, 3)


def _tap_positions(
    kernel: tuple[int, ...],
    counts: tuple[int, ...],
    strides: tuple[int, ...],
    dilation: tuple[int, ...],
    padding: tuple[int, ...],
) -> list[np.ndarray]:
    """Row and column of every tap of every window before offsets: [taps, windows] each."""
    bounded(*kernel, *counts)
    tap, window = np.indices(kernel).reshape(2, -1, 1), np.indices(counts).reshape(2, 1, -1)
    return [window[d] * strides[d] - padding[d] + tap[d] * dilation[d] for d in (0, 1)]


def _bilinear(emit: FoldingEmitter, rows: Value, at: list[Value], sizes: list[int]) -> Value:
    """Elements [B, H * W, C] interpolated at coordinates [B, P] each; what lies outside counts as zero."""
    dtype = rows.tensor.dtype
    zero, one = emit.full(0, dtype), emit.full(1, dtype)
    axes = []
    for x, size in zip(at, sizes, strict=True):
        base = emit.value("floor", x)
        part = emit.value("subtract", x, base)
        ends = []
        for step, weight in ((0, emit.value("subtract", one, part)), (1, part)):
            place = emit.op("add", base, step)
            inside = emit.value(
                "logical_and",
                emit.value("greater_equal", place, zero),
                emit.op("less_equal", place, size - 1),
            )
            bounded = emit.cast(emit.value("clip", place, a_min=0.0, a_max=float(size - 1)), "i64")
            ends.append((bounded, emit.value("where", inside, weight, zero)))
        axes.append(ends)
    total: Value | None = None
    for row, row_weight in axes[0]:
        for column, column_weight in axes[1]:
            flat = emit.value("add", emit.op("multiply", row, sizes[1]), column)
            picked = emit.value("take", rows, flat, axis=1, batch_dims=1, mode="fast")
            weight = emit.value("expand_dims", emit.value("multiply", row_weight, column_weight), axis=2)
            part = emit.value("multiply", picked, weight)
            total = part if total is None else emit.value("add", total, part)
    assert total is not None
    return total


def _col2im(emit: FoldingEmitter, node: Node) -> Result:
    """Every entry of every patch is added to its place in the image."""
    x = node.tensor(0)
    image, block = emit.integers(node.tensor(1), "image_shape"), emit.integers(node.tensor(2), "block_shape")
    g = geometry(node, image, block)
    n = len(image)
    padded = [size + g.padding[d] + g.padding[n + d] for d, size in enumerate(image)]
    counts = [
        (size - reach) // stride + 1 for size, reach, stride in zip(padded, g.reach, g.strides, strict=True)
    ]
    if x.tensor.rank != 3 or min((*block, *counts), default=0) < 1:
        raise InputError(f"expected patches [N, C, L] of an image {image}, got {x.type} and {block}")
    batch, rows, patches = x.tensor.shape
    if rows % prod(block) or patches != prod(counts):
        raise InputError(f"expected patches {prod(block)} high and {prod(counts)} of them, got {x.type}")
    channels = rows // prod(block)
    bounded(*block, *counts)
    tap, window = np.indices(block).reshape(n, -1, 1), np.indices(counts).reshape(n, 1, -1)
    flat = np.zeros((prod(block), prod(counts)), np.int64)
    for d in range(n):
        flat = flat * padded[d] + window[d] * g.strides[d] + tap[d] * g.dilation[d]
    places = emit.broadcast(emit.constant(flat.reshape(1, 1, -1)), (batch, channels, flat.size))
    parts = emit.reshape(x, (batch, channels, flat.size))
    empty = emit.full(0, x.tensor.dtype, (batch, channels, prod(padded)))
    out = emit.value("scatter_elements", empty, places, parts, axis=2, reduction="add")
    out = emit.reshape(out, (batch, channels, *padded))
    for d, size in enumerate(image):
        out = emit.cut(out, 2 + d, g.padding[d], size)
    return out


def _tensor_scatter(emit: FoldingEmitter, node: Node) -> Result:
    """Sample b of the update goes to entries `write_indices[b]` and on, in a ring where the mode says so."""
    cache, update, where = node.tensor(0), node.tensor(1), node.optional(2)
    mode = node.text("mode", "linear")
    axis = node.axis(cache.tensor.rank, -2)
    shape = update.tensor.shape
    steps = emit.constant(np.arange(shape[axis]).reshape([-1 if d == axis else 1 for d in range(len(shape))]))
    places = steps
    if where is not None:
        first = emit.reshape(emit.cast(where, "i64"), (shape[0], *(1,) * (len(shape) - 1)))
        places = emit.value("add", first, steps)
    if mode == "circular":
        places = emit.op("floor_mod", places, cache.tensor.shape[axis])
    return emit.value("scatter_elements", cache, emit.broadcast(places, shape), update, axis=axis)


RULES: Rules = {
    "Col2Im": _col2im,
    "DeformConv": _deform_conv,
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
    "TensorScatter": _tensor_scatter,
}
