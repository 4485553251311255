"""Relax operators of neural-network layers: windows, products, attention, normalisation, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt

import numpy as np

from tilewright.frontends.importing.call import Call, Rule, both_sided, repeated
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.products import matrix_product, over_rows
from tilewright.frontends.relax.operands import axes_in, axis_in, integers
from tilewright.frontends.tvm.rules import image, layers, losses, windows
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.einsum import explicit_equation
from tilewright.ir.nodes import Attr, Value
from tilewright.ir.types import FLOATS

_SHARED = {**image.RULES, **layers.RULES, **losses.RULES, **windows.RULES}
#: operators that Relax calls as Relay does
_AS_RELAY = """
    nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose
    nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.batch_flatten nn.softmax
    nn.log_softmax nn.cross_entropy_with_logits image.grid_sample vision.roi_pool
"""
_CAUSAL = ("TopLeft", "BottomRight")


def _pool(kind: str, spatial: int) -> Rule:
    def rule(emit: Emitter, call: Call) -> Result:
        """As Relay's, without windows that start behind the data: Relax does not round up to them.

        Relax gives all pools the attributes of an average.
        """
        if kind == "max":
            call.drop("count_include_pad")
        window = call.taken("strides", "padding", "layout")
        for name, value in window.items():
            call.give(name, value)
        out: Value = windows.RULES[f"nn.{kind}_pool{spatial}d"](emit, call)
        strides = repeated(window.get("strides", (1,)), spatial, "strides")
        padding = both_sided(window.get("padding", (0,)), spatial)
        layout, x, size = str(window["layout"]), call.tensor(0), list(out.tensor.shape)
        for dim, stride, before in zip("DHW"[-spatial:], strides, padding, strict=False):
            d = layout.index(dim)
            size[d] = min(size[d], -(-(x.tensor.shape[d] + before) // stride))
        if tuple(size) == out.tensor.shape:
            return out
        zeros = (0,) * len(size)
        return emit.value("strided_slice", out, begin=zeros, size=tuple(size), strides=(1,) * len(size))

    return rule


def _dropout(emit: Emitter, call: Call) -> Result:
    """At inference nothing is dropped: Relax's mask is one everywhere."""
    x = call.single()
    return (
        emit.value("dropout", x, rate=call.real("rate", 0.5)),
        emit.full(1, x.tensor.dtype, x.tensor.shape),
    )


def _nll_loss(emit: Emitter, call: Call) -> Result:
    """Weights left out are ones."""
    if call.count == 2:
        x = call.tensor(0).tensor
        if x.rank < 1:
            raise InputError(f"expected predictions of classes, got {x}")
        call.inputs = (*call.inputs, emit.full(1, x.dtype, (x.shape[min(1, x.rank - 1)],)))
    return losses.RULES["nn.nll_loss"](emit, call)


def _resize(spatial: int) -> Rule:
    def rule(emit: Emitter, call: Call) -> Result:
        """Relay's, with the size as an operand. How to round matters to the nearest neighbour only."""
        call.give("size", integers(emit, call, 1, "the size"))
        call.inputs = call.inputs[:1]
        method = call.text("method", "linear")
        call.give("method", method)
        if method != "nearest_neighbor":
            call.drop("rounding_method")
        return image.resize(spatial)(emit, call)

    return rule


def _affine_grid(emit: Emitter, call: Call) -> Result:
    """Relay's, whose outermost points are the centres of the corner pixels."""
    if not call.flag("align_corners", True):
        raise UnsupportedError("expected a grid with align_corners, got one without")
    return emit.value("affine_grid", call.tensor(0), target_shape=integers(emit, call, 1, "the size"))


def _matmul(emit: Emitter, call: Call) -> Result:
    a, b = call.tensors(2)
    return matrix_product(emit, a, b, call.dtype("out_dtype") or None)


