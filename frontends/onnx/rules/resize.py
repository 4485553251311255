"""ONNX Resize and Upsample, as sums of weighted picks along one axis after the other: all taps are static."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.frontends.importing.emitter import Result, bounded
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rules
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.operands import accumulator_dtype, axes_of
from tilewright.ir.nodes import Value
from tilewright.ir.types import FLOATS, storage_dtype

_TRANSFORMS = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_half_pixel_for_nn", "tf_crop_and_resize",
)  # fmt: skip
_NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
_POLICIES = ("stretch", "not_larger", "not_smaller")


@dataclass(frozen=True, slots=True)
class _Options:
    mode: str
    transform: str
    nearest: str
    alpha: float
    exclude: bool
    antialias: bool
    extrapolation: float


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis: extents before and after, their ratio as given, and the region in fractions."""

    size: int
    target: int
    scale: float
    start: float
    end: float


def _coordinates(axis: _Axis, transform: str) -> np.ndarray:
    """The places of the elements of the result in the source, in float64."""
    x, n, m = np.arange(axis.target, dtype=np.float64), axis.size, axis.target
    match transform:
        case "align_corners":
            # with a scale that does not give a whole extent, the corners are those of the exact extent
            length = axis.scale * n
            return x * (n - 1) / (length - 1) if length != 1 else np.zeros(m)
        case "asymmetric":
            return x / axis.scale
        case "tf_half_pixel_for_nn":
            return (x + 0.5) / axis.scale
        case "tf_crop_and_resize" if m == 1:
            return np.full(1, 0.5 * (axis.start + axis.end) * (n - 1))
        case "tf_crop_and_resize":
            return axis.start * (n - 1) + x * (axis.end - axis.start) * (n - 1) / (m - 1)
        case "pytorch_half_pixel" if m == 1:
            return np.full(1, -0.5)
        case "half_pixel_symmetric":
            adjustment = m / (axis.scale * n)
            return n / 2 * (1 - adjustment) + (x + 0.5) / axis.scale - 0.5
    return (x + 0.5) / axis.scale - 0.5


def _nearest(x: np.ndarray, rounding: str) -> np.ndarray:
    match rounding:
        case "round_prefer_floor":
            return np.ceil(x - 0.5)
        case "round_prefer_ceil":
            return np.floor(x + 0.5)
        case "floor":
            return np.floor(x)
    return np.ceil(x)


def _kernel(distance: np.ndarray, options: _Options) -> np.ndarray:
    """The weight of an element at a distance: a hat, or cubic convolution (Keys, 1981)."""
    d = np.abs(distance)
    if options.mode == "linear":
        return np.maximum(0.0, 1 - d)
    a = options.alpha
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _taps(x: np.ndarray, axis: _Axis, options: _Options) -> tuple[np.ndarray, np.ndarray]:
    """Elements and their weights [taps, target]; elements outside are those at the edge, or weigh nothing."""
    if options.mode == "nearest":
        return np.clip(_nearest(x, options.nearest), 0, axis.size - 1)[None], np.ones((1, len(x)))
    stretch = min(1.0, axis.scale) if options.antialias else 1.0
    reach = (1 if options.mode == "linear" else 2) / stretch
    first = np.floor(x - reach).astype(np.int64) + 1
    places = first + np.arange(2 * int(np.ceil(reach)) + (1 if stretch < 1 else 0))[:, None]
    weights = _kernel((places - x) * stretch, options)
    if options.exclude:
        weights = np.where((places < 0) | (places >= axis.size), 0.0, weights)
    if options.exclude or stretch < 1:
        weights = weights / weights.sum(axis=0)
    weighing = np.any(weights != 0, axis=1)
    return np.clip(places[weighing], 0, axis.size - 1), weights[weighing]


def _resized_axis(emit: FoldingEmitter, x: Value, d: int, axis: _Axis, options: _Options) -> Value:
    bounded(axis.target)
    at = _coordinates(axis, options.transform)
    places, weights = _taps(at, axis, options)
    total: Value | None = None
    for place, weight in zip(places.astype(np.int64), weights, strict=True):
        picked = emit.value("take", x, emit.constant(place), axis=d, mode="fast")
        if options.mode != "nearest":
            factor = emit.constant(weight.astype(storage_dtype(x.tensor.dtype)))
            picked = emit.value("multiply", picked, emit.along(factor, d, x.tensor.rank))
        total = picked if total is None else emit.value("add", total, picked)
    assert total is not None
    if options.transform == "tf_crop_and_resize":
        outside = (at < 0) | (at > axis.size - 1)
        if outside.any():
            mask = emit.along(emit.constant(outside), d, x.tensor.rank)
            total = emit.value("where", mask, emit.full(options.extrapolation, x.tensor.dtype), total)
    return total


