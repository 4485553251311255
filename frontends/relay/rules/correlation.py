"""Relay operators that compare patches or displace taps: correlation, dilation, deformable convolution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes, both_sided, repeated
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.rules.windows import check_kernel, plain, relaid, window
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.graph_ops.layouts import data_layouts, kernel_layouts


def _dilation2d(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, weight = emit.tensors(args, 2)
    layout, kernel_layout = attrs.text("data_layout", "NCHW"), attrs.text("kernel_layout", "IHW")
    if (layout, kernel_layout) not in (("NCHW", "IHW"), ("NHWC", "HWI")):
        raise UnsupportedError(
            f"expected layouts NCHW and IHW, or NHWC and HWI, got {layout} and {kernel_layout}"
        )
    out = attrs.dtype("out_dtype") or data.tensor.dtype
    if out != data.tensor.dtype:
        data, weight = (emit.value("cast", v, dtype=out) for v in (data, weight))
    return emit.value(
        "dilation2d", data, weight, data_layout=layout,
        strides=repeated(attrs.integers("strides", (1,)), 2, "strides"),
        padding=both_sided(attrs.integers("padding", (0,)), 2),
        dilation=repeated(attrs.integers("dilations", (1,)), 2, "dilations"),
    )  # fmt: skip


def _correlation(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    layout = attrs.text("layout", "NCHW")
    if layout != "NCHW":
        raise UnsupportedError(f"expected layout NCHW, got {layout}")
    return emit.value(
        "correlation", *emit.tensors(args, 2), kernel_size=attrs.integer("kernel_size", 1),
        max_displacement=attrs.integer("max_displacement", 1), stride1=attrs.integer("stride1", 1),
        stride2=attrs.integer("stride2", 1), padding=both_sided(attrs.integers("padding", (0,)), 2),
        is_multiply=attrs.flag("is_multiply", True),
    )  # fmt: skip


def _deformable_conv2d(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, offset, weight = emit.tensors(args, 3)
    kernel_layout = attrs.text("kernel_layout", "OIHW")
    given, source = window(attrs, 2), attrs.text("data_layout", "NCHW")
    out = attrs.text("out_layout", "") or source
    data, layout = plain(emit, data, source, data_layouts(2))
    offset, _ = plain(emit, offset, source, data_layouts(2))
    weight, kernel_layout = plain(emit, weight, kernel_layout, kernel_layouts(2))
    extents = dict(zip(kernel_layout, weight.tensor.shape, strict=False))
    check_kernel(attrs, weight, kernel_layout, extents.get("O", 0), 2)
    result = emit.value(
        "deformable_conv2d", data, offset, weight, **given, groups=attrs.integer("groups", 1),
        deformable_groups=attrs.integer("deformable_groups", 1), data_layout=layout,
        kernel_layout=kernel_layout, out_dtype=attrs.dtype("out_dtype") or None,
    )  # fmt: skip
    return relaid(emit, result, layout, out)


RULES: Mapping[str, Rule] = {
    "image.dilation2d": _dilation2d,
    "nn.correlation": _correlation,
    "nn.deformable_conv2d": _deformable_conv2d,
}
