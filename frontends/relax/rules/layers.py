"""Relax operators of neural-network layers over windows, and the losses: as Relay's, which they stem from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relax.static import axis_in, filled, integers
from tilewright.frontends.relay.attributes import Attributes, both_sided, repeated
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.rule_table import RULES as RELAY
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value

#: operators that take the operands and attributes of Relay's operator of the same name
_AS_RELAY = """
    nn.conv1d nn.conv2d nn.conv3d nn.conv1d_transpose nn.conv2d_transpose nn.conv3d_transpose
    nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.batch_flatten
    nn.cross_entropy_with_logits image.grid_sample vision.roi_pool
"""


_POOL = "pool_size strides dilation padding ceil_mode count_include_pad layout out_layout"
_RESIZE = (
    "roi layout method coordinate_transformation_mode rounding_method cubic_alpha cubic_exclude "
    "extrapolation_value out_dtype"
)


def _as_relay(name: str, emit: Emitter, args: Sequence[Result], given: Mapping[str, Any]) -> Result:
    """What Relay's operator of this name emits for these attributes."""
    attrs = Attributes(given)
    result = RELAY[name](emit, args, attrs)
    attrs.finish()
    return result


def _taken(attrs: Attributes, names: str) -> dict[str, Any]:
    """The attributes of these names that are there."""
    return {name: value for name in names.split() if (value := attrs.take(name, None)) is not None}


def _pool(kind: str, spatial: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        """As Relay's, without windows that start behind the data: Relax does not round up to them.

        Relax gives all pools the attributes of an average.
        """
        given = _taken(attrs, _POOL)
        counted = given.pop("count_include_pad", None)
        more = {"count_include_pad": counted} if kind == "avg" and counted is not None else {}
        out: Value = _as_relay(f"nn.{kind}_pool{spatial}d", emit, args, {**given, **more})
        strides = repeated(given.get("strides", (1,)), spatial, "strides")
        padding = both_sided(given.get("padding", (0,)), spatial)
        layout, x, size = str(given["layout"]), emit.tensor(args, 0), list(out.tensor.shape)
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
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        """Relay's, with the size as an operand. How to round matters to the nearest neighbour only."""
        size, given = integers(emit, args, 1, "the size"), _taken(attrs, _RESIZE)
        if given.get("method") != "nearest_neighbor":
            given.pop("rounding_method", None)
        return _as_relay(f"image.resize{spatial}d", emit, args[:1], {**given, "size": size})

    return rule


def _affine_grid(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Relay's, whose outermost points are the centres of the corner pixels."""
    if not attrs.flag("align_corners", True):
        raise UnsupportedError("expected a grid with align_corners, got one without")
    shape = integers(emit, args, 1, "the size")
    return _as_relay("image.affine_grid", emit, args[:1], {"target_shape": shape})


RULES: Mapping[str, Rule] = {
    **{name: RELAY[name] for name in _AS_RELAY.split()},
    "image.affine_grid": _affine_grid,
    **{f"nn.{kind}_pool{n}d": _pool(kind, n) for kind in ("max", "avg") for n in (1, 2, 3)},
    "nn.softmax": _softmax("softmax"),
    "nn.log_softmax": _softmax("log_softmax"),
    "nn.dropout": _dropout,
    "nn.nll_loss": _nll_loss,
    "image.resize2d": _resize(2),
    "image.resize3d": _resize(3),
}
