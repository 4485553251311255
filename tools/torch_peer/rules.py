"""The PyTorch call of each graph operator: the same semantics, for comparison.

The IR knows nothing of PyTorch, so this is no fact of the ops; what has no entry is refused by its name.
"""

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


def _matmul(torch: Any, x: Sequence[Any], op: Op) -> Any:
    a = x[0].transpose(-1, -2) if op["transpose_a"] else x[0]
    return a @ (x[1].transpose(-1, -2) if op["transpose_b"] else x[1])


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


def _padding(op: Op) -> tuple[int, int, int, int]:
    padding: Any = op["padding"]
    return padding


def _conv2d(torch: Any, x: Sequence[Any], op: Op) -> Any:
    top, left, bottom, right = _padding(op)
    data, padding = x[0], (top, left)
    if (top, left) != (bottom, right):
        data, padding = torch.nn.functional.pad(data, (left, right, top, bottom)), (0, 0)
    bias = x[2] if len(x) > 2 else None
    return torch.nn.functional.conv2d(data, x[1], bias, op["strides"], padding, op["dilation"], op["groups"])


def _conv2d_transpose(torch: Any, x: Sequence[Any], op: Op) -> Any:
    top, left, bottom, right = _padding(op)
    if (top, left) != (bottom, right):
        raise UnsupportedError("a transposed convolution with uneven padding", where=op.loc)
    return torch.nn.functional.conv_transpose2d(
        x[0], x[1], None, op["strides"], (top, left), op["output_padding"], op["groups"], op["dilation"]
    )


def _pool(name: str) -> Rule:
    def rule(torch: Any, x: Sequence[Any], op: Op) -> Any:
        top, left, bottom, right = _padding(op)
        f = torch.nn.functional
        data, padding = x[0], (top, left)
        if (top, left) != (bottom, right):
            if name == "avg":
                raise UnsupportedError("average pooling with uneven padding", where=op.loc)
            data, padding = f.pad(data, (left, right, top, bottom), value=float("-inf")), (0, 0)
        if name == "max":
            return f.max_pool2d(data, op["pool_size"], op["strides"], padding, ceil_mode=op["ceil_mode"])
        include = op["count_include_pad"]
        return f.avg_pool2d(data, op["pool_size"], op["strides"], padding, op["ceil_mode"], include)

    return rule


def _bias_add(torch: Any, x: Sequence[Any], op: Op) -> Any:
    axis = op.integer("axis") % rank(op)
    return x[0] + x[1].reshape([-1 if d == axis else 1 for d in range(rank(op))])


def _batch_norm(torch: Any, x: Sequence[Any], op: Op) -> Any:
    data, gamma, beta, mean, var = x
    gamma = gamma if op["scale"] else None
    beta = beta if op["center"] else None
    return torch.nn.functional.batch_norm(data, mean, var, gamma, beta, False, 0.0, op["epsilon"])


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
    "graph.matmul": _matmul,
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
    "graph.conv2d": _conv2d,
    "graph.conv2d_transpose": _conv2d_transpose,
    "graph.max_pool2d": _pool("max"),
    "graph.avg_pool2d": _pool("avg"),
    "graph.global_avg_pool2d": lambda torch, x, op: x[0].mean((2, 3), keepdim=True),
    "graph.sum": lambda torch, x, op: x[0].sum(op["axis"], keepdim=op["keepdims"]),
    "graph.batch_norm": _batch_norm,
    "graph.bias_add": _bias_add,
    "graph.dense": lambda torch, x, op: torch.nn.functional.linear(*x),
    "graph.relu": lambda torch, x, op: torch.relu(x[0]),
    "graph.add": lambda torch, x, op: x[0] + x[1],
    "graph.batch_flatten": lambda torch, x, op: x[0].flatten(1),
    "graph.softmax": lambda torch, x, op: torch.softmax(x[0], op["axis"]),
    "graph.concatenate": lambda torch, x, op: torch.cat(list(x), op["axis"]),
    "graph.dropout": lambda torch, x, op: x[0],
}
