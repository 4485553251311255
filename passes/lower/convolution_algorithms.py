"""The table of alternative lowerings of graph.conv2d."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import Builder, Op, Value
from tilewright.ir.errors import UnsupportedError
from tilewright.passes.analysis.convolution_algorithms import OBSTACLES, Obstacle, obstacle_to
from tilewright.passes.lower.lowering import Rule

_RULES: dict[str, Rule] = {}


def algorithm(name: str, obstacle: Obstacle) -> Callable[[Rule], Rule]:
    """Register the lowering rule of an algorithm of graph.conv2d, and what stands against it."""

    def register(rule: Rule) -> Rule:
        _RULES[name], OBSTACLES[name] = rule, obstacle
        return rule

    return register


def by_algorithm(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Lower graph.conv2d by the algorithm its attribute names; UnsupportedError where that is illegal."""
    name = str(op["algorithm"])
    obstacle = obstacle_to(name, op)
    if obstacle:
        raise UnsupportedError(f"{name} cannot compute this graph.conv2d: {obstacle}", where=op.loc)
    return _RULES[name](b, op, x)
