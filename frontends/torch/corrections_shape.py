"""Shapes, joins, windows of elements, and images resized with the scale torch uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

import numpy as np
import torch
from tvm import relax

from tilewright.frontends.torch.nodes import Correction, argument, as_type, dtype_of, tensor_of
from tilewright.ir.errors import UnsupportedError

_op = relax.op


def _same_elements(importer: Any, node: Any) -> Any:
    """Torch says what the shape becomes; dimensions it was asked to drop in vain stay."""
    shape = [int(n) for n in tensor_of(node).shape]
    return importer.block_builder.emit(_op.reshape(importer.env[node.args[0]], shape))


def _concatenated(importer: Any, node: Any) -> Any:
    """Parts in the dtype of the result; empty vectors count for nothing, whatever the rank of the others."""
    dtype, rank = tensor_of(node).dtype, len(tensor_of(node).shape)
    parts = [p for p in node.args[0] if len(tensor_of(p).shape) == rank]
    axis = int(argument(node, 1, "dim", 0))
    return importer.block_builder.emit(_op.concat([as_type(importer, p, dtype) for p in parts], axis % rank))


def _unfolded(importer: Any, node: Any) -> Any:
    """Windows along a dimension: their number takes its place, their elements come last."""
    x, dim, size, step = node.args
    rank = len(tensor_of(x).shape)
    dim %= rank
    count = int(tensor_of(node).shape[dim])
    index = np.arange(count)[:, None] * step + np.arange(size)
    emit = importer.block_builder.emit
    taken = emit(_op.take(importer.env[x], relax.const(index.astype(np.int64)), axis=dim))
    return emit(_op.permute_dims(taken, [*(d for d in range(rank + 1) if d != dim + 1), dim + 1]))


def _trilinear(importer: Any, node: Any) -> Any:
    """The product of three operands, expanded by dimensions of extent 1, summed over some."""
    *operands, first, second, third, summed = node.args[:7]
    emit = importer.block_builder.emit
    made = [
        emit(_op.expand_dims(importer.env[x], list(dims))) if dims else importer.env[x]
        for x, dims in zip(operands, (first, second, third), strict=True)
    ]
    return emit(_op.sum(emit(_op.multiply(emit(_op.multiply(made[0], made[1])), made[2])), list(summed)))


def _layer_norm(importer: Any, node: Any) -> Any:
    """Over the last dimensions; without weights nothing is scaled or shifted."""
    x, shape = importer.env[node.args[0]], [int(n) for n in node.args[1]]
    weight, bias = argument(node, 2, "weight"), argument(node, 3, "bias")
    emit, dtype = importer.block_builder.emit, dtype_of(importer, node.args[0])
    gamma = emit(_op.ones(shape, dtype)) if weight is None else importer.env[weight]
    beta = emit(_op.zeros(shape, dtype)) if bias is None else importer.env[bias]
    axes = list(range(-len(shape), 0))
    out = emit(_op.nn.layer_norm(x, gamma, beta, axes, float(argument(node, 4, "eps", 1e-5))))
    return (out,) if node.target.__name__.startswith("native") else out


def _group_norm(importer: Any, node: Any) -> Any:
    """Over groups of channels; without weights nothing is scaled or shifted."""
    x, weight, bias, _, channels, _, groups, epsilon = node.args
    emit, dtype, rank = importer.block_builder.emit, dtype_of(importer, x), len(tensor_of(x).shape)
    gamma = emit(_op.ones([int(channels)], dtype)) if weight is None else importer.env[weight]
    beta = emit(_op.zeros([int(channels)], dtype)) if bias is None else importer.env[bias]
    axes = list(range(2, rank))
    return (emit(_op.nn.group_norm(importer.env[x], gamma, beta, int(groups), 1, axes, float(epsilon))),)


def _strided(importer: Any, node: Any) -> Any:
    """A view of memory by strides, as a choice among the elements of a dense tensor."""
    x, size, stride = node.args[:3]
    if not tensor_of(x).is_contiguous():
        raise UnsupportedError("expected as_strided of a dense tensor, got other strides")
    index = np.asarray(argument(node, 3, "storage_offset") or 0)
    for extent, step in zip(size, stride, strict=True):
        index = index[..., None] + np.arange(extent) * step
    emit = importer.block_builder.emit
    flat = emit(_op.flatten(importer.env[x]))
    return emit(_op.take(flat, relax.const(index.astype(np.int64)), axis=0))


def _distances(importer: Any, node: Any) -> Any:
    """Euclidean distances of the rows of two matrices."""
    a, b, order = node.args[:3]
    if order != 2:
        raise UnsupportedError(f"expected Euclidean distances, got the norm of order {order}")
    emit = importer.block_builder.emit
    left, right = emit(_op.expand_dims(importer.env[a], -2)), emit(_op.expand_dims(importer.env[b], -3))
    apart = emit(_op.subtract(left, right))
    return emit(_op.sqrt(emit(_op.sum(emit(_op.multiply(apart, apart)), [-1]))))


def _convolution(importer: Any, node: Any) -> Any:
    """As TVM's, and transposed in three dimensions."""
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = node.args
    if not transposed or len(tensor_of(x).shape) != 5:
        return importer._convolution(node)
    emit = importer.block_builder.emit
    out = emit(
        _op.nn.conv3d_transpose(
            importer.env[x],
            importer.env[weight],
            list(stride),
            list(padding),
            list(extra),
            list(dilation),
            groups,
        )
    )
    return (
        out if bias is None else emit(_op.add(out, emit(_op.reshape(importer.env[bias], [1, -1, 1, 1, 1]))))
    )


