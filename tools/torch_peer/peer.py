"""The PyTorch call of each graph operator: the same semantics, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir import Op, UnsupportedError
from tilewright.tools.torch_peer.rules import RULES as TRANSFORMER_AND_MOBILE_RULES
from tilewright.tools.torch_peer.rules import Rule, rank


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
    **TRANSFORMER_AND_MOBILE_RULES,
    "graph.conv2d": _conv2d,
    "graph.conv2d_transpose": _conv2d_transpose,
    "graph.max_pool2d": _pool("max"),
    "graph.avg_pool2d": _pool("avg"),
    "graph.global_avg_pool2d": lambda torch, x, op: x[0].mean((2, 3), keepdim=True),
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
