"""Reductions: torch's dtypes, extremes with their positions, and moments with a correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax

from tilewright.frontends.torch.nodes import Correction, argument, as_type, dtype_of, tensor_of

_op = relax.op


def _dims(given: Any) -> list[int] | None:
    """The reduced dimensions; none and an empty list mean all."""
    if given is None or (isinstance(given, list | tuple) and not given):
        return None
    return [int(d) for d in given] if isinstance(given, list | tuple) else [int(given)]


def _fold(make: Callable[..., Any]) -> Correction:
    """A fold in the dtype of the result."""

    def convert(importer: Any, node: Any) -> Any:
        x = as_type(importer, node.args[0], tensor_of(node).dtype)
        dims, keep = _dims(argument(node, 1, "dim")), bool(argument(node, 2, "keepdim", False))
        return importer.block_builder.emit(make(x, dims, keep))

    return convert


def _truth(make: Callable[..., Any]) -> Correction:
    """A fold of truths, as the extreme of zeros and ones."""

    def convert(importer: Any, node: Any) -> Any:
        emit = importer.block_builder.emit
        x = emit(_op.astype(as_type(importer, node.args[0], torch.bool), "int8"))
        dims, keep = _dims(argument(node, 1, "dim")), bool(argument(node, 2, "keepdim", False))
        return emit(_op.astype(emit(make(x, dims, keep)), "bool"))

    return convert


def _extreme(largest: bool) -> Correction:
    def convert(importer: Any, node: Any) -> Any:
        """The extreme along a dimension and where it is."""
        emit = importer.block_builder.emit
        x, dim, keep = (
            importer.env[node.args[0]],
            argument(node, 1, "dim"),
            bool(argument(node, 2, "keepdim", False)),
        )
        values, where = (_op.max, _op.argmax) if largest else (_op.min, _op.argmin)
        return emit(relax.Tuple([emit(values(x, [dim], keep)), emit(where(x, dim, keep))]))

    return convert


def _variance(importer: Any, node: Any) -> Any:
    """The sum of squared differences from the mean over the count less the correction (one by default)."""
    emit, x = importer.block_builder.emit, node.args[0]
    name = node.target.__name__
    dims = _dims(argument(node, 1, "dim"))
    if name.endswith(".correction"):
        correction = argument(node, 2, "correction")
        correction = 1 if correction is None else correction
        keep = bool(node.kwargs.get("keepdim", False))
    else:
        correction, keep = (
            int(bool(argument(node, 2, "unbiased", True))),
            bool(argument(node, 3, "keepdim", False)),
        )
    shape = tensor_of(x).shape
    count = 1
    for d in range(len(shape)) if dims is None else dims:
        count *= int(shape[d])
    out = emit(_op.variance(importer.env[x], dims, keep))
    if correction:
        divisor = count - correction
        factor = count / divisor if divisor > 0 else float("nan")
        out = emit(_op.multiply(out, relax.const(factor, dtype_of(importer, x))))
    return emit(_op.sqrt(out)) if name.startswith("std") else out


def _variance_and_mean(importer: Any, node: Any) -> Any:
    dims, keep = _dims(argument(node, 1, "dim")), bool(node.kwargs.get("keepdim", False))
    mean = importer.block_builder.emit(_op.mean(importer.env[node.args[0]], dims, keep))
    return (_variance(importer, node), mean)


def _scan(make: Callable[..., Any]) -> Correction:
    """A running fold in the dtype of the result."""

    def convert(importer: Any, node: Any) -> Any:
        x, value = node.args[0], tensor_of(node)
        if not value.shape:
            return as_type(importer, x, value.dtype)
        return importer.block_builder.emit(
            make(as_type(importer, x, value.dtype), int(argument(node, 1, "dim")))
        )

    return convert


def _topk(importer: Any, node: Any) -> Any:
    """The first k in order, also where torch leaves the order open."""
    x, k = importer.env[node.args[0]], int(argument(node, 1, "k"))
    dim, largest = int(argument(node, 2, "dim", -1)), bool(argument(node, 3, "largest", True))
    return importer.block_builder.emit(_op.topk(x, k, dim, "both", largest, "int64"))


REDUCTION: Mapping[str, Correction] = {
    **dict.fromkeys(("sum.default", "sum.dim_IntList"), _fold(_op.sum)),
    **dict.fromkeys(("mean.default", "mean.dim"), _fold(_op.mean)),
    **dict.fromkeys(("prod.default", "prod.dim_int"), _fold(_op.prod)),
    **dict.fromkeys(("amax.default", "max.default"), _fold(_op.max)),
    **dict.fromkeys(("amin.default", "min.default"), _fold(_op.min)),
    **dict.fromkeys(("any.default", "any.dim", "any.dims"), _truth(_op.max)),
    **dict.fromkeys(("all.default", "all.dim", "all.dims"), _truth(_op.min)),
    "var_mean.correction": _variance_and_mean,
    "cumsum.default": _scan(_op.cumsum),
    "cumprod.default": _scan(_op.cumprod),
    "topk.default": _topk,
    "max.dim": _extreme(largest=True),
    "min.dim": _extreme(largest=False),
    **dict.fromkeys(("var.correction", "var.dim", "std.correction", "std.dim"), _variance),
}
