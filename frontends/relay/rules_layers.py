"""Relay operators of neural-network layers: convolution, products, pooling, normalisation, softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Absent, Emitter, Result
from tilewright.frontends.relay.attributes import Attributes, four_sided, repeated
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Attr, Value

#: Traces of TVM's tuners: they say how a kernel was scheduled, not what it computes.
_TUNER_NOTES = ("auto_scheduler_rewritten_layout", "meta_schedule_original_shape")


def _window(attrs: Attributes) -> dict[str, Attr]:
    """Strides, dilation and padding of two spatial dimensions."""
    return {
        "strides": repeated(attrs.integers("strides", (1, 1)), 2, "strides"),
        "padding": four_sided(attrs.integers("padding", (0, 0))),
        "dilation": repeated(attrs.integers("dilation", (1, 1)), 2, "dilation"),
    }


def _layout(attrs: Attributes, name: str) -> str:
    """The data layout; a result in another layout is refused."""
    layout = attrs.text(name, "NCHW")
    out = attrs.text("out_layout", "")
    if out not in ("", layout):
        raise UnsupportedError(f"expected the result in the layout of the data ({layout}), got {out}")
    return layout


def _check_kernel(attrs: Attributes, weight: Value, layout: str, channels: int) -> None:
    """Relay repeats what the kernel's shape says; a contradiction is an error."""
    extents = dict(zip(layout, weight.tensor.shape, strict=False))
    size = attrs.integers("kernel_size", None)
    if size is not None and tuple(size) != (extents.get("H"), extents.get("W")):
        raise InputError(f"expected kernel_size as the kernel has it ({weight.type}, {layout}), got {size}")
    given = attrs.integer("channels", None)
    if given is not None and given != channels:
        raise InputError(f"expected {channels} channels for the kernel {weight.type} ({layout}), got {given}")
    attrs.drop(*_TUNER_NOTES)


