"""Relay's einsum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.graph_ops.einsum import explicit_equation


def _einsum(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    operands = emit.fields(args)
    equation = explicit_equation(attrs.text("equation"), [v.tensor.rank for v in operands])
    return emit.value("einsum", *operands, equation=equation)


RULES: Mapping[str, Rule] = {"einsum": _einsum}
