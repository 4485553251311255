"""Ops of a kernel that one library call takes the place of, and operands written as a library wants them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tilewright.ir import Expr, Func, Op, Pairs, TensorType, Value
from tilewright.ir.builder import scalar_body
from tilewright.runtime.libraries.problem import Problem


@dataclass(frozen=True)
class LibraryCall:
    """Ops of a kernel that a library computes: `operands` in the order of the problem's arguments.

    weights: an op that rearranges one of them, in a kernel of its own since it may run at compile time.
    kernel: the kernel that has these ops, where the original one has others. written: the values that it
    writes, in the order of the arguments; that of the last op where none are named.
    """

    problem: Problem
    operands: tuple[Value, ...]
    ops: tuple[Op, ...]
    provider: str = "cublaslt"
    weights: tuple[Op, ...] = ()
    kernel: Func | None = None
    written: tuple[Value, ...] = ()

    @property
    def result(self) -> Value:
        """The value that the library writes, of several the first one."""
        return self.written[0] if self.written else self.ops[-1].result

    @property
    def results(self) -> tuple[Value, ...]:
        """The values that the library writes."""
        return self.written or (self.result,)


def region_of(kernel: Func, results: Collection[Value], operands: Collection[Value]) -> tuple[Op, ...]:
    """The ops that compute the results from the operands, in their order.

    None of them where something else reads what is computed on the way, or they read more than the operands.
    """
    needed = set(results)
    ops: list[Op] = []
    for op in reversed(kernel.body.ops):
        if needed & set(op.results):
            ops.insert(0, op)
            needed.update(v for v in op.operands if v not in operands)
    inside = set(ops)
    hidden = {r for op in ops for r in op.results} - set(results)
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


def written_anew(
    value: Value, extents: Mapping[str, int], at: tuple[Expr, ...], what: str, loc: str, dtype: str = ""
) -> Op:
    """A map that writes the elements of a value at these indices to an array of its own.

    extents: of the dimensions of the array. what: ends the name of the array. dtype: another floating type.
    """
    b, (element,) = scalar_body([value.tensor.dtype])
    b.emit("scalar.yield", [b.cast(element, dtype) if dtype else element])
    t = TensorType(dtype or value.tensor.dtype, tuple(extents.values()))
    attrs = (("par", Pairs.of(extents)), ("reads", (at,)), ("fill", ()))
    return Op("tensor.map", (value,), attrs, (Value(t, f"{value.hint}.{what}"),), b.block([element]), loc)


def with_op_before(kernel: Func, op: Op, new: Op, changed: Op) -> Func:
    """The kernel with a new op before one that is changed to read it."""
    ops = [o for old in kernel.body.ops for o in ((new, changed) if old is op else (old,))]
    return replace(kernel, body=kernel.body.with_ops(tuple(ops)))
