"""Relay operators over sliding windows: convolutions, their transposes, and pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes, both_sided, repeated
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.rules.padding import RULES as LAYOUT_RULES
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.layouts import data_layouts, kernel_layouts
from tilewright.ir.nodes import Attr, Value
from tilewright.ir.types import dtype_name

#: Traces of TVM's tuners: they say how a kernel was scheduled, not what it computes.
TUNER_NOTES = ("auto_scheduler_rewritten_layout", "meta_schedule_original_shape")
_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}
_TRANSFORMED = ("conv2d_gemm", "conv2d_winograd", "conv2d_winograd_nnpack", "conv3d_winograd")


def window(attrs: Attributes, spatial: int) -> dict[str, Attr]:
    """Strides, dilation and padding of all spatial dimensions."""
    return {
        "strides": repeated(attrs.integers("strides", (1,)), spatial, "strides"),
        "padding": both_sided(attrs.integers("padding", (0,)), spatial),
        "dilation": repeated(attrs.integers("dilation", (1,)), spatial, "dilation"),
    }


def data_layout(attrs: Attributes, name: str, spatial: int) -> str:
    """The data layout where none but the graph's own are allowed; a result in another one is refused."""
    layout = attrs.text(name, f"NC{_SPATIAL[spatial]}")
    out = attrs.text("out_layout", "")
    if out not in ("", layout):
        raise UnsupportedError(f"expected the result in the layout of the data ({layout}), got {out}")
    if any(c.isdigit() for c in layout):
        raise UnsupportedError(f"expected a layout of whole dimensions, got the blocked layout {layout}")
    return layout


def relaid(emit: Emitter, x: Value, source: str, wanted: str) -> Value:
    """`x` in another layout; both may have blocks, such as NCHW8c."""
    if source == wanted:
        return x
    attrs = Attributes({"src_layout": source, "dst_layout": wanted})
    value: Value = LAYOUT_RULES["layout_transform"](emit, [x], attrs)
    return value


def plain(emit: Emitter, x: Value, layout: str, known: Sequence[str]) -> tuple[Value, str]:
    """`x` in a layout that graph ops know, and that layout: its own, or the first of `known`."""
    return (x, layout) if layout in known else (relaid(emit, x, layout, known[0]), known[0])


def images(
    emit: Emitter, data: Value, attrs: Attributes, name: str, spatial: int
) -> tuple[Value, str, Callable[[Value], Value]]:
    """The data in a layout that graph ops know, that layout, and what brings the result into its own."""
    given = attrs.text(name, f"NC{_SPATIAL[spatial]}")
    out = attrs.text("out_layout", "") or given
    x, layout = plain(emit, data, given, data_layouts(spatial))
    return x, layout, lambda result: relaid(emit, result, layout, out)


def check_kernel(attrs: Attributes, weight: Value, layout: str, channels: int, spatial: int) -> None:
    """Relay repeats what the kernel's shape says; a contradiction is an error."""
    extents = dict(zip(layout, weight.tensor.shape, strict=False))
    size = attrs.integers("kernel_size", None)
    if size is not None and tuple(size) != tuple(extents.get(d) for d in _SPATIAL[spatial]):
        raise InputError(f"expected kernel_size as the kernel has it ({weight.type}, {layout}), got {size}")
    given = attrs.integer("channels", None)
    if given is not None and given != channels:
        raise InputError(f"expected {channels} channels for the kernel {weight.type} ({layout}), got {given}")
    attrs.drop(*TUNER_NOTES)


