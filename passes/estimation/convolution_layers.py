"""Convolutions of a network with the ops behind them that their kernels take along, and which are alike."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tilewright.costmodel import Hardware
from tilewright.ir import Builder, Func, Op, Value
from tilewright.passes.estimation.algorithms import Alternative, alternative
from tilewright.passes.lower.lowering import RULES

#: ops that one kernel takes along at most
_MOST_BEHIND = 8


@dataclass(frozen=True)
class Layer:
    """A graph.conv2d, the pointwise ops behind it that nothing else reads from, and its constant operands."""

    conv: Op
    behind: tuple[Op, ...]
    constants: frozenset[Value]

    @property
    def key(self) -> Hashable:
        """Equal for layers that compute the same of other data; the algorithm does not count."""
        numbers: dict[Value, int] = {}
        rows: list[Hashable] = []
        for op in (self.conv, *self.behind):
            operands = tuple(
                (numbers.setdefault(v, len(numbers)), v.type, v in self.constants) for v in op.operands
            )
            numbers[op.result] = len(numbers)
            attrs = tuple((k, v) for k, v in op.attrs if k != "algorithm")
            rows.append((op.name, attrs, operands, op.result.type))
        return tuple(rows)

    def by(self, algorithm: str, hardware: Hardware, factors: str = "") -> Alternative:
        """The kernels of the layer by an algorithm that is legal for its convolution.

        factors: what float32 factors of products are allowed.
        """
        ops = (self.conv.with_attrs(algorithm=algorithm), *self.behind)
        return alternative(ops, self.constants, hardware, factors=factors)


def layers_of(func: Func) -> list[Layer]:
    """A layer for every graph.conv2d of a graph-level function, in program order."""
    users: dict[Value, list[Op]] = {}
    for op in func.body.ops:
        for v in dict.fromkeys(op.operands):
            users.setdefault(v, []).append(op)
    constants = {op.result for op in func.body.ops if op.name == "graph.constant"}
    out = []
    for op in func.body.ops:
        if op.name == "graph.conv2d":
            behind = _behind(op, users)
            used = {v for o in (op, *behind) for v in o.operands}
            out.append(Layer(op, behind, frozenset(constants & used)))
    return out


def _behind(conv: Op, users: dict[Value, list[Op]]) -> tuple[Op, ...]:
    out: list[Op] = []
    last = conv
    while len(out) < _MOST_BEHIND and len(users.get(last.result, ())) == 1:
        (user,) = users[last.result]
        if not _pointwise(user, last.result):
            break
        out.append(user)
        last = user
    return tuple(out)


def _pointwise(op: Op, value: Value) -> bool:
    """Return whether the op becomes maps over the domain of `value`."""
    if op.name not in RULES or len(op.results) != 1 or op.result.type != value.type:
        return False
    b = Builder("layer")
    RULES[op.name](b, op, op.operands)
    return all(o.name == "tensor.map" and o.result.type == value.type for o in b.ops)
