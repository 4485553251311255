"""PyTorch calls for the graph operators of transformers and mobile networks; `torch_peer` adds the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.ir import Op, UnsupportedError
from tilewright.ir.types import array_type

Rule = Callable[[Any, Sequence[Any], Op], Any]


def rank(op: Op, operand: int = 0) -> int:
    """Dimensions of an operand, as the IR knows them: rules must not ask tensors that are being traced."""
    return op.operands[operand].tensor.rank


def _to_result_shape(torch: Any, x: Sequence[Any], op: Op) -> Any:
    return x[0].reshape(array_type(op.result.tensor).shape)


def _cast(torch: Any, x: Sequence[Any], op: Op) -> Any:
    names = {"f32": "float32", "f64": "float64", "i32": "int32", "i64": "int64", "bool": "bool"}
    name = str(op["dtype"])
    if name not in names:
        raise UnsupportedError(f"a cast to {name} as a PyTorch call", where=op.loc)
    return x[0].to(getattr(torch, names[name]))


def _take(torch: Any, x: Sequence[Any], op: Op) -> Any:
    """Indices must lie within the table: PyTorch has no modes for others."""
    if op["batch_dims"] != 0:
        raise UnsupportedError("a take with batch dimensions as a PyTorch call", where=op.loc)
    axis = op.integer("axis") % rank(op)
    if (rank(op), axis) == (2, 0):
        return torch.nn.functional.embedding(x[1], x[0])
    return x[0].index_select(axis, x[1].reshape(-1)).reshape(op.result.tensor.shape)


def _strided_slice(torch: Any, x: Sequence[Any], op: Op) -> Any:
    bounds: Any = zip(op["begin"], op["size"], op["strides"], strict=True)  # type: ignore[arg-type]
    return x[0][tuple(slice(b, b + n * s if s > 0 else None, s) for b, n, s in bounds)]


def _layer_norm(torch: Any, x: Sequence[Any], op: Op) -> Any:
    axis = int(op["axis"])  # type: ignore[arg-type]
    if axis % rank(op) != rank(op) - 1:
        raise UnsupportedError("a layer norm along another than the last axis", where=op.loc)
    gamma, beta = (x[1] if op["scale"] else None), (x[2] if op["center"] else None)
    return torch.nn.functional.layer_norm(x[0], op.operands[0].tensor.shape[-1:], gamma, beta, op["epsilon"])


def _batch_matmul(torch: Any, x: Sequence[Any], op: Op) -> Any:
    a = x[0].transpose(1, 2) if op["transpose_a"] else x[0]
    b = x[1].transpose(1, 2) if op["transpose_b"] else x[1]
    return a @ (b[0] if op.operands[1].tensor.shape[0] == 1 else b)


def _split(torch: Any, x: Sequence[Any], op: Op) -> Any:
    axis = op.integer("axis")
    return torch.split(x[0], [r.tensor.shape[axis] for r in op.results], axis)


def _repeat(torch: Any, x: Sequence[Any], op: Op) -> Any:
    return x[0] if op["repeats"] == 1 else x[0].repeat_interleave(op["repeats"], op["axis"])


def _softplus(torch: Any, x: Any, op: Op) -> Any:
    """PyTorch always has a threshold: where the op has none, infinity."""
    threshold = op["threshold"]
    limit = math.inf if threshold is None else threshold
    return torch.nn.functional.softplus(x, op["beta"], limit)


RULES: dict[str, Rule] = {
    "graph.reshape": _to_result_shape,
    "graph.squeeze": _to_result_shape,
    "graph.expand_dims": _to_result_shape,
    "graph.broadcast_to": lambda torch, x, op: x[0].expand(array_type(op.result.tensor).shape),
    "graph.transpose": lambda torch, x, op: x[0].permute(op["axes"]),
    "graph.strided_slice": _strided_slice,
    "graph.cast": _cast,
    "graph.repeat": _repeat,
    "graph.take": _take,
    "graph.gather": lambda torch, x, op: torch.gather(x[0], op["axis"], x[1]),
    "graph.adv_index": lambda torch, x, op: x[0][tuple(x[1:])],
    "graph.layer_norm": _layer_norm,
    "graph.batch_matmul": _batch_matmul,
    "graph.adaptive_avg_pool2d": lambda torch, x, op: torch.nn.functional.adaptive_avg_pool2d(
        x[0], op["output_size"]
    ),
    "graph.clip": lambda torch, x, op: x[0].clamp(op["a_min"], op["a_max"]),
    "graph.sigmoid": lambda torch, x, op: x[0].sigmoid(),
    "graph.hard_swish": lambda torch, x, op: torch.nn.functional.hardswish(x[0]),
    "graph.softplus": lambda torch, x, op: _softplus(torch, x[0], op),
    "graph.erf": lambda torch, x, op: x[0].erf(),
    "graph.multiply": lambda torch, x, op: x[0] * x[1],
    "graph.subtract": lambda torch, x, op: x[0] - x[1],
    "graph.tanh": lambda torch, x, op: x[0].tanh(),
    "graph.split": _split,
    "graph.stack": lambda torch, x, op: torch.stack(list(x), op["axis"]),
    "graph.greater_equal": lambda torch, x, op: x[0] >= x[1],
    "graph.logical_and": lambda torch, x, op: x[0] & x[1],
    "graph.where": lambda torch, x, op: torch.where(x[0], x[1], x[2]),
}
