"""Shapes, joins, windows of elements, and images resized with the scale torch uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor
from typing import Any

import numpy as np
import torch
from tvm import relax

from tilewright.frontends.torch.corrections.nodes import Correction, TorchCall, tensor_of
from tilewright.ir.errors import UnsupportedError

_op = relax.op


def _same_elements(call: TorchCall) -> Any:
    """Torch says what the shape becomes; dimensions it was asked to drop in vain stay."""
    shape = [int(n) for n in call.value.shape]
    return call.emit(_op.reshape(call.env[call.args[0]], shape))


def _concatenated(call: TorchCall) -> Any:
    """Parts in the dtype of the result; empty vectors count for nothing, whatever the rank of the others."""
    dtype, rank = call.value.dtype, len(call.value.shape)
    parts = [p for p in call.args[0] if len(tensor_of(p).shape) == rank]
    axis = int(call.argument(1, "dim", 0))
    return call.emit(_op.concat([call.as_type(p, dtype) for p in parts], axis % rank))


def _unfolded(call: TorchCall) -> Any:
    """Windows along a dimension: their number takes its place, their elements come last."""
    x, dim, size, step = call.args
    rank = len(tensor_of(x).shape)
    dim %= rank
    count = int(call.value.shape[dim])
    index = np.arange(count)[:, None] * step + np.arange(size)
    taken = call.emit(_op.take(call.env[x], relax.const(index.astype(np.int64)), axis=dim))
    return call.emit(_op.permute_dims(taken, [*(d for d in range(rank + 1) if d != dim + 1), dim + 1]))


def _trilinear(call: TorchCall) -> Any:
    """The product of three operands, expanded by dimensions of extent 1, summed over some."""
    *operands, first, second, third, summed = call.args[:7]
    made = [
        call.emit(_op.expand_dims(call.env[x], list(dims))) if dims else call.env[x]
        for x, dims in zip(operands, (first, second, third), strict=True)
    ]
    return call.emit(
        _op.sum(call.emit(_op.multiply(call.emit(_op.multiply(made[0], made[1])), made[2])), list(summed))
    )


def _layer_norm(call: TorchCall) -> Any:
    """Over the last dimensions; without weights nothing is scaled or shifted."""
    x, shape = call.env[call.args[0]], [int(n) for n in call.args[1]]
    weight, bias = call.argument(2, "weight"), call.argument(3, "bias")
    dtype = call.dtype_of(call.args[0])
    gamma = call.emit(_op.ones(shape, dtype)) if weight is None else call.env[weight]
    beta = call.emit(_op.zeros(shape, dtype)) if bias is None else call.env[bias]
    axes = list(range(-len(shape), 0))
    out = call.emit(_op.nn.layer_norm(x, gamma, beta, axes, float(call.argument(4, "eps", 1e-5))))
    return (out,) if call.name.startswith("native") else out


def _group_norm(call: TorchCall) -> Any:
    """Over groups of channels; without weights nothing is scaled or shifted."""
    x, weight, bias, _, channels, _, groups, epsilon = call.args
    dtype, rank = call.dtype_of(x), len(tensor_of(x).shape)
    gamma = call.emit(_op.ones([int(channels)], dtype)) if weight is None else call.env[weight]
    beta = call.emit(_op.zeros([int(channels)], dtype)) if bias is None else call.env[bias]
    axes = list(range(2, rank))
    return (call.emit(_op.nn.group_norm(call.env[x], gamma, beta, int(groups), 1, axes, float(epsilon))),)


def _strided(call: TorchCall) -> Any:
    """A view of memory by strides, as a choice among the elements of a dense tensor."""
    x, size, stride = call.args[:3]
    if not tensor_of(x).is_contiguous():
        raise UnsupportedError("expected as_strided of a dense tensor, got other strides")
    index = np.asarray(call.argument(3, "storage_offset") or 0)
    for extent, step in zip(size, stride, strict=True):
        index = index[..., None] + np.arange(extent) * step
    flat = call.emit(_op.flatten(call.env[x]))
    return call.emit(_op.take(flat, relax.const(index.astype(np.int64)), axis=0))


def _distances(call: TorchCall) -> Any:
    """Euclidean distances of the rows of two matrices."""
    a, b, order = call.args[:3]
    if order != 2:
        raise UnsupportedError(f"expected Euclidean distances, got the norm of order {order}")
    left, right = call.emit(_op.expand_dims(call.env[a], -2)), call.emit(_op.expand_dims(call.env[b], -3))
    apart = call.emit(_op.subtract(left, right))
    return call.emit(_op.sqrt(call.emit(_op.sum(call.emit(_op.multiply(apart, apart)), [-1]))))


def _convolution(call: TorchCall) -> Any:
    """As TVM's, and transposed in three dimensions."""
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = call.args
    if not transposed or len(tensor_of(x).shape) != 5:
        return call.by_tvm("convolution")
    sizes = (list(stride), list(padding), list(extra), list(dilation), groups)
    out = call.emit(_op.nn.conv3d_transpose(call.env[x], call.env[weight], *sizes))
    if bias is None:
        return out
    return call.emit(_op.add(out, call.emit(_op.reshape(call.env[bias], [1, -1, 1, 1, 1]))))


