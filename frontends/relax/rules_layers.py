"""Relax operators of neural-network layers over windows, and the losses: as Relay's, which they stem from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relax.static import axis_in, filled, integers
from tilewright.frontends.relay.attributes import Attributes, repeated
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.rules import RULES as RELAY
from tilewright.frontends.relay.rules_windows import data_layout, window
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value

#: operators that take the operands and attributes of Relay's operator of the same name
_AS_RELAY = """
    nn.conv1d nn.conv2d nn.conv3d nn.conv2d_transpose nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d
    nn.adaptive_avg_pool3d nn.batch_flatten nn.cross_entropy_with_logits
"""


def _transposed(spatial: int, default: str) -> Rule:
    """As Relay's, but the kernel's input channels are called I in every number of dimensions."""

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        data, weight = emit.tensors(args, 2)
        extra = repeated(attrs.integers("output_padding", (0,)), spatial, "output_padding")
        return emit.value(
            f"conv{spatial}d_transpose", data, weight, **window(attrs, spatial),
            groups=attrs.integer("groups", 1), output_padding=extra,
            data_layout=data_layout(attrs, "data_layout", spatial),
            kernel_layout=attrs.text("kernel_layout", default), out_dtype=attrs.dtype("out_dtype") or None,
        )  # fmt: skip

    return rule


def _pool(kind: str, spatial: int) -> Rule:
    """As Relay's, without windows that start behind the data: Relax, unlike Relay, does not round up to them.

    Relax gives all pools the attributes of an average.
    """
    relay_rule = RELAY[f"nn.{kind}_pool{spatial}d"]

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        if kind == "max":
            attrs.drop("count_include_pad")
        out: Value = relay_rule(emit, args, attrs)
        op = emit.builder.ops[-1]
        x, layout = emit.tensor(args, 0), str(op["layout"])
        strides, padding = (cast("tuple[int, ...]", op[name]) for name in ("strides", "padding"))
        size = list(out.tensor.shape)
        for dim, stride, before in zip("DHW"[-spatial:], strides, padding, strict=False):
            d = layout.index(dim)
            size[d] = min(size[d], -(-(x.tensor.shape[d] + before) // stride))
        if tuple(size) == out.tensor.shape:
            return out
        zeros = (0,) * len(size)
        return emit.value("strided_slice", out, begin=zeros, size=tuple(size), strides=(1,) * len(size))

    return rule


def _softmax(name: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (x,) = emit.tensors(args, 1)
        return emit.value(name, x, axis=axis_in(x, attrs.integer("axis", -1)))

    return rule


def _dropout(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """At inference nothing is dropped: Relax's mask is one everywhere."""
    (x,) = emit.tensors(args, 1)
    attrs.drop("rate")
    return (x, filled(emit, x.tensor.shape, x.tensor.dtype, 1))


def _nll_loss(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Weights left out are ones."""
    if len(args) == 2:
        x = emit.tensor(args, 0).tensor
        if x.rank < 1:
            raise InputError(f"expected predictions of classes, got {x}")
        args = [*args, filled(emit, (x.shape[min(1, x.rank - 1)],), x.dtype, 1)]
    return RELAY["nn.nll_loss"](emit, args, attrs)


def _resize(spatial: int) -> Rule:
    """Relay's, with the size as an operand."""
    relay_rule = RELAY[f"image.resize{spatial}d"]

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        size = integers(emit, args, 1, "the size")
        names = (
            "roi layout method coordinate_transformation_mode rounding_method cubic_alpha cubic_exclude "
            "extrapolation_value out_dtype"
        )
        given = {name: value for name in names.split() if (value := attrs.take(name, None)) is not None}
        if given.get("method") != "nearest_neighbor":
            given.pop("rounding_method", None)
        made = Attributes({**given, "size": size})
        result = relay_rule(emit, args[:1], made)
        made.finish()
        return result

    return rule


RULES: Mapping[str, Rule] = {
    **{name: RELAY[name] for name in _AS_RELAY.split()},
    "nn.conv1d_transpose": _transposed(1, "IOW"),
    "nn.conv3d_transpose": _transposed(3, "IODHW"),
    **{f"nn.{kind}_pool{n}d": _pool(kind, n) for kind in ("max", "avg") for n in (1, 2, 3)},
    "nn.softmax": _softmax("softmax"),
    "nn.log_softmax": _softmax("log_softmax"),
    "nn.dropout": _dropout,
    "nn.nll_loss": _nll_loss,
    "image.resize2d": _resize(2),
    "image.resize3d": _resize(3),
}
