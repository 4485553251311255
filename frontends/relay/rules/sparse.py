"""Relay operators on coordinates of sparse tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule


def _unravel_index(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Both operands in the dtype of the indices."""
    indices, shape = emit.tensors(args, 2)
    if shape.tensor.dtype != indices.tensor.dtype:
        shape = emit.value("cast", shape, dtype=indices.tensor.dtype)
    return emit.value("unravel_index", indices, shape)


def _sparse_reshape(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.values("sparse_reshape", emit.tensors(args, 3))


RULES: Mapping[str, Rule] = {
    "unravel_index": _unravel_index,
    "sparse_reshape": _sparse_reshape,
}
