"""Relay operators over sliding windows: convolutions, their transposes, and pools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes, both_sided, repeated
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Attr, Value

#: Traces of TVM's tuners: they say how a kernel was scheduled, not what it computes.
TUNER_NOTES = ("auto_scheduler_rewritten_layout", "meta_schedule_original_shape")
_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def window(attrs: Attributes, spatial: int) -> dict[str, Attr]:
    """Strides, dilation and padding of all spatial dimensions."""
    return {
        "strides": repeated(attrs.integers("strides", (1,)), spatial, "strides"),
        "padding": both_sided(attrs.integers("padding", (0,)), spatial),
        "dilation": repeated(attrs.integers("dilation", (1,)), spatial, "dilation"),
    }


def data_layout(attrs: Attributes, name: str, spatial: int) -> str:
    """The data layout; a result in another layout is refused."""
    layout = attrs.text(name, f"NC{_SPATIAL[spatial]}")
    out = attrs.text("out_layout", "")
    if out not in ("", layout):
        raise UnsupportedError(f"expected the result in the layout of the data ({layout}), got {out}")
    if any(c.isdigit() for c in layout):
        raise UnsupportedError(f"expected a layout of whole dimensions, got the blocked layout {layout}")
    return layout


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


def _convolution(spatial: int) -> Rule:
    default = f"OI{_SPATIAL[spatial]}"

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        data, weight = emit.tensors(args, 2)
        groups = attrs.integer("groups", 1)
        kernel_layout = attrs.text("kernel_layout", default)
        given, layout = window(attrs, spatial), data_layout(attrs, "data_layout", spatial)
        extents = dict(zip(kernel_layout, weight.tensor.shape, strict=False))
        # HWOI is Relay's depthwise layout: the multiplier is its last entry.
        depthwise = kernel_layout == "HWOI"
        channels = extents.get("O", 0) * (extents.get("I", 0) if depthwise else 1)
        check_kernel(attrs, weight, kernel_layout, channels, spatial)
        return emit.value(
            f"conv{spatial}d", data, weight, **given, groups=groups, data_layout=layout,
            kernel_layout=kernel_layout, out_dtype=attrs.dtype("out_dtype") or None,
        )  # fmt: skip

    return rule


def _transposed(spatial: int) -> Rule:
    # Only the two-dimensional operator names its kernel's channels by what they are; the others call those
    # of the data O and those of the result I.
    swapped = spatial != 2
    default = f"{'OI' if swapped else 'IO'}{_SPATIAL[spatial]}"

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        data, weight = emit.tensors(args, 2)
        groups = attrs.integer("groups", 1)
        kernel_layout = attrs.text("kernel_layout", default)
        if swapped:
            kernel_layout = kernel_layout.translate(str.maketrans("OI", "IO"))
        given, layout = window(attrs, spatial), data_layout(attrs, "data_layout", spatial)
        extents = dict(zip(kernel_layout, weight.tensor.shape, strict=False))
        check_kernel(attrs, weight, kernel_layout, extents.get("O", 0) * groups, spatial)
        extra = repeated(attrs.integers("output_padding", (0,)), spatial, "output_padding")
        return emit.value(
            f"conv{spatial}d_transpose", data, weight, **given, groups=groups, output_padding=extra,
            data_layout=layout, kernel_layout=kernel_layout, out_dtype=attrs.dtype("out_dtype") or None,
        )  # fmt: skip

    return rule


def _pool(kind: str, spatial: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (data,) = emit.tensors(args, 1)
        given: dict[str, Attr] = {
            "pool_size": repeated(attrs.integers("pool_size"), spatial, "pool_size"),
            **window(attrs, spatial),
            "layout": data_layout(attrs, "layout", spatial),
            "ceil_mode": attrs.flag("ceil_mode", False),
        }
        if kind == "avg":
            given["count_include_pad"] = attrs.flag("count_include_pad", False)
        return emit.value(f"{kind}_pool{spatial}d", data, **given)

    return rule


def _global_pool(kind: str, spatial: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        layout = data_layout(attrs, "layout", spatial)
        return emit.value(f"global_{kind}_pool{spatial}d", *emit.tensors(args, 1), layout=layout)

    return rule


def _adaptive_pool(kind: str, spatial: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (data,) = emit.tensors(args, 1)
        layout = data_layout(attrs, "layout", spatial)
        extents = dict(zip(layout, data.tensor.shape, strict=False))
        # No size means that of the data.
        size = attrs.integers("output_size", ()) or tuple(extents.get(d, 0) for d in _SPATIAL[spatial])
        cells = repeated(size, spatial, "output_size")
        return emit.value(f"adaptive_{kind}_pool{spatial}d", data, output_size=cells, layout=layout)

    return rule


def _rules() -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    for n in _SPATIAL:
        table[f"nn.conv{n}d"] = _convolution(n)
        table[f"nn.conv{n}d_transpose"] = _transposed(n)
        for kind in ("avg", "max"):
            table[f"nn.{kind}_pool{n}d"] = _pool(kind, n)
            table[f"nn.global_{kind}_pool{n}d"] = _global_pool(kind, n)
            table[f"nn.adaptive_{kind}_pool{n}d"] = _adaptive_pool(kind, n)
    return table


RULES: Mapping[str, Rule] = _rules()