def factors(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> tuple[Value, Value]:
    """The two operands of a product; where their dtypes differ both become that of the result."""
    a, b = emit.tensors(args, 2)
    named = attrs.text("out_dtype", "")
    attrs.give("out_dtype", named)
    if a.tensor.dtype == b.tensor.dtype or named in ("", "void"):
        return a, b
    dtype = dtype_name(named)
    a, b = (v if v.tensor.dtype == dtype else emit.value("cast", v, dtype=dtype) for v in (a, b))
    return a, b


def _convolution(spatial: int) -> Rule:
    default = f"OI{_SPATIAL[spatial]}"

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        data, weight = factors(emit, args, attrs)
        groups = attrs.integer("groups", 1)
        kernel_layout = attrs.text("kernel_layout", default)
        weight, kernel_layout = plain(emit, weight, kernel_layout, kernel_layouts(spatial))
        given = window(attrs, spatial)
        data, layout, finish = images(emit, data, attrs, "data_layout", spatial)
        extents = dict(zip(kernel_layout, weight.tensor.shape, strict=False))
        # HWOI is Relay's depthwise layout: the multiplier is its last entry.
        depthwise = kernel_layout == "HWOI"
        channels = extents.get("O", 0) * (extents.get("I", 0) if depthwise else 1)
        check_kernel(attrs, weight, kernel_layout, channels, spatial)
        result = emit.value(
            f"conv{spatial}d", data, weight, **given, groups=groups, data_layout=layout,
            kernel_layout=kernel_layout, out_dtype=attrs.dtype("out_dtype") or None,
        )  # fmt: skip
        return finish(result)

    return rule


def _transposed(spatial: int) -> Rule:
    default = f"IO{_SPATIAL[spatial]}"

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        data, weight = factors(emit, args, attrs)
        groups = attrs.integer("groups", 1)
        kernel_layout = attrs.text("kernel_layout", default)
        weight, kernel_layout = plain(emit, weight, kernel_layout, kernel_layouts(spatial))
        given = window(attrs, spatial)
        data, layout, finish = images(emit, data, attrs, "data_layout", spatial)
        extents = dict(zip(kernel_layout, weight.tensor.shape, strict=False))
        check_kernel(attrs, weight, kernel_layout, extents.get("O", 0) * groups, spatial)
        extra = repeated(attrs.integers("output_padding", (0,)), spatial, "output_padding")
        result = emit.value(
            f"conv{spatial}d_transpose", data, weight, **given, groups=groups, output_padding=extra,
            data_layout=layout, kernel_layout=kernel_layout, out_dtype=attrs.dtype("out_dtype") or None,
        )  # fmt: skip
        return finish(result)

    return rule


def _pool(kind: str, spatial: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (data,) = emit.tensors(args, 1)
        data, layout, finish = images(emit, data, attrs, "layout", spatial)
        given: dict[str, Attr] = {
            "pool_size": repeated(attrs.integers("pool_size"), spatial, "pool_size"),
            **window(attrs, spatial),
            "layout": layout,
            "ceil_mode": attrs.flag("ceil_mode", False),
        }
        if kind == "avg":
            given["count_include_pad"] = attrs.flag("count_include_pad", False)
        return finish(emit.value(f"{kind}_pool{spatial}d", data, **given))

    return rule


def _global_pool(kind: str, spatial: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (data,) = emit.tensors(args, 1)
        data, layout, finish = images(emit, data, attrs, "layout", spatial)
        return finish(emit.value(f"global_{kind}_pool{spatial}d", data, layout=layout))

    return rule


def _adaptive_pool(kind: str, spatial: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (data,) = emit.tensors(args, 1)
        data, layout, finish = images(emit, data, attrs, "layout", spatial)
        extents = dict(zip(layout, data.tensor.shape, strict=False))
        # No size means that of the data.
        size = attrs.integers("output_size", ()) or tuple(extents.get(d, 0) for d in _SPATIAL[spatial])
        cells = repeated(size, spatial, "output_size")
        return finish(emit.value(f"adaptive_{kind}_pool{spatial}d", data, output_size=cells, layout=layout))

    return rule


def _transformed(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    raise UnsupportedError(
        "expected a convolution with its kernel as it is, got one transformed for TVM's Winograd or GEMM "
        "kernels: import the module before TVM's alter-op-layout"
    )


def _rules() -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    for n in _SPATIAL:
        table[f"nn.conv{n}d"] = _convolution(n)
        table[f"nn.conv{n}d_transpose"] = _transposed(n)
        for kind in ("avg", "max"):
            table[f"nn.{kind}_pool{n}d"] = _pool(kind, n)
            table[f"nn.global_{kind}_pool{n}d"] = _global_pool(kind, n)
            table[f"nn.adaptive_{kind}_pool{n}d"] = _adaptive_pool(kind, n)
    for name in ("contrib_conv2d_NCHWc", "contrib_depthwise_conv2d_NCHWc"):
        table[f"nn.{name}"] = table["nn.conv2d"]
    for name in _TRANSFORMED:
        table[f"nn.contrib_{name}_without_weight_transform"] = _transformed
    return table


RULES: Mapping[str, Rule] = _rules()
