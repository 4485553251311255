"""Relax's normalisations. 16-bit floats are computed in float32, as our graph ops do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relax.static import axes_in, axis_in, cast, held, reshaped, scalar, transposed
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.rules.layers import affine_of
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value


def _batch_norm(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """(normalised, mean, variance): with moving statistics left alone, or with those of the data.

    In training mode the moving statistics move towards the data's by the momentum.
    """
    data, gamma, beta, mean, variance = emit.tensors(args, 5)
    axis, momentum = axis_in(data, attrs.integer("axis", 1)), attrs.real("momentum", 0.1)
    affine = affine_of(attrs)
    if not attrs.flag("training", False):
        return (
            emit.value("batch_norm", data, gamma, beta, mean, variance, axis=axis, **affine),
            mean,
            variance,
        )
    axes = tuple(d for d in range(data.tensor.rank) if d != axis)
    centre = emit.value("mean", data, axis=axes, keepdims=True)
    spread = emit.value("variance", data, centre, axis=axes, keepdims=False)
    centre = reshaped(emit, centre, mean.tensor.shape)
    out = emit.value("batch_norm", data, gamma, beta, centre, spread, axis=axis, **affine)
    return (out, _moved(emit, mean, centre, momentum), _moved(emit, variance, spread, momentum))


def _moved(emit: Emitter, moving: Value, now: Value, momentum: float) -> Value:
    kept = emit.value("multiply", moving, scalar(emit, 1 - momentum, moving))
    return emit.value("add", kept, emit.value("multiply", now, scalar(emit, momentum, moving)))


def _layer_norm(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Several axes are moved to the end and count as one."""
    data, gamma, beta = emit.tensors(args, 3)
    given = attrs.integers("axes", (-1,))
    axes = tuple(axis_in(data, axis) for axis in given)
    affine = affine_of(attrs)
    if len(axes) == 1:
        return emit.value("layer_norm", data, gamma, beta, axis=axes[0], **affine)
    kept = [d for d in range(data.tensor.rank) if d not in axes]
    order = (*kept, *axes)
    moved = transposed(emit, data, order)
    size = prod(data.tensor.shape[d] for d in axes)
    flat = reshaped(emit, moved, (*(data.tensor.shape[d] for d in kept), size))
    vectors = [reshaped(emit, v, (size,)) for v in (gamma, beta)]
    normal = reshaped(emit, emit.value("layer_norm", flat, *vectors, axis=-1, **affine), moved.tensor.shape)
    return transposed(emit, normal, tuple(order.index(d) for d in range(data.tensor.rank)))


def _group_norm(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Over all axes but the batch (the first), with the channels in groups."""
    data, gamma, beta = emit.tensors(args, 3)
    channels = axis_in(data, attrs.integer("channel_axis"))
    _check_axes("group_norm", data, channels, axes_in(data, attrs.integers("axes")))
    groups = attrs.integer("num_groups")
    return emit.value("group_norm", data, gamma, beta, axis=channels, num_groups=groups, **affine_of(attrs))


def _check_axes(name: str, data: Value, channels: int, given: Sequence[int]) -> None:
    """All axes but the batch (the first) and the channels; an axis of extent 1 may count as well."""
    shape = data.tensor.shape
    axes = tuple(d for d in given if shape[d] != 1)
    others = tuple(d for d in range(1, data.tensor.rank) if d != channels and shape[d] != 1)
    if axes != others or channels == 0:
        raise UnsupportedError(f"expected {name} over axes {others} of {data.type}, got {axes}")


def _instance_norm(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Over all axes but the batch (the first) and the channels; over the batch as well is TVM's batch norm
    without moving statistics.
    """
    data, gamma, beta = emit.tensors(args, 3)
    channels = axis_in(data, attrs.integer("channel_axis"))
    axes, affine = axes_in(data, attrs.integers("axes")), affine_of(attrs)
    others = tuple(d for d in range(data.tensor.rank) if d != channels)
    if data.tensor.shape[0] == 1 or set(axes) != set(others):
        _check_axes("instance_norm", data, channels, axes)
        return emit.value("instance_norm", data, gamma, beta, axis=channels, **affine)
    order = (channels, *others)
    moved = transposed(emit, data, order)
    flat = reshaped(emit, moved, (1, data.tensor.shape[channels], prod(data.tensor.shape[d] for d in others)))
    normal = reshaped(
        emit, emit.value("instance_norm", flat, gamma, beta, axis=1, **affine), moved.tensor.shape
    )
    return transposed(emit, normal, tuple(order.index(d) for d in range(data.tensor.rank)))


def _rms_norm(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """x / sqrt(mean(x^2) + epsilon) * weight, with a weight along the axes."""
    data, weight = emit.tensors(args, 2)
    axes = axes_in(data, attrs.integers("axes", (-1,)))
    x = held(emit, data)
    shape = [n if d in axes else 1 for d, n in enumerate(data.tensor.shape)]
    if prod(shape) != weight.tensor.size:
        raise InputError(f"expected a weight along axes {axes} of {data.type}, got {weight.type}")
    square = emit.value("mean", emit.value("multiply", x, x), axis=axes, keepdims=True)
    factor = emit.value("rsqrt", emit.value("add", square, scalar(emit, attrs.real("epsilon", 1e-5), x)))
    weight = reshaped(emit, cast(emit, weight, x.tensor.dtype), shape)
    return cast(emit, emit.value("multiply", emit.value("multiply", x, factor), weight), data.tensor.dtype)


RULES: Mapping[str, Rule] = {
    "nn.batch_norm": _batch_norm,
    "nn.layer_norm": _layer_norm,
    "nn.group_norm": _group_norm,
    "nn.instance_norm": _instance_norm,
    "nn.rms_norm": _rms_norm,
}
