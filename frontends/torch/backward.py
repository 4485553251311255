"""Operators of forward and backward graphs of torch.compile, taken apart into operators that can be imported.

Importing this module imports torch. Functions here are decompositions as torch calls them: tensors of torch
in, tensors of torch out, written with operators of ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

_aten = torch.ops.aten
#: beside ATen's core table: parts of these are core operators, too
_TORCHS = (
    _aten.native_batch_norm, _aten._native_batch_norm_legit, _aten._native_batch_norm_legit_functional,
    _aten._native_batch_norm_legit_no_training, _aten.native_layer_norm, _aten.native_group_norm,
    _aten._batch_norm_with_update, _aten._batch_norm_with_update_functional, _aten.batch_norm_backward,
    _aten.max_pool2d_with_indices, _aten.max_pool2d_with_indices_backward, _aten.rrelu_with_noise_backward,
)  # fmt: skip


def random_decompositions() -> dict[Any, Callable[..., Any]]:
    """Those that make random draws operators of their own, whose numbers torch may draw beforehand."""
    return {_aten.native_dropout.default: _native_dropout}


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Those for graphs that AOTAutograd traces where gradients are wanted."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table.update(get_decompositions(list(_TORCHS)))
    table[_aten.convolution_backward.default] = _convolution_backward
    table[_aten.avg_pool2d_backward.default] = _avg_pool2d_backward
    table[_aten._adaptive_avg_pool2d_backward.default] = _adaptive_avg_pool2d_backward
    table[_aten.upsample_nearest2d_backward.default] = _nearest_backward
    table[_aten.upsample_bilinear2d_backward.default] = _bilinear_backward
    table[_aten.replication_pad2d_backward.default] = _replication_pad2d_backward
    return table | random_decompositions()


def _convolution_backward(
    g: Any,
    x: Any,
    weight: Any,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """The gradient of the data is a convolution the other way round, that of weights one of both factors."""
    spatial = range(x.dim() - 2)
    stride, padding, dilation, output_padding = (
        [v[d if len(v) > 1 else 0] for d in spatial] for v in (stride, padding, dilation, output_padding)
    )
    dx = dw = db = None
    if output_mask[0]:
        if transposed:
            dx = _aten.convolution(
                g, weight, None, stride, padding, dilation, False, [0] * len(spatial), groups
            )
        else:
            rest = [
                x.shape[2 + d]
                - (
                    (g.shape[2 + d] - 1) * stride[d]
                    - 2 * padding[d]
                    + dilation[d] * (weight.shape[2 + d] - 1)
                    + 1
                )
                for d in spatial
            ]
            dx = _aten.convolution(g, weight, None, stride, padding, dilation, True, rest, groups)
    if output_mask[1]:
        # a transposed convolution is the gradient of one by its data: data and gradient change their roles
        data, other = (g, x) if transposed else (x, g)
        dw = _weight_gradient(data, other, weight.shape[2:], stride, padding, dilation, groups)
    if output_mask[2]:
        db = g.sum([0, *(2 + d for d in spatial)])
    return dx, dw, db


def _weight_gradient(
    x: Any,
    g: Any,
    taps: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Any:
    """[K, C / groups, *taps]: x convolved with g as the kernel, samples as channels, stride as dilation."""
    n, c, k = x.shape[0], x.shape[1] // groups, g.shape[1]
    size = list(x.shape[2:])
    data = x.reshape(n, groups, c, *size).transpose(0, 2).reshape(c, groups * n, *size)
    kernel = g.transpose(0, 1)
    if groups > 1:
        kernel = kernel.reshape(k, n, *g.shape[2:])
    zeros = [0] * len(size)
    out = _aten.convolution(data, kernel, None, dilation, padding, stride, False, zeros, groups)
    for d, extent in enumerate(taps):
        out = out.narrow(2 + d, 0, extent)
    return out.transpose(0, 1)


def _transposed(g: Any, matrix: Callable[[int], Any]) -> Any:
    """The gradient of the images of a map that is linear along rows and along columns: one product for each.

    matrix: by dimension of the images (0 and 1), [elements that the map makes, elements it makes them of].
    """
    return matrix(0).t().matmul(g).matmul(matrix(1))


def _avg_pool2d_backward(
    g: Any,
    x: Any,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    kernel, padding = _both(kernel_size), _both(padding)
    stride = _both(stride) if len(stride) else kernel

    def matrix(d: int) -> Any:
        extent, pad = x.shape[d - 2], padding[d]
        first = _numbers(g, g.shape[d - 2]) * stride[d] - pad
        covered = _covered(g, first, first + kernel[d], extent)
        if divisor_override:
            return covered
        # What counts: the window up to the end of the padding, or only its part inside the image.
        last = torch.clamp(first + kernel[d], max=extent + pad)
        if not count_include_pad:
            first, last = torch.clamp(first, min=0), torch.clamp(last, max=extent)
        return covered / (last - first).to(g.dtype)[:, None]

    return _transposed(g / divisor_override if divisor_override else g, matrix)


def _adaptive_avg_pool2d_backward(g: Any, x: Any) -> Any:
    """As for windows, from the floor of their first element to the ceiling of their last one."""

    def matrix(d: int) -> Any:
        windows, extent = g.shape[d - 2], x.shape[d - 2]
        number = _numbers(g, windows)
        first, last = number * extent // windows, (number * extent + extent + windows - 1) // windows
        return _covered(g, first, last, extent) / (last - first).to(g.dtype)[:, None]

    return _transposed(g, matrix)


def _nearest_backward(
    g: Any,
    output_size: Sequence[int],
    input_size: Sequence[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    def matrix(d: int) -> Any:
        made, extent, scale = output_size[d], input_size[d + 2], (scales_h, scales_w)[d]
        step = 1 / scale if scale else extent / made
        return _repeated(g, (_numbers(g, made, torch.float32) * step).floor(), extent)

    return _transposed(g, matrix)


def _replication_pad2d_backward(g: Any, x: Any, padding: Sequence[int]) -> Any:
    def matrix(d: int) -> Any:
        first = (padding[2], padding[0])[d]
        return _repeated(g, _numbers(g, g.shape[d - 2]) - first, x.shape[d - 2])

    return _transposed(g, matrix)


def _bilinear_backward(
    g: Any,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Any:
    def matrix(d: int) -> Any:
        made, extent, scale = output_size[d], input_size[d + 2], (scales_h, scales_w)[d]
        number = _numbers(g, made, torch.float32)
        if align_corners:
            source = number * ((extent - 1) / (made - 1) if made > 1 else 0.0)
        else:
            source = torch.clamp((number + 0.5) * (1 / scale if scale else extent / made) - 0.5, min=0.0)
        source = torch.clamp(source, max=extent - 1)[:, None]
        place = _numbers(g, extent, torch.float32)[None, :]
        return torch.clamp(1 - (source - place).abs(), min=0.0).to(g.dtype)

    return _transposed(g, matrix)


def _both(v: Sequence[int]) -> list[int]:
    return [v[0], v[0]] if len(v) == 1 else [v[0], v[1]]


def _numbers(g: Any, count: int, dtype: Any = torch.int64) -> Any:
    """0, 1, ... on the device of `g`."""
    return torch.arange(count, device=g.device, dtype=dtype)


def _covered(g: Any, first: Any, last: Any, extent: int) -> Any:
    """[windows, extent]: one where an element lies from `first` to below `last` of a window."""
    place = _numbers(g, extent)[None, :]
    return ((place >= first[:, None]) & (place < last[:, None])).to(g.dtype)


def _repeated(g: Any, source: Any, extent: int) -> Any:
    """[made, extent]: one where an element is a copy of another, of the number `source`, or the nearest."""
    source = torch.clamp(source, 0, extent - 1)[:, None]
    return (source == _numbers(g, extent, source.dtype)[None, :]).to(g.dtype)


def _native_dropout(x: Any, p: float, train: bool | None) -> Any:
    """Torch's masks: one draw of the generator for each element, which is made outside of the graph."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = _aten.bernoulli.p(torch.empty_like(x), 1 - p)
    return x * mask * (1 / (1 - p)), mask.to(torch.bool)
