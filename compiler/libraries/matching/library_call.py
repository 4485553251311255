"""Ops of a kernel that one library call takes the place of."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tilewright.ir import Func, Op, Value
from tilewright.runtime.libraries.problem import Problem


@dataclass(frozen=True)
class LibraryCall:
    """Ops of a kernel that a library computes: `operands` in the order of the problem's arguments.

    weights: an op that rearranges one of them, in a kernel of its own since it may run at compile time.
    kernel: the kernel that has these ops, where the original one has others.
    """

    problem: Problem
    operands: tuple[Value, ...]
    ops: tuple[Op, ...]
    provider: str = "cublaslt"
    weights: tuple[Op, ...] = ()
    kernel: Func | None = None

    @property
    def result(self) -> Value:
        """The value that the library writes."""
        return self.ops[-1].result


def region_of(kernel: Func, root: Op, operands: Collection[Value]) -> tuple[Op, ...]:
    """The ops that compute the result of `root` from the operands, in their order.

    None of them where something else reads what is computed on the way, or they read more than the operands.
    """
    needed = {root.result}
    ops: list[Op] = []
    for op in reversed(kernel.body.ops):
        if needed & set(op.results):
            ops.insert(0, op)
            needed.update(v for v in op.operands if v not in operands)
    inside = set(ops)
    hidden = {r for op in ops for r in op.results} - {root.result}
    outside = {v for op in kernel.body.ops if op not in inside for v in op.operands}
    read = {v for op in ops for v in op.operands} - {r for op in ops for r in op.results}
    return () if hidden & (outside | set(operands)) or read - set(operands) else tuple(ops)


def copies_behind(kernel: Func, op: Op) -> list[Op]:
    """The op and the maps that only copy its result, possibly in another type or order, one after another."""
    chain = [op]
    while True:
        readers = [o for o in kernel.body.ops if chain[-1].result in o.operands]
        if len(readers) != 1 or readers[0].name != "tensor.map" or len(readers[0].operands) != 1:
            return chain
        (reader,) = readers
        if len(reader.results) != 1 or reader.result.tensor.size != op.result.tensor.size:
            return chain
        assert reader.body is not None
        if any(inner.name != "scalar.cast" for inner in reader.body.ops[:-1]):
            return chain
        chain.append(reader)