def _scales(call: TorchCall) -> list[float]:
    """Source pixels per result pixel of each spatial dimension: those torch computes with."""
    factors = call.args[-1] if isinstance(call.args[-1], list | tuple) and call.args[1] is None else None
    sizes = zip(tensor_of(call.args[0]).shape[2:], call.value.shape[2:], strict=True)
    return [1 / factors[d] if factors else int(n) / int(m) for d, (n, m) in enumerate(sizes)]


def _exact(call: TorchCall) -> bool:
    """Return whether the scales are the quotients of the extents, as TVM's importer takes them to be."""
    sizes = zip(tensor_of(call.args[0]).shape[2:], call.value.shape[2:], strict=True)
    return all(
        abs(s * int(m) - int(n)) < 1e-6 * int(n) for s, (n, m) in zip(_scales(call), sizes, strict=True)
    )


def _nearest(call: TorchCall) -> Any:
    """Pixel i of the result is pixel floor(i * scale) of the source; of its middle where exact."""
    x = call.env[call.args[0]]
    middle = 0.5 if "exact" in call.name else 0.0
    shapes = zip(tensor_of(call.args[0]).shape[2:], call.value.shape[2:], strict=True)
    for d, ((n, m), scale) in enumerate(zip(shapes, _scales(call), strict=True)):
        index = [min(floor(np.float32(i + middle) * np.float32(scale)), int(n) - 1) for i in range(int(m))]
        if index != list(range(int(n))):
            x = call.emit(_op.take(x, relax.const(np.asarray(index, np.int64)), axis=d + 2))
    return x


def _bilinear(call: TorchCall) -> Any:
    """As TVM's where the scale is the quotient of the extents, else dimension by dimension."""
    corners = bool(call.args[2])
    if corners or _exact(call):
        return call.by_tvm("upsample_bilinear2d")
    x = call.env[call.args[0]]
    shapes = zip(tensor_of(call.args[0]).shape[2:], call.value.shape[2:], strict=True)
    for d, ((n, m), scale) in enumerate(zip(shapes, _scales(call), strict=True)):
        places = [max((i + 0.5) * scale - 0.5, 0.0) for i in range(int(m))]
        x = _mixed(call, x, d + 2, places, int(n))
    return x


def _mixed(call: TorchCall, x: Any, axis: int, places: Sequence[float], extent: int) -> Any:
    """Elements between pixels: each a mean of two neighbours by distance."""
    rank = len(call.value.shape)
    low = np.minimum(np.floor(places).astype(np.int64), extent - 1)
    high = np.minimum(low + 1, extent - 1)
    far = (np.asarray(places) - low).reshape([-1 if d == axis else 1 for d in range(rank)])
    below, above = (call.emit(_op.take(x, relax.const(index), axis=axis)) for index in (low, high))
    share = relax.const(far.astype(np.float32), call.dtype)
    return call.emit(_op.add(below, call.emit(_op.multiply(call.emit(_op.subtract(above, below)), share))))


def _bicubic(call: TorchCall) -> Any:
    if not call.args[2] and not _exact(call):
        raise UnsupportedError(
            "expected a bicubic resize to whole extents, got a scale factor that is rounded"
        )
    return call.by_tvm("upsample_bicubic2d")


def _grid_sample(call: TorchCall) -> Any:
    """Relax takes the coordinates as the channels of an image."""
    x, grid, mode, padding, corners = call.args[:5]
    moved = call.emit(_op.permute_dims(call.env[grid], [0, 3, 1, 2]))
    method, border = ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[padding]
    return call.emit(_op.image.grid_sample(call.env[x], moved, method, "NCHW", border, bool(corners)))


def _one_hot(call: TorchCall) -> Any:
    classes = call.argument(1, "num_classes", -1)
    if classes < 0:
        raise UnsupportedError("expected one_hot with num_classes: without it, values decide the shape")
    numbers = (relax.prim_value(value) for value in (1, 0))
    at = call.as_type(call.args[0], torch.int64)
    return call.emit(_op.one_hot(at, *numbers, int(classes), -1))


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
