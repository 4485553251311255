"""Gradients of pooling: every element gathers from the windows that hold it; nothing is added atomically."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.ir.graph_code import Tensor
from tilewright.ir.graph_ops.adaptive_pooling import cell, image_axes
from tilewright.passes.graph.gradients.registry import Backward, accumulated, derived, gradient
from tilewright.passes.graph.gradients.rules.resizing import interpolated_back


def _axes(b: Backward) -> tuple[int, ...]:
    """Positions of the spatial dimensions."""
    return image_axes(str(b.attr("layout")), b.x[0].rank - 2)


def _image(b: Backward) -> tuple[int, ...]:
    return tuple(b.x[0].shape[d] for d in _axes(b))


def _spatial(b: Backward) -> str:
    return f"{b.x[0].rank - 2}d"


@gradient("graph.max_pool1d", "graph.max_pool2d", "graph.max_pool3d")
def max_pool(b: Backward) -> Sequence[Tensor | None]:
    """The first of the largest elements of a window receives its g, a nan as such."""
    attrs = b.op.attributes
    position = b.w.op(f"max_pool{_spatial(b)}_position", b.x[0], **attrs)
    return [b.w.op(f"max_pool{_spatial(b)}_grad", b.g, position, image=_image(b), **attrs)]


@gradient("graph.avg_pool1d", "graph.avg_pool2d", "graph.avg_pool3d")
def avg_pool(b: Backward) -> Sequence[Tensor | None]:
    """Every element of a window receives g over the number that counts."""
    return [b.w.op(f"avg_pool{_spatial(b)}_grad", b.g, image=_image(b), **b.op.attributes)]


@gradient("graph.avg_pool1d_grad", "graph.avg_pool2d_grad", "graph.avg_pool3d_grad")
def avg_pool_gradient(b: Backward) -> Sequence[Tensor | None]:
    """The pooling itself: it is the transpose of its gradient."""
    attrs = {k: v for k, v in b.op.attributes.items() if k != "image"}
    return [b.w.op(b.op.name.removeprefix("graph.").removesuffix("_grad"), b.g, **attrs)]


@gradient(*(f"graph.global_avg_pool{n}d" for n in (1, 2, 3)))
def global_avg_pool(b: Backward) -> Sequence[Tensor | None]:
    """Every element receives g over their number."""
    x = b.x[0]
    return [(b.g / (x.size // max(1, b.g.size))).broadcast_to(*x.shape)]


@gradient(*(f"graph.global_max_pool{n}d" for n in (1, 2, 3)))
def global_max_pool(b: Backward) -> Sequence[Tensor | None]:
    """The first of the largest elements of an image receives its g, a nan as such."""
    x, axes = b.x[0], _axes(b)
    position = b.w.op("argmax", x, axis=axes, keepdims=True)
    image = tuple(x.shape[d] if d in axes else 1 for d in range(x.rank))
    numbers = b.w.constant(np.arange(np.prod(image), dtype=np.int32), "positions").reshape(*image)
    return [position.equal(numbers).where(b.g, 0)]


def _ratios(b: Backward) -> tuple[int, ...] | None:
    """Elements per cell along each spatial dimension; None where cells overlap or differ."""
    pairs = list(zip(_image(b), b.op.integers("output_size"), strict=True))
    return None if any(size % cells for size, cells in pairs) else tuple(n // k for n, k in pairs)


def _tiles(b: Backward, ratios: Sequence[int]) -> dict[str, Any]:
    """Attributes of windows that lie side by side."""
    return {"pool_size": tuple(ratios), "strides": tuple(ratios), "layout": b.attr("layout")}


@gradient(*(f"graph.adaptive_max_pool{n}d" for n in (1, 2, 3)))
def adaptive_max_pool(b: Backward) -> Sequence[Tensor | None]:
    """That of a max_pool where the image divides evenly."""
    ratios = _ratios(b)
    if ratios is None:
        return derived(b)
    attrs = _tiles(b, ratios)
    position = b.w.op(f"max_pool{_spatial(b)}_position", b.x[0], **attrs)
    return [b.w.op(f"max_pool{_spatial(b)}_grad", b.g, position, image=_image(b), **attrs)]


@gradient(*(f"graph.adaptive_avg_pool{n}d" for n in (1, 2, 3)))
def adaptive_avg_pool(b: Backward) -> Sequence[Tensor | None]:
    """That of an avg_pool where the image divides evenly, else products with the shares of each dimension."""
    ratios = _ratios(b)
    if ratios is not None:
        return [b.w.op(f"avg_pool{_spatial(b)}_grad", b.g, image=_image(b), **_tiles(b, ratios))]
    shares = {
        d: _shares(size, cells)
        for d, size, cells in zip(_axes(b), _image(b), b.op.integers("output_size"), strict=True)
    }
    return [interpolated_back(accumulated(b.g), shares).cast(b.x[0].dtype)]


def _shares(size: int, cells: int) -> np.ndarray:
    """[cells, size]: the share of each element in the mean of each cell."""
    out = np.zeros((cells, size))
    for i in range(cells):
        start, end = cell(i, size, cells)
        out[i, start:end] = 1 / (end - start)
    return out
