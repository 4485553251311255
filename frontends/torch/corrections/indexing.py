"""Picking and placing elements: torch counts negative indices from the end, TVM's importer does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tvm import relax

from tilewright.frontends.torch.corrections.nodes import Correction, TorchCall, tensor_of
from tilewright.ir.errors import UnsupportedError

_op = relax.op
_REDUCTIONS = {
    "sum": "add",
    "add": "add",
    "prod": "mul",
    "multiply": "mul",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
}


def _wrapped(call: TorchCall, index: Any, extent: int) -> Any:
    """Indices of which negative ones count from the end, as int64 in [0, extent)."""
    at = call.as_type(index, torch.int64)
    below = call.emit(_op.less(at, relax.const(0, "int64")))
    return call.emit(_op.where(below, call.emit(_op.add(at, relax.const(extent, "int64"))), at))


def _select(call: TorchCall) -> Any:
    x, dim, index = call.args[0], call.argument(1, "dim"), call.argument(2, "index")
    shape = tensor_of(x).shape
    dim %= len(shape)
    index += shape[dim] if index < 0 else 0
    cut = _op.strided_slice(call.env[x], [dim], [index], [index + 1])
    return call.emit(_op.squeeze(call.emit(cut), [dim]))


def _index(call: TorchCall) -> Any:
    """x[i, :, j]: indexed dimensions move to the front and are indexed together.

    The dimensions that come of it stand where the indexed ones stood if those are neighbours, else in front.
    """
    x, indices = call.args[:2]
    shape = tensor_of(x).shape
    if any(i is not None and tensor_of(i).dtype in (torch.bool, torch.uint8) for i in indices):
        raise UnsupportedError(
            "expected indices that are whole numbers, got a mask: it decides the result's shape"
        )
    dims = [d for d, i in enumerate(indices) if i is not None]
    others = [d for d in range(len(shape)) if d not in dims]
    picked = [_wrapped(call, indices[d], int(shape[d])) for d in dims]
    if len(dims) == 1:
        return call.emit(_op.take(call.env[x], picked[0], axis=dims[0]))
    front = call.emit(_op.permute_dims(call.env[x], [*dims, *others]))
    out = call.emit(_op.index_tensor(front, picked))
    start = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    made = len(call.value.shape) - len(others)
    order = [*range(made, made + start), *range(made), *range(made + start, made + len(others))]
    return call.emit(_op.permute_dims(out, order)) if start else out


def _index_put(call: TorchCall) -> Any:
    """As _index, for placing: dimensions that are not indexed are indexed by all their elements."""
    x, indices, values = call.args[:3]
    shape = tensor_of(x).shape
    if any(i is not None and tensor_of(i).dtype in (torch.bool, torch.uint8) for i in indices):
        return _masked_put(call)
    dims = [d for d, i in enumerate(indices) if i is not None]
    others = [d for d in range(len(shape)) if d not in dims]
    start = dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0
    picked = [_wrapped(call, indices[d], int(shape[d])) for d in dims]
    made = list(torch.broadcast_shapes(*(tensor_of(indices[d]).shape for d in dims)))
    rank, extra = len(made), len(others)
    full = [
        call.emit(_op.reshape(call.emit(_op.broadcast_to(p, made)), [*made, *[1] * extra])) for p in picked
    ]
    for place, d in enumerate(others):
        ramp = call.emit(_op.arange(0, int(shape[d]), 1, "int64"))
        ones = [1] * (rank + place), [1] * (extra - place - 1)
        full.append(call.emit(_op.reshape(ramp, [*ones[0], int(shape[d]), *ones[1]])))
    rest = [int(shape[d]) for d in others]
    placed = call.as_type(values, tensor_of(x).dtype)
    placed = call.emit(_op.broadcast_to(placed, [*rest[:start], *made, *rest[start:]]))
    if start:
        placed = call.emit(_op.permute_dims(placed, _fronted(start, rank, extra)))
    front = call.emit(_op.permute_dims(call.env[x], [*dims, *others]))
    out = call.emit(_op.index_put(front, full, placed, bool(call.argument(3, "accumulate", False))))
    order = [*dims, *others]
    return call.emit(_op.permute_dims(out, [order.index(d) for d in range(len(shape))]))


def _fronted(start: int, count: int, others: int) -> list[int]:
    """The order that brings `count` dimensions at `start` to the front of `others`."""
    return [*range(start, start + count), *range(start), *range(start + count, count + others)]


def _masked_put(call: TorchCall) -> Any:
    """x[mask] = number: a choice element by element."""
    x, indices, values = call.args[:3]
    mask = indices[0]
    if len(indices) != 1 or tensor_of(values).numel() != 1 or call.argument(3, "accumulate", False):
        raise UnsupportedError("expected one mask and one number to put where it holds")
    shape = tensor_of(mask).shape
    trailing = [1] * (len(tensor_of(x).shape) - len(shape))
    chosen = call.emit(_op.reshape(call.env[mask], [*map(int, shape), *trailing]))
    value = call.emit(_op.reshape(call.as_type(values, tensor_of(x).dtype), []))
    return call.emit(_op.where(chosen, value, call.env[x]))


def _scatter(call: TorchCall) -> Any:
    """Elements placed along a dimension, replacing what was there or folded into it."""
    x, dim, index, source = (call.argument(i, n) for i, n in enumerate(("self", "dim", "index", "src")))
    name = call.name
    reduction = call.argument(4, "reduce", "add") if "add" in name or "reduce" in name else None
    if not call.argument(5, "include_self", True):
        raise UnsupportedError(
            "expected what lies at a place to count in scatter_reduce, got include_self=False"
        )
    if source is None:
        source = call.argument(3, "value")
    if not isinstance(source, torch.fx.Node):
        shape = [int(n) for n in tensor_of(index).shape]
        updates = call.emit(_op.full(shape, relax.const(source, call.dtype_of(x)), call.dtype_of(x)))
    else:
        # Torch takes as many elements of the source as there are indices.
        extents = [int(n) for n in tensor_of(index).shape]
        axes = list(range(len(extents)))
        updates = call.emit(_op.strided_slice(call.env[source], axes, [0] * len(axes), extents))
    mode = "update" if reduction is None else _REDUCTIONS[reduction]
    at = call.as_type(index, torch.int64)
    return call.emit(
        _op.scatter_elements(call.env[x], at, updates, int(dim) % max(1, len(tensor_of(x).shape)), mode)
    )


def _select_scatter(call: TorchCall) -> Any:
    x, source, dim, index = (call.argument(i, n) for i, n in enumerate(("self", "src", "dim", "index")))
    shape = tensor_of(x).shape
    dim %= len(shape)
    index += shape[dim] if index < 0 else 0
    row = call.emit(_op.expand_dims(call.env[source], dim))
    return call.emit(_op.slice_scatter(call.env[x], row, int(index), int(index) + 1, 1, dim))


def _padded(mode: str) -> Correction:
    def convert(call: TorchCall) -> Any:
        """Torch lists the widths from the last dimension on."""
        x, widths = call.env[call.args[0]], list(call.args[1])
        pairs = [widths[i : i + 2] for i in range(0, len(widths), 2)][::-1]
        kept = len(tensor_of(call.args[0]).shape) - len(pairs)
        flat = [0, 0] * kept + [int(w) for pair in pairs for w in pair]
        return call.emit(_op.nn.pad(x, flat, mode))

    return convert


def _take(call: TorchCall) -> Any:
    x, index = call.args
    flat = call.emit(_op.flatten(call.env[x]))
    return call.emit(_op.take(flat, _wrapped(call, index, tensor_of(x).numel()), axis=0))


def _embedding(call: TorchCall) -> Any:
    weight, index = (call.env[item] for item in call.args[:2])
    return call.emit(_op.take(weight, index, axis=0))


def _searched(call: TorchCall) -> Any:
    """The places of values in one rising sequence."""
    sequence, values = call.args[:2]
    right = bool(call.kwargs.get("right", False)) or call.kwargs.get("side") == "right"
    if len(tensor_of(sequence).shape) != 1 or call.kwargs.get("sorter") is not None:
        raise UnsupportedError("expected searchsorted in one sorted sequence")
    narrow = bool(call.kwargs.get("out_int32", False))
    return call.emit(_op.bucketize(call.env[values], call.env[sequence], out_int32=narrow, right=right))


INDEXING: Mapping[str, Correction] = {
    "select.int": _select,
    **dict.fromkeys(("index.Tensor", "_unsafe_index.Tensor"), _index),
    **dict.fromkeys(("index_put.default", "index_put_.default", "_unsafe_index_put.default"), _index_put),
    **dict.fromkeys(("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two"), _scatter),
    "select_scatter.default": _select_scatter,
    "embedding.default": _embedding,
    "take.default": _take,
    "searchsorted.Tensor": _searched,
    **{f"reflection_pad{n}d.default": _padded("reflect") for n in (1, 2, 3)},
    **{f"replication_pad{n}d.default": _padded("replicate") for n in (1, 2, 3)},
}
