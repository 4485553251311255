"""One call in torch's graph as its correction sees it, and its operands as Relax expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from tvm import relax

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


class TorchCall:
    """A node of torch's graph together with TVM's importer, which translates it.

    name: the operator, such as `add.Tensor`. env: Relax variables by node. emit: binds an expression to a
    variable.
    """

    def __init__(self, importer: Any, node: Any) -> None:
        self._importer, self._node = importer, node
        self.name: str = getattr(node.target, "__name__", "")
        self.args: Sequence[Any] = node.args
        self.kwargs: Mapping[str, Any] = node.kwargs
        self.env: Mapping[Any, Any] = importer.env
        self.emit: Callable[[Any], Any] = importer.block_builder.emit

    @property
    def users(self) -> Sequence[Any]:
        """The nodes that read the results."""
        return tuple(self._node.users)

    @property
    def value(self) -> torch.Tensor:
        """The example tensor of the result."""
        return tensor_of(self._node)

    @property
    def dtype(self) -> str:
        """TVM's name of the result's dtype."""
        return self.dtype_of(self._node)

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def by_tvm(self, name: str = "") -> Any:
        """The translation by TVM's importer: its method `_name`, by default that of the operator."""
        return getattr(self._importer, f"_{name or self.name.split('.')[0]}")(self._node)

    def dtype_name(self, dtype: torch.dtype) -> str:
        """TVM's name of a dtype."""
        return str(self._importer._convert_data_type(dtype))

    def dtype_of(self, item: Any) -> str:
        """TVM's name of a node's dtype."""
        return self.dtype_name(tensor_of(item).dtype)

    def as_type(self, item: Any, dtype: torch.dtype) -> Any:
        """A node or a number as an expression of `dtype`."""
        if not isinstance(item, torch.fx.Node):
            return relax.const(item, self.dtype_name(dtype))
        if tensor_of(item).dtype == dtype:
            return self.env[item]
        return self.emit(relax.op.astype(self.env[item], self.dtype_name(dtype)))


#: Takes a call, gives a Relax variable or a tuple of them.
Correction = Callable[[TorchCall], Any]


def tensor_of(item: Any) -> torch.Tensor:
    """The example tensor of a node."""
    value: torch.Tensor = item.meta["val"]
    return value


def promoted(a: Any, b: Any) -> torch.dtype:
    """The dtype in which torch computes with two operands, of which one at least is a tensor."""
    first, second = (tensor_of(item) if isinstance(item, torch.fx.Node) else item for item in (a, b))
    return torch.result_type(first, second)