def _outer(emit: Emitter, call: Call) -> Result:
    a, b = call.tensors(2)
    return emit.value("multiply", emit.reshape(a, (a.tensor.size, 1)), emit.reshape(b, (1, b.tensor.size)))


def _einsum(emit: Emitter, call: Call) -> Result:
    operands = call.fields()
    equation = explicit_equation(call.text("subscripts"), [v.tensor.rank for v in operands])
    return emit.value("einsum", *operands, equation=equation)


def _attention(emit: Emitter, call: Call) -> Result:
    """softmax(q k^T scale + bias) v per head; operands are [batch, sequence, heads, depth].

    Scores are held in float32 where the operands are 16 bits wide.
    """
    q, k, v = (emit.transpose(call.tensor(i), (0, 2, 1, 3)) for i in range(3))
    dtype, depth = q.tensor.dtype, q.tensor.shape[-1]
    if call.integer("window_size", None) is not None:
        raise UnsupportedError("expected attention over the whole sequence, got a sliding window")
    scale = call.real("scale", 1 / sqrt(max(depth, 1)))
    wide = "f32" if dtype in ("f16", "bf16") else dtype
    scores = emit.op("multiply", emit.value("matmul", q, k, transpose_b=True, out_dtype=wide), scale)
    bias, causal = call.optional(3), call.text("causal_mask", "")
    if bias is not None:
        scores = emit.value("add", scores, emit.cast(bias, wide))
    if causal:
        scores = _masked(emit, scores, causal)
    weights = emit.cast(emit.value("softmax", scores, axis=3), dtype)
    return emit.transpose(emit.value("matmul", weights, v), (0, 2, 1, 3))


def _masked(emit: Emitter, scores: Value, causal: str) -> Value:
    """Scores of keys that come later than the query become -inf."""
    if causal not in _CAUSAL or scores.tensor.dtype not in FLOATS:
        raise InputError(f"expected causal_mask among {', '.join(_CAUSAL)}, got '{causal}'")
    queries, keys = scores.tensor.shape[-2:]
    offset = abs(queries - keys) if causal == "BottomRight" else 0
    return emit.where(
        emit.constant(np.tril(np.ones((queries, keys), np.bool_), offset)), scores, -float("inf")
    )


def _affine(call: Call) -> dict[str, Attr]:
    return {name: read(call, name) for name, read in layers.AFFINE.items()}


def _batch_norm(emit: Emitter, call: Call) -> Result:
    """(normalised, mean, variance): with moving statistics left alone, or with those of the data.

    In training mode the moving statistics move towards the data's by the momentum.
    """
    data, gamma, beta, mean, variance = call.tensors(5)
    axis, momentum = axis_in(data, call.integer("axis", 1)), call.real("momentum", 0.1)
    affine = _affine(call)
    if not call.flag("training", False):
        out = emit.value("batch_norm", data, gamma, beta, mean, variance, axis=axis, **affine)
        return (out, mean, variance)
    emit.numbers.update((mean, variance))
    axes = tuple(d for d in range(data.tensor.rank) if d != axis)
    centre = emit.value("mean", data, axis=axes, keepdims=True)
    spread = emit.value("variance", data, centre, axis=axes, keepdims=False)
    centre = emit.reshape(centre, mean.tensor.shape)
    out = emit.value("batch_norm", data, gamma, beta, centre, spread, axis=axis, **affine)
    return (out, _moved(emit, mean, centre, momentum), _moved(emit, variance, spread, momentum))


def _moved(emit: Emitter, moving: Value, now: Value, momentum: float) -> Value:
    return emit.value("add", emit.op("multiply", moving, 1 - momentum), emit.op("multiply", now, momentum))


def _layer_norm(emit: Emitter, call: Call) -> Result:
    """Several axes are moved to the end and count as one."""
    data, gamma, beta = call.tensors(3)
    axes = tuple(axis_in(data, axis) for axis in call.integers("axes", (-1,)))
    affine = _affine(call)
    if len(axes) == 1:
        return emit.value("layer_norm", data, gamma, beta, axis=axes[0], **affine)
    vectors = [emit.reshape(v, (v.tensor.size,)) for v in (gamma, beta)]
    return over_rows(emit, data, axes, lambda x: emit.value("layer_norm", x, *vectors, axis=-1, **affine))


