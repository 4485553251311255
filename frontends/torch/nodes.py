"""Reading nodes of torch's graphs, and their operands as Relax expressions. Imports torch and TVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tvm import relax

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
#: takes the importer and a node, gives a Relax variable
Correction = Callable[[Any, Any], Any]


def argument(node: Any, position: int, name: str, default: Any = None) -> Any:
    """An argument of a node by position or name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def tensor_of(item: Any) -> torch.Tensor:
    """The example tensor of a node."""
    value: torch.Tensor = item.meta["val"]
    return value


def dtype_of(importer: Any, item: Any) -> str:
    """TVM's name of a node's dtype."""
    return str(importer._convert_data_type(tensor_of(item).dtype))


def as_type(importer: Any, item: Any, dtype: torch.dtype) -> Any:
    """A node or a number as an expression of `dtype`."""
    name = importer._convert_data_type(dtype)
    if not isinstance(item, torch.fx.Node):
        return relax.const(item, name)
    if tensor_of(item).dtype == dtype:
        return importer.env[item]
    return importer.block_builder.emit(relax.op.astype(importer.env[item], name))


def promoted(a: Any, b: Any) -> torch.dtype:
    """The dtype in which torch computes with two operands, of which one at least is a tensor."""
    first, second = (tensor_of(item) if isinstance(item, torch.fx.Node) else item for item in (a, b))
    return torch.result_type(first, second)