def _targets(
    shape: Sequence[int], axes: Sequence[int], scales: Sequence[float], sizes: Sequence[int], policy: str
) -> list[tuple[int, float]]:
    """Extent and scale along each of `axes`."""
    if bool(scales) == bool(sizes):
        raise InputError("expected either scales or sizes")
    if len(scales or sizes) != len(axes):
        raise InputError(f"expected one scale or size per axis of {tuple(axes)}, got {scales or sizes}")
    if scales:
        return [(int(np.floor(shape[d] * s + 1e-9)), s) for d, s in zip(axes, scales, strict=True)]
    if policy == "stretch":
        return [(n, n / max(1, shape[d])) for d, n in zip(axes, sizes, strict=True)]
    ratios = [n / max(1, shape[d]) for d, n in zip(axes, sizes, strict=True)]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [(int(np.floor(scale * shape[d] + 0.5)), scale) for d in axes]


def _resize(emit: FoldingEmitter, node: Node) -> Result:
    """Version 10 has scales only, and coordinates that are divided by them."""
    x = node.tensor(0)
    rank, shape = x.tensor.rank, x.tensor.shape
    modern = node.opset >= 11
    options = _Options(
        node.choice("mode", ("nearest", "linear", "cubic"), "nearest"),
        node.choice(
            "coordinate_transformation_mode", _TRANSFORMS, "half_pixel" if modern else "asymmetric"
        ),
        node.choice("nearest_mode", _NEAREST, _NEAREST[0] if modern else "floor"),
        node.real("cubic_coeff_a", -0.75), node.flag("exclude_outside", False),
        node.flag("antialias", False), node.real("extrapolation_value", 0.0),
    )  # fmt: skip
    policy = node.choice("keep_aspect_ratio_policy", _POLICIES, "stretch")
    axes = axes_of(node.integers("axes", tuple(range(rank))), rank, "axes")
    at = 2 if modern else 1
    scales = _numbers(emit, node, at, "scales")
    sizes = tuple(int(n) for n in _numbers(emit, node, 3, "sizes")) if modern else ()
    cropping = options.transform == "tf_crop_and_resize"
    roi = _numbers(emit, node, 1, "roi") if modern and cropping else (0.0,) * len(axes) + (1.0,) * len(axes)
    if len(roi) != 2 * len(axes):
        raise InputError(f"expected {2 * len(axes)} numbers in roi, got {len(roi)}")
    targets = _targets(shape, axes, scales, sizes, policy)
    plans = {
        d: _Axis(shape[d], n, s, roi[k], roi[len(axes) + k])
        for k, (d, (n, s)) in enumerate(zip(axes, targets, strict=True))
    }
    return _resized(emit, x, plans, options)


def _numbers(emit: FoldingEmitter, node: Node, index: int, what: str) -> tuple[float, ...]:
    value = node.optional(index)
    return () if value is None else tuple(float(v) for v in emit.static(value, what).reshape(-1))


def _resized(emit: FoldingEmitter, x: Value, plans: dict[int, _Axis], options: _Options) -> Value:
    """All axes in order; interpolation holds 16-bit floats and integers as float32."""
    dtype = x.tensor.dtype
    wide = dtype
    if options.mode != "nearest":
        wide = accumulator_dtype(dtype) if dtype in FLOATS else "f32"
    out = emit.cast(x, wide)
    for d, axis in sorted(plans.items()):
        plain = axis.size == axis.target and axis.scale == 1 and (axis.start, axis.end) == (0.0, 1.0)
        if axis.size == 0 or axis.target < 0:
            raise InputError(f"expected extents of at least one to resize, got {x.type}")
        if not plain:
            out = _resized_axis(emit, out, d, axis, options)
    if dtype not in FLOATS and wide != dtype:
        out = emit.value("round", out)
    return emit.cast(out, dtype)


def _upsample(emit: FoldingEmitter, node: Node) -> Result:
    """Version 7 has its scales as an attribute."""
    x = node.tensor(0)
    scales = node.reals("scales") if node.opset < 9 else _numbers(emit, node, 1, "scales")
    mode = node.choice("mode", ("nearest", "linear"), "nearest")
    options = _Options(mode, "asymmetric", "floor", -0.75, False, False, 0.0)
    targets = _targets(x.tensor.shape, range(x.tensor.rank), scales, (), "stretch")
    plans = {d: _Axis(x.tensor.shape[d], n, s, 0.0, 1.0) for d, (n, s) in enumerate(targets)}
    return _resized(emit, x, plans, options)


RULES: Rules = {"Resize": _resize, "Upsample": _upsample}