def _conv2d(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, weight = emit.tensors(args, 2)
    groups = attrs.integer("groups", 1)
    kernel_layout = attrs.text("kernel_layout", "OIHW")
    window, layout = _window(attrs), _layout(attrs, "data_layout")
    extents = dict(zip(kernel_layout, weight.tensor.shape, strict=False))
    # HWOI is Relay's depthwise layout: the multiplier is its last entry.
    depthwise = kernel_layout == "HWOI"
    channels = extents.get("O", 0) * (extents.get("I", 0) if depthwise else 1)
    _check_kernel(attrs, weight, kernel_layout, channels)
    return emit.value(
        "conv2d", data, weight, **window, groups=groups, data_layout=layout,
        kernel_layout=kernel_layout, out_dtype=attrs.dtype("out_dtype") or None,
    )  # fmt: skip


def _conv2d_transpose(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, weight = emit.tensors(args, 2)
    groups = attrs.integer("groups", 1)
    kernel_layout = attrs.text("kernel_layout", "IOHW")
    window, layout = _window(attrs), _layout(attrs, "data_layout")
    extents = dict(zip(kernel_layout, weight.tensor.shape, strict=False))
    _check_kernel(attrs, weight, kernel_layout, extents.get("O", 0) * groups)
    extra = repeated(attrs.integers("output_padding", (0, 0)), 2, "output_padding")
    return emit.value(
        "conv2d_transpose", data, weight, **window, groups=groups, output_padding=extra, data_layout=layout,
        kernel_layout=kernel_layout, out_dtype=attrs.dtype("out_dtype") or None,
    )  # fmt: skip


def _dense(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, weight = emit.tensors(args, 2)
    _check_units(attrs, weight, 0)
    return emit.value("dense", data, weight, out_dtype=attrs.dtype("out_dtype") or None)


def _matmul(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    a, b = emit.tensors(args, 2)
    transposes = {name: attrs.flag(name, False) for name in ("transpose_a", "transpose_b")}
    _check_units(attrs, b, 0 if transposes["transpose_b"] else 1)
    return emit.value("matmul", a, b, **transposes, out_dtype=attrs.dtype("out_dtype") or None)


def _check_units(attrs: Attributes, weight: Value, axis: int) -> None:
    units = attrs.integer("units", None)
    if units is not None and weight.tensor.shape[axis : axis + 1] != (units,):
        raise InputError(f"expected as many units as the weight {weight.type} has, got {units}")
    attrs.drop(*_TUNER_NOTES)


def _batch_matmul(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    transposes = {name: attrs.flag(name, False) for name in ("transpose_a", "transpose_b")}
    attrs.drop(*_TUNER_NOTES)
    return emit.value(
        "batch_matmul", *emit.tensors(args, 2), **transposes, out_dtype=attrs.dtype("out_dtype") or None
    )


def _bias_add(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("bias_add", *emit.tensors(args, 2), axis=attrs.integer("axis", 1))


def _max_pool2d(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("max_pool2d", *emit.tensors(args, 1), **_pool(attrs))


def _avg_pool2d(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    include = attrs.flag("count_include_pad", False)
    return emit.value("avg_pool2d", *emit.tensors(args, 1), **_pool(attrs), count_include_pad=include)


def _pool(attrs: Attributes) -> dict[str, Attr]:
    return {
        "pool_size": repeated(attrs.integers("pool_size"), 2, "pool_size"),
        **_window(attrs),
        "layout": _layout(attrs, "layout"),
        "ceil_mode": attrs.flag("ceil_mode", False),
    }


def _global_pool(kind: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        return emit.value(f"global_{kind}_pool2d", *emit.tensors(args, 1), layout=_layout(attrs, "layout"))

    return rule


def _adaptive_pool(kind: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (data,) = emit.tensors(args, 1)
        layout = _layout(attrs, "layout")
        extents = dict(zip(layout, data.tensor.shape, strict=False))
        # No size means that of the data.
        size = attrs.integers("output_size", ()) or (extents.get("H", 0), extents.get("W", 0))
        cells = repeated(size, 2, "output_size")
        return emit.value(f"adaptive_{kind}_pool2d", data, output_size=cells, layout=layout)

    return rule


def _affine(attrs: Attributes) -> dict[str, Attr]:
    return {
        "epsilon": attrs.real("epsilon", 1e-5),
        "center": attrs.flag("center", True),
        "scale": attrs.flag("scale", True),
    }


def _batch_norm(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Relay's result is (normalised, moving mean, moving variance); inference leaves the latter two alone."""
    data, gamma, beta, mean, variance = emit.tensors(args, 5)
    axis = attrs.integer("axis", 1)
    normal = emit.value("batch_norm", data, gamma, beta, mean, variance, axis=axis, **_affine(attrs))
    return (normal, mean, variance)


def _norm(name: str, axis: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        return emit.value(name, *emit.tensors(args, 3), axis=attrs.integer("axis", axis), **_affine(attrs))

    return rule


def _group_norm(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    groups, axis = attrs.integer("num_groups", 0), attrs.integer("axis", 1)
    return emit.value("group_norm", *emit.tensors(args, 3), num_groups=groups, axis=axis, **_affine(attrs))


def _l2_normalize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    axis = attrs.integers("axis", None) or ()
    return emit.value("l2_normalize", *emit.tensors(args, 1), eps=attrs.real("eps"), axis=axis)


def _lrn(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value(
        "lrn", *emit.tensors(args, 1), size=attrs.integer("size", 5), axis=attrs.integer("axis", 1),
        bias=attrs.real("bias", 2.0), alpha=attrs.real("alpha", 1e-4), beta=attrs.real("beta", 0.75),
    )  # fmt: skip


def _softmax(name: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        return emit.value(name, *emit.tensors(args, 1), axis=attrs.integer("axis", -1))

    return rule


def _dropout(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Relay's result is (data, mask); the mask has no value at inference."""
    kept = emit.value("dropout", *emit.tensors(args, 1), rate=attrs.real("rate", 0.5))
    return (kept, Absent("the mask of nn.dropout"))


RULES: Mapping[str, Rule] = {
    "nn.conv2d": _conv2d,
    "nn.conv2d_transpose": _conv2d_transpose,
    "nn.dense": _dense,
    "nn.matmul": _matmul,
    "nn.batch_matmul": _batch_matmul,
    "nn.bias_add": _bias_add,
    "nn.max_pool2d": _max_pool2d,
    "nn.avg_pool2d": _avg_pool2d,
    "nn.global_avg_pool2d": _global_pool("avg"),
    "nn.global_max_pool2d": _global_pool("max"),
    "nn.adaptive_avg_pool2d": _adaptive_pool("avg"),
    "nn.adaptive_max_pool2d": _adaptive_pool("max"),
    "nn.batch_norm": _batch_norm,
    "nn.layer_norm": _norm("layer_norm", -1),
    "nn.instance_norm": _norm("instance_norm", 1),
    "nn.group_norm": _group_norm,
    "nn.l2_normalize": _l2_normalize,
    "nn.lrn": _lrn,
    "nn.softmax": _softmax("softmax"),
    "nn.log_softmax": _softmax("log_softmax"),
    "nn.dropout": _dropout,
}
