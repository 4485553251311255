"""Reductions: torch's dtypes, extremes with their positions, and moments with a correction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from tvm import relax

from tilewright.frontends.torch.corrections.nodes import Correction, TorchCall, tensor_of

_op = relax.op


def _dims(listed: Any) -> list[int] | None:
    """The reduced dimensions; none and an empty list mean all."""
    if listed is None or (isinstance(listed, list | tuple) and not listed):
        return None
    return [int(d) for d in listed] if isinstance(listed, list | tuple) else [int(listed)]


def _fold(make: Callable[..., Any]) -> Correction:
    """A fold in the dtype of the result."""

    def convert(call: TorchCall) -> Any:
        x = call.as_type(call.args[0], call.value.dtype)
        dims, keep = _dims(call.argument(1, "dim")), bool(call.argument(2, "keepdim", False))
        return call.emit(make(x, dims, keep))

    return convert


def _truth(make: Callable[..., Any]) -> Correction:
    """A fold of truths, as the extreme of zeros and ones."""

    def convert(call: TorchCall) -> Any:
        x = call.emit(_op.astype(call.as_type(call.args[0], torch.bool), "int8"))
        dims, keep = _dims(call.argument(1, "dim")), bool(call.argument(2, "keepdim", False))
        return call.emit(_op.astype(call.emit(make(x, dims, keep)), "bool"))

    return convert


def _extreme(largest: bool) -> Correction:
    def convert(call: TorchCall) -> Any:
        """The extreme along a dimension and where it is."""
        x, dim, keep = (
            call.env[call.args[0]],
            call.argument(1, "dim"),
            bool(call.argument(2, "keepdim", False)),
        )
        values, where = (_op.max, _op.argmax) if largest else (_op.min, _op.argmin)
        return call.emit(relax.Tuple([call.emit(values(x, [dim], keep)), call.emit(where(x, dim, keep))]))

    return convert


def _variance(call: TorchCall) -> Any:
    """The sum of squared differences from the mean over the count less the correction (one by default)."""
    x = call.args[0]
    name = call.name
    dims = _dims(call.argument(1, "dim"))
    if name.endswith(".correction"):
        correction = call.argument(2, "correction")
        correction = 1 if correction is None else correction
        keep = bool(call.kwargs.get("keepdim", False))
    else:
        correction, keep = (
            int(bool(call.argument(2, "unbiased", True))),
            bool(call.argument(3, "keepdim", False)),
        )
    shape = tensor_of(x).shape
    count = 1
    for d in range(len(shape)) if dims is None else dims:
        count *= int(shape[d])
    out = call.emit(_op.variance(call.env[x], dims, keep))
    if correction:
        divisor = count - correction
        factor = count / divisor if divisor > 0 else float("nan")
        out = call.emit(_op.multiply(out, relax.const(factor, call.dtype_of(x))))
    return call.emit(_op.sqrt(out)) if name.startswith("std") else out


def _variance_and_mean(call: TorchCall) -> Any:
    dims, keep = _dims(call.argument(1, "dim")), bool(call.kwargs.get("keepdim", False))
    mean = call.emit(_op.mean(call.env[call.args[0]], dims, keep))
    return (_variance(call), mean)


def _scan(make: Callable[..., Any]) -> Correction:
    """A running fold in the dtype of the result."""

    def convert(call: TorchCall) -> Any:
        x, value = call.args[0], call.value
        if not value.shape:
            return call.as_type(x, value.dtype)
        return call.emit(make(call.as_type(x, value.dtype), int(call.argument(1, "dim"))))

    return convert


def _topk(call: TorchCall) -> Any:
    """The first k in order, also where torch leaves the order open."""
    x, k = call.env[call.args[0]], int(call.argument(1, "k"))
    dim, largest = int(call.argument(2, "dim", -1)), bool(call.argument(3, "largest", True))
    return call.emit(_op.topk(x, k, dim, "both", largest, "int64"))


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
