"""Which ops of a kernel one library call takes the place of."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.ir import Func, Op, Value


def region_of(kernel: Func, root: Op, operands: Collection[Value]) -> tuple[Op, ...]:
    """The ops that compute the result of `root` from the operands, in their order.

    None of them where something else reads what is computed on the way, or they read more than the operands.
    """
    wanted = {root.result}
    found: list[Op] = []
    for op in reversed(kernel.body.ops):
        if wanted & set(op.results):
            found.insert(0, op)
            wanted.update(v for v in op.operands if v not in operands)
    inside = set(found)
    hidden = {r for op in found for r in op.results} - {root.result}
    outside = {v for op in kernel.body.ops if op not in inside for v in op.operands}
    read = {v for op in found for v in op.operands} - {r for op in found for r in op.results}
    return () if hidden & (outside | set(operands)) or read - set(operands) else tuple(found)


def copies_behind(kernel: Func, op: Op) -> list[Op]:
    """The op and the maps that only copy its result, possibly in another type or order, one after another."""
    found = [op]
    while True:
        readers = [o for o in kernel.body.ops if found[-1].result in o.operands]
        if len(readers) != 1 or readers[0].name != "tensor.map" or len(readers[0].operands) != 1:
            return found
        (reader,) = readers
        if len(reader.results) != 1 or reader.result.tensor.size != op.result.tensor.size:
            return found
        assert reader.body is not None
        if any(inner.name != "scalar.cast" for inner in reader.body.ops[:-1]):
            return found
        found.append(reader)