def _group_norm(emit: Emitter, call: Call) -> Result:
    """Over all axes but the batch (the first), with the channels in groups."""
    data, gamma, beta = call.tensors(3)
    channels = axis_in(data, call.integer("channel_axis"))
    _check_axes("group_norm", data, channels, axes_in(data, call.integers("axes")))
    groups = call.integer("num_groups")
    return emit.value("group_norm", data, gamma, beta, axis=channels, num_groups=groups, **_affine(call))


def _check_axes(name: str, data: Value, channels: int, reduced: Sequence[int]) -> None:
    """All axes but the batch (the first) and the channels; an axis of extent 1 may count as well."""
    shape = data.tensor.shape
    axes = tuple(d for d in reduced if shape[d] != 1)
    others = tuple(d for d in range(1, data.tensor.rank) if d != channels and shape[d] != 1)
    if axes != others or channels == 0:
        raise UnsupportedError(f"expected {name} over axes {others} of {data.type}, got {axes}")


def _instance_norm(emit: Emitter, call: Call) -> Result:
    """Over all axes but the batch (the first) and the channels; over the batch as well is TVM's batch norm
    without moving statistics.
    """
    data, gamma, beta = call.tensors(3)
    channels = axis_in(data, call.integer("channel_axis"))
    axes, affine = axes_in(data, call.integers("axes")), _affine(call)
    others = tuple(d for d in range(data.tensor.rank) if d != channels)
    if data.tensor.shape[0] == 1 or set(axes) != set(others):
        _check_axes("instance_norm", data, channels, axes)
        return emit.value("instance_norm", data, gamma, beta, axis=channels, **affine)

    def normal(rows: Value) -> Value:
        alone = emit.reshape(rows, (1, *rows.tensor.shape))
        return emit.value("instance_norm", alone, gamma, beta, axis=1, **affine)

    return over_rows(emit, data, others, normal)


def _rms_norm(emit: Emitter, call: Call) -> Result:
    """x / sqrt(mean(x^2) + epsilon) * weight, with a weight along the axes."""
    data, weight = call.tensors(2)
    axes = axes_in(data, call.integers("axes", (-1,)))
    x = emit.widened(data)
    shape = [n if d in axes else 1 for d, n in enumerate(data.tensor.shape)]
    if prod(shape) != weight.tensor.size:
        raise InputError(f"expected a weight along axes {axes} of {data.type}, got {weight.type}")
    square = emit.value("mean", emit.value("multiply", x, x), axis=axes, keepdims=True)
    factor = emit.value("rsqrt", emit.op("add", square, call.real("epsilon", 1e-5)))
    weight = emit.reshape(emit.cast(weight, x.tensor.dtype), shape)
    return emit.cast(emit.value("multiply", emit.value("multiply", x, factor), weight), data.tensor.dtype)


RULES: Mapping[str, Rule] = {
    **{name: _SHARED[name] for name in _AS_RELAY.split()},
    **{f"nn.{kind}_pool{n}d": _pool(kind, n) for kind in ("max", "avg") for n in (1, 2, 3)},
    "image.affine_grid": _affine_grid,
    "image.resize2d": _resize(2),
    "image.resize3d": _resize(3),
    "nn.dropout": _dropout,
    "nn.nll_loss": _nll_loss,
    "matmul": _matmul,
    "outer": _outer,
    "einsum": _einsum,
    "nn.attention": _attention,
    "nn.attention_bias": _attention,
    "nn.batch_norm": _batch_norm,
    "nn.layer_norm": _layer_norm,
    "nn.group_norm": _group_norm,
    "nn.instance_norm": _instance_norm,
    "nn.rms_norm": _rms_norm,
}
