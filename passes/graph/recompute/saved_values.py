"""What a function with a backward pass saves and computes again, with the seconds of the cost model."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from tilewright.costmodel import Hardware
from tilewright.ir import Func, Op, Value
from tilewright.passes import PassContext
from tilewright.passes.graph.recompute.boundary import Boundary
from tilewright.passes.graph.recompute.kernel_view import forward_alone, kernel_view
from tilewright.passes.graph.recompute.saving_costs import saving_problem


@dataclass(frozen=True)
class SavedValue:
    """A forward value that the backward pass reads stored.

    seconds: of keeping it and of its backward reads.
    """

    op: Op
    value: Value
    seconds: float


@dataclass(frozen=True)
class RecomputedOp:
    """An op of the forward pass that the backward pass computes again, in so many seconds."""

    op: Op
    seconds: float


def saved_values(
    func: Func, hardware: Hardware, ctx: PassContext
) -> tuple[list[SavedValue], list[RecomputedOp]]:
    """What a graph-level function saves and what it computes again, in the order of the forward pass.

    Nothing where it has no backward pass. Values that are named anew (reshaped) are counted once.
    """
    boundary = Boundary.of(func)
    if not boundary.needed:
        return [], []
    forward = kernel_view(forward_alone(func, boundary), hardware, ctx)
    problem = saving_problem(func, boundary, hardware, ctx, stored=forward.stored, beside=forward.beside)
    saved = []
    for v in problem.saved(()):
        cost = problem.values[v]
        saved.append(SavedValue(boundary.makes[v], v, cost.save_s + cost.direct_s))
    originals = _originals(func, boundary)
    again_s = {op: cost.again_s for op, cost in zip(boundary.ops, problem.ops, strict=True)}
    return saved, [RecomputedOp(op, again_s[op]) for op in boundary.ops if op in originals]


def _originals(func: Func, boundary: Boundary) -> set[Op]:
    """The forward ops of which the backward pass holds a copy."""
    forward = frozenset(boundary.ops)
    known: dict[Hashable, Op] = {}
    source: dict[Value, Value] = {}
    originals: set[Op] = set()
    for op in func.body.ops:
        key = (
            op.name,
            op.attrs,
            tuple(source.get(v, v) for v in op.operands),
            tuple(r.type for r in op.results),
        )
        if op in forward:
            known[key] = op
        elif op.operands and key in known:
            originals.add(known[key])
            source.update(zip(op.results, known[key].results, strict=True))
    return originals
