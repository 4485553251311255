"""The table of alternative lowerings of graph.conv2d, and where each of them is legal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir import Builder, Op, Value
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.graph_ops.convolution import Convolution, convolution_of
from tilewright.ir.types import FLOATS
from tilewright.passes.lower.lowering import Rule

#: (the convolution's extents) -> why the algorithm cannot compute it, or nothing
Obstacle = Callable[[Convolution], str]


@dataclass(frozen=True)
class Algorithm:
    """An alternative lowering: its rule, and what stands against it on a convolution."""

    rule: Rule
    obstacle: Obstacle


ALGORITHMS: dict[str, Algorithm] = {}


def algorithm(name: str, obstacle: Obstacle) -> Callable[[Rule], Rule]:
    """Register the lowering rule of an algorithm of graph.conv2d."""

    def register(rule: Rule) -> Rule:
        ALGORITHMS[name] = Algorithm(rule, obstacle)
        return rule

    return register


def obstacle_to(name: str, op: Op) -> str:
    """Why graph.conv2d `op` cannot be computed by the algorithm; empty where it can."""
    data, weight = (v.tensor for v in op.operands)
    if name == "direct":
        return ""
    if data.dtype not in FLOATS or op.result.tensor.dtype != data.dtype:
        return f"expected one floating dtype, got {data.dtype} and a result of {op.result.tensor.dtype}"
    g = convolution_of(data, weight, dict(op.attrs), 2, op.name)
    if 0 in (g.batch, *data.shape, *op.result.tensor.shape):
        return f"expected operands with elements, got {data}"
    if any(w.stride != 1 or w.dilation != 1 for w in g.windows):
        return "expected strides and dilation of 1"
    return ALGORITHMS[name].obstacle(g)


def by_algorithm(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Lower graph.conv2d by the algorithm its attribute names; UnsupportedError where that is illegal."""
    name = str(op["algorithm"])
    obstacle = obstacle_to(name, op)
    if obstacle:
        raise UnsupportedError(f"{name} cannot compute this graph.conv2d: {obstacle}", where=op.loc)
    return ALGORITHMS[name].rule(b, op, x)
