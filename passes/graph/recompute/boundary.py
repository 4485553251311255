"""Where the forward pass of a function ends: what can be saved there, and what the backward pass reads."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir import Func, Op, Value
from tilewright.passes.analysis.backward_pass import forward_ops


@dataclass(frozen=True)
class Boundary:
    """The forward ops of a function whose results depend on more than constants, and what is read of them.

    makes: the op of every value that can be saved. needed: what ops of the backward pass read of them.
    """

    ops: tuple[Op, ...]
    makes: dict[Value, Op]
    needed: frozenset[Value]

    @classmethod
    def of(cls, func: Func) -> Boundary:
        """The boundary of a function of the graph level; without ops where it has no backward pass."""
        forward = forward_ops(func)
        ops = tuple(op for op in func.body.ops if op in forward and op.operands)
        makes = {r: op for op in ops for r in op.results}
        backward = [op for op in func.body.ops[:-1] if op not in forward]
        needed = frozenset(v for op in backward for v in op.operands if v in makes)
        return cls(ops, makes, needed)
