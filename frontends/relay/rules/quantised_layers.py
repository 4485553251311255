"""Relay's quantised layers: convolutions and products of integers minus their zero points, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.quantisation import centred, converted, is_zero
from tilewright.frontends.relay.rules.layers import RULES as LAYERS
from tilewright.frontends.relay.rules.windows import RULES as WINDOWS
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value


def _layer(inner: Rule, channels: str) -> Rule:
    """`inner` on integers; operands are data, weight, their zero points, and scales that only say what an
    integer stands for. Zeros that pad the centred data are its zero point.

    channels: the dimension of the weight that zero points may differ along, in letters of its layout; a
    digit is the dimension itself.
    """

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        data, weight, zero, weight_zero, *_ = emit.tensors(args, 6)
        wanted = attrs.dtype("out_dtype") or "i32"
        if wanted not in ("i16", "i32", "i64"):
            raise InputError(f"expected out_dtype among int16, int32, int64, got {wanted}")
        held = "i64" if wanted == "i64" else "i32"
        plain = is_zero(emit, zero) and is_zero(emit, weight_zero)
        if plain and data.tensor.dtype == weight.tensor.dtype:
            attrs.give("out_dtype", "int64" if held == "i64" else "int32")
            return converted(emit, inner(emit, (data, weight), attrs), wanted)
        axis = _axis(attrs, weight, channels)
        left = centred(emit, data, zero, dtype=held)
        right = centred(emit, weight, weight_zero, axis, held)
        return converted(emit, inner(emit, (left, right), attrs), wanted)

    return rule


def _axis(attrs: Attributes, weight: Value, channels: str) -> int:
    if channels.isdigit():
        return int(channels)
    layout = attrs.text("kernel_layout", channels)
    attrs.give("kernel_layout", layout)
    if "O" not in layout or len(layout) != weight.tensor.rank:
        raise InputError(f"expected a kernel layout with O for {weight.type}, got '{layout}'")
    return layout.index("O")


RULES: Mapping[str, Rule] = {
    "qnn.conv2d": _layer(WINDOWS["nn.conv2d"], "OIHW"),
    "qnn.conv2d_transpose": _layer(WINDOWS["nn.conv2d_transpose"], "IOHW"),
    "qnn.dense": _layer(LAYERS["nn.dense"], "0"),
    "qnn.batch_matmul": _layer(LAYERS["nn.batch_matmul"], "1"),
}
