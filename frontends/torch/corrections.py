"""Translations of torch operators where TVM's importer has none, or one that differs from torch.

Each takes the importer and a node, and returns a Relax variable. Importing this module imports torch and TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
Correction = Callable[[Any, Any], Any]
_op = relax.op


def value_of(importer: Any, item: Any) -> Any:
    """The Relax expression of a node, anything else as it is."""
    return importer.env[item] if isinstance(item, torch.fx.Node) else item


def argument(node: Any, position: int, name: str, default: Any = None) -> Any:
    """An argument of a node by position or name."""
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def tensor_of(item: Any) -> torch.Tensor:
    """The example tensor of a node."""
    value: torch.Tensor = item.meta["val"]
    return value


def as_type(importer: Any, item: Any, dtype: torch.dtype) -> Any:
    """A node or a number as an expression of `dtype`."""
    name = importer._convert_data_type(dtype)
    if not isinstance(item, torch.fx.Node):
        return relax.const(item, name)
    if tensor_of(item).dtype == dtype:
        return importer.env[item]
    return importer.block_builder.emit(_op.astype(importer.env[item], name))


def _example(item: Any) -> Any:
    return tensor_of(item) if isinstance(item, torch.fx.Node) else item


def promoted(a: Any, b: Any) -> torch.dtype:
    """The dtype in which torch computes with two operands, of which one at least is a tensor."""
    return torch.result_type(_example(a), _example(b))


def binary(make: Callable[[Any, Any], Any], *, floating: bool = False) -> Correction:
    """Two operands, tensors or numbers, promoted as torch does; `floating`: whole numbers become float."""

    def convert(importer: Any, node: Any) -> Any:
        a, b = node.args[:2]
        dtype = promoted(a, b)
        if floating and not dtype.is_floating_point:
            dtype = torch.get_default_dtype()
        emit = importer.block_builder.emit
        right = as_type(importer, b, dtype)
        if (alpha := argument(node, 2, "alpha", 1)) != 1:
            right = emit(_op.multiply(right, relax.const(alpha, importer._convert_data_type(dtype))))
        return emit(make(as_type(importer, a, dtype), right))

    return convert


def unary_float(make: Callable[[Any], Any]) -> Correction:
    """One operand; whole numbers become float first, as torch does."""

    def convert(importer: Any, node: Any) -> Any:
        return importer.block_builder.emit(make(as_type(importer, node.args[0], tensor_of(node).dtype)))

    return convert


def _matmul(importer: Any, node: Any) -> Any:
    a, b = (importer.env[item] for item in node.args[:2])
    return importer.block_builder.emit(_op.matmul(a, b))


def _linear(importer: Any, node: Any) -> Any:
    emit = importer.block_builder.emit
    x, weight = (importer.env[item] for item in node.args[:2])
    out = emit(_op.matmul(x, emit(_op.permute_dims(weight))))
    bias = argument(node, 2, "bias")
    return out if bias is None else emit(_op.add(out, importer.env[bias]))


def _added_product(importer: Any, node: Any) -> Any:
    """beta * x + alpha * (a @ b)."""
    emit, dtype = importer.block_builder.emit, importer._convert_data_type(tensor_of(node).dtype)
    x, a, b = (importer.env[item] for item in node.args[:3])
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    product = emit(_op.matmul(a, b))
    if alpha != 1:
        product = emit(_op.multiply(product, relax.const(alpha, dtype)))
    if beta == 0:
        return product
    return emit(_op.add(x if beta == 1 else emit(_op.multiply(x, relax.const(beta, dtype))), product))


CORRECTIONS: Mapping[str, Correction] = {
    **dict.fromkeys(("matmul.default", "mm.default", "bmm.default"), _matmul),
    "linear.default": _linear,
    "addmm.default": _added_product,
    "baddbmm.default": _added_product,
}
