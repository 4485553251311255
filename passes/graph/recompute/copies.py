"""A function whose backward pass computes ops of the forward pass again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.ir import Func, Op, Value
from tilewright.passes.analysis.backward_pass import RECOMPUTED
from tilewright.passes.graph.recompute.boundary import Boundary
from tilewright.passes.rewriting.values import copied_ops


def with_copies(func: Func, boundary: Boundary, again: Collection[Op]) -> tuple[Func, dict[Op, Op]]:
    """The function with a copy of each of these forward ops before the first backward op that needs it.

    Copies carry the location of their op with a prime, as all of the backward pass. Ops of which no copy is
    needed get none. Second, the original of every copy.
    """
    forward, chosen = frozenset(boundary.ops), frozenset(again)
    place = {op: i for i, op in enumerate(boundary.ops)}
    copies: dict[Value, Value] = {}
    originals: dict[Op, Op] = {}
    ops: list[Op] = []
    for op in func.body.ops:
        if op not in forward and op is not func.body.ops[-1]:
            missing = _missing(op, boundary, chosen, copies)
            for original in sorted(missing, key=place.__getitem__):
                (copy,) = copied_ops([_in_backward(original)], copies)
                originals[copy] = original
                ops.append(copy)
            op = op.with_operands(tuple(copies.get(v, v) for v in op.operands))
        ops.append(op)
    if not originals:
        return func, originals
    body = func.body.with_ops(tuple(ops))
    return func.with_body(body).with_attrs(**{RECOMPUTED: len(originals)}), originals


def _missing(op: Op, boundary: Boundary, chosen: Collection[Op], copies: Collection[Value]) -> set[Op]:
    """The ops that must be computed again before `op` and are not yet."""
    missing: set[Op] = set()
    line = list(op.operands)
    while line:
        v = line.pop()
        maker = boundary.makes.get(v)
        if maker in chosen and maker is not None and maker not in missing and v not in copies:
            missing.add(maker)
            line += maker.operands
    return missing


def _in_backward(op: Op) -> Op:
    return replace(op, loc=f"{op.loc}'") if op.loc else op
