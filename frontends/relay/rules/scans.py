"""Relay operators that fold running results along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.graph_ops.operands import axis_of


def _scan(name: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        """Without an axis the operand counts as flattened."""
        (data,) = emit.tensors(args, 1)
        axis = attrs.integer("axis", None)
        if axis is None:
            data, axis = emit.value("reshape", data, newshape=(data.tensor.size,)), 0
        return emit.value(
            name,
            data,
            axis=axis_of(axis, data.tensor.rank, "axis"),
            dtype=attrs.dtype("dtype") or None,
            exclusive=attrs.flag("exclusive", False),
        )

    return rule


RULES: Mapping[str, Rule] = {"cumsum": _scan("cumsum"), "cumprod": _scan("cumprod")}