def _scales(node: Any) -> list[float]:
    """Source pixels per result pixel of each spatial dimension: those torch computes with."""
    given = node.args[-1] if isinstance(node.args[-1], list | tuple) and node.args[1] is None else None
    sizes = zip(tensor_of(node.args[0]).shape[2:], tensor_of(node).shape[2:], strict=True)
    return [1 / given[d] if given else int(n) / int(m) for d, (n, m) in enumerate(sizes)]


def _exact(node: Any) -> bool:
    """Whether the scales are the quotients of the extents, as TVM's importer takes them to be."""
    sizes = zip(tensor_of(node.args[0]).shape[2:], tensor_of(node).shape[2:], strict=True)
    return all(
        abs(s * int(m) - int(n)) < 1e-6 * int(n) for s, (n, m) in zip(_scales(node), sizes, strict=True)
    )


def _nearest(importer: Any, node: Any) -> Any:
    """Pixel i of the result is pixel floor(i * scale) of the source; of its middle where exact."""
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    middle = 0.5 if "exact" in node.target.__name__ else 0.0
    shapes = zip(tensor_of(node.args[0]).shape[2:], tensor_of(node).shape[2:], strict=True)
    for d, ((n, m), scale) in enumerate(zip(shapes, _scales(node), strict=True)):
        index = [min(floor(np.float32(i + middle) * np.float32(scale)), int(n) - 1) for i in range(int(m))]
        if index != list(range(int(n))):
            x = emit(_op.take(x, relax.const(np.asarray(index, np.int64)), axis=d + 2))
    return x


def _bilinear(importer: Any, node: Any) -> Any:
    """As TVM's where the scale is the quotient of the extents, else dimension by dimension."""
    corners = bool(node.args[2])
    if corners or _exact(node):
        return importer._upsample_bilinear2d(node)
    emit, x = importer.block_builder.emit, importer.env[node.args[0]]
    shapes = zip(tensor_of(node.args[0]).shape[2:], tensor_of(node).shape[2:], strict=True)
    for d, ((n, m), scale) in enumerate(zip(shapes, _scales(node), strict=True)):
        x = _mixed(
            importer, emit, x, d + 2, [max((i + 0.5) * scale - 0.5, 0.0) for i in range(int(m))], int(n), node
        )
    return x


def _mixed(
    importer: Any, emit: Any, x: Any, axis: int, places: Sequence[float], extent: int, node: Any
) -> Any:
    """Elements between pixels: each a mean of two neighbours by distance."""
    rank = len(tensor_of(node).shape)
    low = np.minimum(np.floor(places).astype(np.int64), extent - 1)
    high = np.minimum(low + 1, extent - 1)
    far = (np.asarray(places) - low).reshape([-1 if d == axis else 1 for d in range(rank)])
    below, above = (emit(_op.take(x, relax.const(index), axis=axis)) for index in (low, high))
    share = relax.const(far.astype(np.float32), dtype_of(importer, node))
    return emit(_op.add(below, emit(_op.multiply(emit(_op.subtract(above, below)), share))))


def _bicubic(importer: Any, node: Any) -> Any:
    if not node.args[2] and not _exact(node):
        raise UnsupportedError(
            "expected a bicubic resize to whole extents, got a scale factor that is rounded"
        )
    return importer._upsample_bicubic2d(node)


def _grid_sample(importer: Any, node: Any) -> Any:
    """Relax takes the coordinates as the channels of an image."""
    x, grid, mode, padding, corners = node.args[:5]
    emit = importer.block_builder.emit
    moved = emit(_op.permute_dims(importer.env[grid], [0, 3, 1, 2]))
    method, border = ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[padding]
    return emit(_op.image.grid_sample(importer.env[x], moved, method, "NCHW", border, bool(corners)))


def _one_hot(importer: Any, node: Any) -> Any:
    classes = argument(node, 1, "num_classes", -1)
    if classes < 0:
        raise UnsupportedError("expected one_hot with num_classes: without it, values decide the shape")
    numbers = (relax.prim_value(value) for value in (1, 0))
    at = as_type(importer, node.args[0], torch.int64)
    return importer.block_builder.emit(_op.one_hot(at, *numbers, int(classes), -1))


SHAPE: Mapping[str, Correction] = {
    **dict.fromkeys(("squeeze.default", "squeeze.dim", "squeeze.dims"), _same_elements),
    **dict.fromkeys(("cat.default", "concat.default"), _concatenated),
    "unfold.default": _unfolded,
    "_trilinear.default": _trilinear,
    "layer_norm.default": _layer_norm,
    "native_layer_norm.default": _layer_norm,
    "native_group_norm.default": _group_norm,
    "as_strided.default": _strided,
    "_cdist_forward.default": _distances,
    "convolution.default": _convolution,
    **{
        f"{kind}{n}d.vec": _nearest
        for kind in ("upsample_nearest", "_upsample_nearest_exact")
        for n in (1, 2, 3)
    },
    "upsample_bilinear2d.vec": _bilinear,
    "upsample_bicubic2d.vec": _bicubic,
    "grid_sampler_2d.default": _grid_sample,
    "one_hot.default": _one_hot,
}
