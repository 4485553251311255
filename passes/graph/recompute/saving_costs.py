"""The problem of what to save in a function with a backward pass, with the seconds of the cost model."""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from tilewright.costmodel import Hardware
from tilewright.costmodel.op_work import op_flops
from tilewright.ir import Func, Op, Value
from tilewright.ir.facts import SAME_MEMORY, Elements
from tilewright.ir.opdef import facts_of, op_def
from tilewright.passes import PassContext
from tilewright.passes.analysis.second_results import second_results_s
from tilewright.passes.graph.recompute.boundary import Boundary
from tilewright.passes.graph.recompute.kernel_view import bytes_per_s
from tilewright.passes.graph.recompute.saving_problem import Recomputable, Saving, SavingProblem
from tilewright.passes.rewriting.values import readers

#: ops that only name elements of what they read
_VIEWS = SAME_MEMORY | {Elements.CUTS}
#: ops that compute each element where it is read, as part of the kernel that reads it
_IN_READERS = frozenset(
    {
        Elements.MAPS,
        Elements.MAPS_PER_CHANNEL,
        Elements.STRIDES,
        Elements.REPEATS,
        Elements.CREATES,
        Elements.MOVES,
    }
)


def is_map(op: Op) -> bool:
    """Return whether an op is a view, or is computed element by element by the kernel that reads it."""
    return facts_of(op.name).elements in _VIEWS | _IN_READERS


def saving_problem(
    func: Func,
    boundary: Boundary,
    hardware: Hardware,
    ctx: PassContext,
    *,
    stored: Collection[Op],
    apart: Collection[Op] = (),
    beside: Collection[Op] = (),
    kept: Collection[Value] = (),
    factors: str = "",
) -> SavingProblem[Value]:
    """The costs of saving each value and of computing each op again.

    stored: ops whose results the forward pass stores for its own readers. apart: ops whose results were seen
    to be stored when they are computed again. beside: ops whose results, where they are saved or stored when
    they are computed again, lie beside that of a product of the same kernel. kept: values that are not to be
    computed again.
    """
    rate = bytes_per_s(hardware, sum(v.tensor.nbytes for v in boundary.makes))
    read_by = readers(func.body)
    forward = frozenset(boundary.ops)
    costs: dict[Value, Saving] = {}
    ops = []
    for op in boundary.ops:
        reads = tuple(v for v in dict.fromkeys(op.operands) if v in boundary.makes)
        outside_s = sum(v.tensor.nbytes for v in op.operands if v not in boundary.makes) / rate
        if op_def(op.name).effects or any(r in kept for r in op.results):
            again_s = inf
        else:
            again_s = _again_s(op, op in apart, outside_s, rate, hardware, ctx, factors=factors)
            if op in apart and op in beside:
                again_s += second_results_s(op.results, hardware)
        ops.append(Recomputable(reads, op.results, again_s))
        for r in op.results:
            moved_s = r.tensor.nbytes / rate
            count = sum(o not in forward for o in read_by.get(r, ()))
            alias = facts_of(op.name).elements in _VIEWS
            save_s = 0.0 if op in stored or alias else moved_s
            if save_s and op in beside:
                save_s += second_results_s([r], hardware)
            costs[r] = Saving(r.tensor.nbytes, save_s, moved_s, count * moved_s)
    return SavingProblem(tuple(ops), costs, boundary.needed)


def _again_s(
    op: Op, apart: bool, outside_s: float, rate: float, hardware: Hardware, ctx: PassContext, *, factors: str
) -> float:
    """Seconds of computing an op again, without the reads of activations.

    In the kernel that reads the result it is arithmetic; alone it is a kernel, whose result is written and
    read.
    """
    elements = facts_of(op.name).elements
    if elements in _VIEWS:
        return 0.0
    moved_s = 2 * sum(r.tensor.nbytes for r in op.results) / rate
    if elements in _IN_READERS:
        arithmetic_s = op_flops(op) / hardware.peak_flops_per_s + outside_s
        return arithmetic_s + (moved_s + hardware.stream.boundary_s if apart else 0.0)
    return ctx.estimator.op_s(op, hardware, factors=factors) + hardware.stream.boundary_s + moved_s / 2
