"""Operators over sliding windows: convolutions, their transposes, deformable ones, correlation, and pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.frontends.importing.call import Call, Rule, both_sided, repeated
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.rules import direct, entries, flag, integer
from tilewright.frontends.tvm.rules.padding import relaid
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.layouts import SPATIAL, data_layouts, kernel_layouts
from tilewright.ir.nodes import Attr, Value
from tilewright.ir.types import dtype_name

#: Traces of TVM's tuners: they say how a kernel was scheduled, not what it computes.
TUNER_NOTES = ("auto_scheduler_rewritten_layout", "meta_schedule_original_shape")
_TRANSFORMED = ("conv2d_gemm", "conv2d_winograd", "conv2d_winograd_nnpack", "conv3d_winograd")


def _window(call: Call, spatial: int) -> dict[str, Attr]:
    """Strides, dilation and padding of all spatial dimensions."""
    return {
        "strides": repeated(call.integers("strides", (1,)), spatial, "strides"),
        "padding": both_sided(call.integers("padding", (0,)), spatial),
        "dilation": repeated(call.integers("dilation", (1,)), spatial, "dilation"),
    }


def _plain(emit: Emitter, x: Value, layout: str, known: Sequence[str]) -> tuple[Value, str]:
    """`x` in a layout that graph ops know, and that layout: its own, or the first of `known`."""
    return (x, layout) if layout in known else (relaid(emit, x, layout, known[0]), known[0])


def _images(
    emit: Emitter, data: Value, call: Call, name: str, spatial: int
) -> tuple[Value, str, Callable[[Value], Value]]:
    """The data in a layout that graph ops know, that layout, and what brings the result into its own."""
    source = call.text(name, f"NC{SPATIAL[spatial]}")
    out = call.text("out_layout", "") or source
    x, layout = _plain(emit, data, source, data_layouts(spatial))
    return x, layout, lambda result: relaid(emit, result, layout, out)


def _check_kernel(call: Call, weight: Value, layout: str, channels: int, spatial: int) -> None:
    """Raise InputError where attributes contradict the kernel's shape, which they repeat."""
    extents = dict(zip(layout, weight.tensor.shape, strict=False))
    size = call.integers("kernel_size", None)
    if size is not None and tuple(size) != tuple(extents.get(d) for d in SPATIAL[spatial]):
        raise InputError(f"expected kernel_size as the kernel has it ({weight.type}, {layout}), got {size}")
    count = call.integer("channels", None)
    if count is not None and count != channels:
        raise InputError(f"expected {channels} channels for the kernel {weight.type} ({layout}), got {count}")
    call.drop(*TUNER_NOTES)


def factors(emit: Emitter, call: Call) -> tuple[Value, Value]:
    """The two operands of a product; where their dtypes differ both become that of the result."""
    a, b = call.tensors(2)
    named = call.text("out_dtype", "")
    call.give("out_dtype", named)
    if a.tensor.dtype == b.tensor.dtype or named in ("", "void"):
        return a, b
    return emit.cast(a, dtype_name(named)), emit.cast(b, dtype_name(named))


def sums_of(call: Call, factor: Value) -> str | None:
    """The type in which a product gives its sums; None where that of its factors is named, or none.

    TVM's translators name the type of the factors for every convolution. A precision that stores factors in
    fewer bits then stores results in as many.
    """
    dtype = call.dtype("out_dtype") or None
    return None if dtype == factor.tensor.dtype else dtype


def _convolution(spatial: int, transposed: bool = False) -> Rule:
    order = "IO" if transposed else "OI"

    def rule(emit: Emitter, call: Call) -> Result:
        data, weight = factors(emit, call)
        groups = call.integer("groups", 1)
        kernel_layout = call.text("kernel_layout", f"{order}{SPATIAL[spatial]}")
        weight, kernel_layout = _plain(emit, weight, kernel_layout, kernel_layouts(spatial))
        attrs = _window(call, spatial)
        data, layout, finish = _images(emit, data, call, "data_layout", spatial)
        extents = dict(zip(kernel_layout, weight.tensor.shape, strict=False))
        # HWOI is Relay's depthwise layout: the multiplier is its last entry.
        each = groups if transposed else extents.get("I", 0) if kernel_layout == "HWOI" else 1
        _check_kernel(call, weight, kernel_layout, extents.get("O", 0) * each, spatial)
        if transposed:
            extra = call.integers("output_padding", (0,))
            attrs["output_padding"] = repeated(extra, spatial, "output_padding")
        result = emit.value(
            f"conv{spatial}d{'_transpose' if transposed else ''}", data, weight, **attrs, groups=groups,
            data_layout=layout, kernel_layout=kernel_layout, out_dtype=sums_of(call, data),
        )  # fmt: skip
        return finish(result)

    return rule


