"""ONNX operators that pool: over windows, over the whole image, and the inverse of a maximum."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.frontends.importing.emitter import Result, bounded
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rule, Rules
from tilewright.frontends.onnx.windows import DATA, Geometry, geometry, pooled, spatial_rank
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.layouts import windows
from tilewright.ir.graph_ops.operands import lowest
from tilewright.ir.nodes import Attr, Value


def _attributes(g: Geometry, n: int, ceil: bool) -> dict[str, Attr]:
    return {
        "pool_size": g.kernel,
        "strides": g.strides,
        "padding": g.padding,
        "dilation": g.dilation,
        "layout": DATA[n],
        "ceil_mode": ceil,
    }


def _pooling(node: Node) -> tuple[Value, int, Geometry, Geometry, bool]:
    """The data, its spatial rank, the windows as the node says and as they are taken, and their rounding."""
    x = node.tensor(0)
    sizes, n = x.tensor.shape[2:], spatial_rank(x.tensor.shape)
    plain = geometry(node, sizes, node.integers("kernel_shape"))
    g, ceil = pooled(plain, sizes, node.flag("ceil_mode", False))
    return x, n, plain, g, ceil


def _max_pool(emit: FoldingEmitter, node: Node) -> Result:
    x, n, _, g, ceil = _pooling(node)
    columns_first = node.flag("storage_order", False)
    out = emit.value(f"max_pool{n}d", x, **_attributes(g, n, ceil))
    return (out, _positions(emit, x, g, ceil, columns_first)) if node.wants(1) else out


def _positions(emit: FoldingEmitter, x: Value, g: Geometry, ceil: bool, columns_first: bool) -> Value:
    """The place of the largest element of each window in the flattened tensor."""
    batch, channels, *sizes = x.tensor.shape
    along = windows(sizes, g.kernel, g.strides, g.padding, g.dilation, ceil)
    counts, taps = [w.count for w in along], [w.kernel for w in along]
    bounded(*counts, *taps)
    # for every window and tap: its place along each dimension, [windows, taps]
    starts = np.indices(counts).reshape(len(sizes), -1, 1)
    steps = np.indices(taps).reshape(len(sizes), 1, -1)
    place = [starts[d] * w.stride - w.before + steps[d] * w.dilation for d, w in enumerate(along)]
    inside = np.logical_and.reduce([(p >= 0) & (p < n) for p, n in zip(place, sizes, strict=True)])
    flat = np.zeros(inside.shape, np.int64)
    numbered = np.zeros(inside.shape, np.int64)
    order = range(len(sizes))
    for d in order:
        flat = flat * sizes[d] + np.clip(place[d], 0, max(0, sizes[d] - 1))
    for d in reversed(order) if columns_first else order:
        numbered = numbered * sizes[d] + np.clip(place[d], 0, max(0, sizes[d] - 1))
    rows = emit.reshape(x, (batch, channels, prod(sizes)))
    seen = emit.value("take", rows, emit.constant(flat), axis=2, mode="fast")
    seen = emit.value("where", emit.constant(inside), seen, emit.full(lowest(x.tensor.dtype), x.tensor.dtype))
    tap = emit.cast(emit.value("argmax", seen, axis=(3,), keepdims=True), "i64")
    table = emit.broadcast(emit.constant(numbered), (batch, channels, *numbered.shape))
    place_in_image = emit.reshape(emit.value("gather", table, tap, axis=3), (batch, channels, *counts))
    offsets = np.arange(batch * channels).reshape(batch, channels, *(1,) * len(sizes)) * prod(sizes)
    return emit.value("add", place_in_image, emit.constant(offsets))


def _avg_pool(emit: FoldingEmitter, node: Node) -> Result:
    x, n, plain, g, ceil = _pooling(node)
    counted = node.flag("count_include_pad", False)
    if counted and g is not plain:
        raise UnsupportedError("expected ceil_mode to drop windows in all dimensions or in none")
    return emit.value(f"avg_pool{n}d", x, **_attributes(g, n, ceil), count_include_pad=counted)


def _lp_pool(emit: FoldingEmitter, node: Node) -> Result:
    """The p-th root of sums of p-th powers: means times the size of the window, over explicit zeros."""
    (x, n, _, g, ceil), p = _pooling(node), node.integer("p", 2)
    sizes = x.tensor.shape[2:]
    along = windows(sizes, g.kernel, g.strides, g.padding, g.dilation, ceil)
    after = [
        max(0, (w.count - 1) * w.stride + (w.kernel - 1) * w.dilation + 1 - w.before - w.size) for w in along
    ]
    powers = _power(emit, emit.value("abs", x), p)
    before = tuple(w.before for w in along)
    if any((*before, *after)):
        powers = emit.value("pad", powers, pad_before=(0, 0, *before), pad_after=(0, 0, *after))
    plain = Geometry(g.kernel, g.strides, g.dilation, (0,) * (2 * n))
    mean = emit.value(f"avg_pool{n}d", powers, **_attributes(plain, n, False))
    mean = _cropped(emit, mean, [w.count for w in along])
    total = emit.value("multiply", mean, emit.full(prod(g.kernel), x.tensor.dtype))
    return _power(emit, total, 1 / p)


def _cropped(emit: FoldingEmitter, x: Value, counts: Sequence[int]) -> Value:
    for d, count in enumerate(counts):
        x = emit.cut(x, d + 2, 0, count)
    return x


def _power(emit: FoldingEmitter, x: Value, p: float) -> Value:
    if p in (1, 2, 0.5):
        return x if p == 1 else emit.value("multiply", x, x) if p == 2 else emit.value("sqrt", x)
    return emit.op("power", x, p)


def _global(kind: str) -> Rule:
    def rule(emit: FoldingEmitter, node: Node) -> Result:
        x = node.tensor(0)
        axes = tuple(range(2, x.tensor.rank))
        if 1 <= len(axes) <= 3:
            return emit.value(f"global_{kind}_pool{len(axes)}d", x, layout=DATA[len(axes)])
        return emit.value("mean" if kind == "avg" else "max", x, axis=axes, keepdims=True)

    return rule


def _global_lp(emit: FoldingEmitter, node: Node) -> Result:
    x, p = node.tensor(0), node.integer("p", 2)
    powers = _power(emit, emit.value("abs", x), p)
    total = emit.value("sum", powers, axis=tuple(range(2, x.tensor.rank)), keepdims=True)
    return _power(emit, total, 1 / p)


def _max_unpool(emit: FoldingEmitter, node: Node) -> Result:
    """Elements go where MaxPool found them in the tensor it pooled; zeros elsewhere."""
    x, indices = node.tensor(0), node.tensor(1)
    batch, channels, *sizes = x.tensor.shape
    g = geometry(node, sizes, node.integers("kernel_shape"))
    n = len(sizes)
    pooled = [
        (size - 1) * g.strides[d] - g.padding[d] - g.padding[d + n] + g.reach[d]
        for d, size in enumerate(sizes)
    ]
    inferred = (batch, channels, *pooled)
    shape = emit.integers(node.tensor(2), "output_shape") if node.has(2) else inferred
    if len(shape) != len(inferred):
        raise InputError(f"expected an output_shape of {len(inferred)} extents, got {shape}")
    empty = emit.full(0, x.tensor.dtype, (prod(inferred),))
    flat, values = emit.reshape(indices, (x.tensor.size,)), emit.reshape(x, (x.tensor.size,))
    if tuple(shape) != inferred:
        # indices count in the tensor pooled; in a larger result the same places lie elsewhere
        table = np.arange(prod(shape)).reshape(shape)[tuple(slice(s) for s in inferred)].reshape(-1)
        flat = emit.value("take", emit.constant(table), flat, axis=0, mode="wrap")
        empty = emit.full(0, x.tensor.dtype, (prod(shape),))
    placed = emit.value("scatter_elements", empty, flat, values, axis=0)
    return emit.reshape(placed, shape)


RULES: Rules = {
    "AveragePool": _avg_pool,
    "GlobalAveragePool": _global("avg"),
    "GlobalLpPool": _global_lp,
    "GlobalMaxPool": _global("max"),
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
}
