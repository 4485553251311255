"""Relay operators that update a copy at given indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.graph_ops.operands import axis_of


def _scatter_elements(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    given = emit.tensors(args, 3)
    axis = axis_of(attrs.integer("axis", 0), given[0].tensor.rank, "axis")
    return emit.value("scatter_elements", *given, axis=axis, reduction=attrs.text("reduction", "update"))


def _scatter_nd(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("scatter_nd", *emit.tensors(args, 3), mode=attrs.text("mode", "update"))


def _sparse_to_dense(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The default may have another dtype than the values."""
    indices, values, default = emit.tensors(args, 3)
    if default.tensor.dtype != values.tensor.dtype:
        default = emit.value("cast", default, dtype=values.tensor.dtype)
    shape = attrs.integers("output_shape")
    return emit.value("sparse_to_dense", indices, values, default, output_shape=shape)


RULES: Mapping[str, Rule] = {
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "sparse_to_dense": _sparse_to_dense,
}