def _deformable_conv2d(emit: Emitter, call: Call) -> Result:
    data, offset, weight = call.tensors(3)
    kernel_layout = call.text("kernel_layout", "OIHW")
    attrs, source = _window(call, 2), call.text("data_layout", "NCHW")
    out = call.text("out_layout", "") or source
    data, layout = _plain(emit, data, source, data_layouts(2))
    offset, _ = _plain(emit, offset, source, data_layouts(2))
    weight, kernel_layout = _plain(emit, weight, kernel_layout, kernel_layouts(2))
    extents = dict(zip(kernel_layout, weight.tensor.shape, strict=False))
    _check_kernel(call, weight, kernel_layout, extents.get("O", 0), 2)
    result = emit.value(
        "deformable_conv2d", data, offset, weight, **attrs, groups=call.integer("groups", 1),
        deformable_groups=call.integer("deformable_groups", 1), data_layout=layout,
        kernel_layout=kernel_layout, out_dtype=sums_of(call, data),
    )  # fmt: skip
    return relaid(emit, result, layout, out)


def _dilation2d(emit: Emitter, call: Call) -> Result:
    data, weight = call.tensors(2)
    layout, kernel_layout = call.text("data_layout", "NCHW"), call.text("kernel_layout", "IHW")
    if (layout, kernel_layout) not in (("NCHW", "IHW"), ("NHWC", "HWI")):
        raise UnsupportedError(
            f"expected layouts NCHW and IHW, or NHWC and HWI, got {layout} and {kernel_layout}"
        )
    out = call.dtype("out_dtype") or data.tensor.dtype
    if out != data.tensor.dtype:
        data, weight = emit.cast(data, out), emit.cast(weight, out)
    call.give("dilation", call.integers("dilations", (1,)))
    return emit.value("dilation2d", data, weight, data_layout=layout, **_window(call, 2))


def _correlation(emit: Emitter, call: Call) -> Result:
    layout = call.text("layout", "NCHW")
    if layout != "NCHW":
        raise UnsupportedError(f"expected layout NCHW, got {layout}")
    steps = {name: integer(1) for name in ("kernel_size", "max_displacement", "stride1", "stride2")}
    padding = both_sided(call.integers("padding", (0,)), 2)
    return direct("correlation", 2, **steps, padding=padding, is_multiply=flag(True))(emit, call)


def _pool(kind: str, spatial: int) -> Rule:
    """The rule of a pool over windows, over the whole image, or over as many cells as the call says."""
    op, d = f"{kind}_pool{spatial}d", SPATIAL[spatial]

    def rule(emit: Emitter, call: Call) -> Result:
        data, layout, finish = _images(emit, call.single(), call, "layout", spatial)
        attrs: dict[str, Attr] = {"layout": layout}
        if kind.startswith("adaptive"):
            extents = dict(zip(layout, data.tensor.shape, strict=False))
            # No size means that of the data.
            size = call.integers("output_size", ()) or tuple(extents.get(c, 0) for c in d)
            attrs["output_size"] = repeated(size, spatial, "output_size")
        elif not kind.startswith("global"):
            attrs["pool_size"] = entries(spatial)(call, "pool_size")
            attrs |= _window(call, spatial) | {"ceil_mode": call.flag("ceil_mode", False)}
        if kind == "avg":
            attrs["count_include_pad"] = call.flag("count_include_pad", False)
        return finish(emit.value(op, data, **attrs))

    return rule


def _transformed(emit: Emitter, call: Call) -> Result:
    raise UnsupportedError(
        "expected a convolution with its kernel as it is, got one transformed for TVM's Winograd or GEMM "
        "kernels: import the module before TVM's alter-op-layout"
    )


_POOLS = tuple(f"{scope}{kind}" for scope in ("", "global_", "adaptive_") for kind in ("avg", "max"))
RULES: Mapping[str, Rule] = {
    **{f"nn.conv{n}d": _convolution(n) for n in SPATIAL},
    **{f"nn.conv{n}d_transpose": _convolution(n, transposed=True) for n in SPATIAL},
    **{f"nn.{kind}_pool{n}d": _pool(kind, n) for kind in _POOLS for n in SPATIAL},
    **{f"nn.contrib_{name}_NCHWc": _convolution(2) for name in ("conv2d", "depthwise_conv2d")},
    **{f"nn.contrib_{name}_without_weight_transform": _transformed for name in _TRANSFORMED},
    "image.dilation2d": _dilation2d,
    "nn.correlation": _correlation,
    "nn.deformable_conv2d": _deformable_conv2d,
}
