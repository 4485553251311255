"""Products and the maps behind them that may be one kernel of gates, and what steps take so."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.costmodel import Hardware
from tilewright.ir import Func, Op, Value
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.gated.choice import choose_gated
from tilewright.passes.kernels.gated_lanes.choice import choose_gated_lanes
from tilewright.passes.tensor.joins.estimates import alone_s
from tilewright.passes.tensor.joins.merge import kernel_of, merged, reshapes_filled

#: a kernel of gates is taken where its estimate is below this share of those of its parts
CLEARLY = 0.9


def has_product(kernel: Func | None) -> bool:
    """Return whether a kernel has one product, and nothing beside it but maps."""
    names = [] if kernel is None else [op.name for op in kernel.body.ops[:-1]]
    return names.count("tensor.contract") == 1 and {*names} <= {"tensor.contract", "tensor.map"}


def maps_behind(
    product: Op, readers: Mapping[Value, Sequence[Op]], kernels: Mapping[str, Func], taken: Collection[Op]
) -> Op | None:
    """The call that reads what a product gives first, where it is one of maps alone; None where it is not.

    Others read it later in the program, where the call of both has been made. taken: calls that are others'.
    """
    firsts = [readers[v][0] for v in product.results if v in readers]
    if not firsts or any(op is not firsts[0] for op in firsts):
        return None
    kernel = kernel_of(firsts[0], kernels)
    if kernel is None or firsts[0] in taken or {op.name for op in kernel.body.ops[:-1]} != {"tensor.map"}:
        return None
    return firsts[0]


def chosen_gates(kernel: Func, hardware: Hardware) -> Func | None:
    """The kernel on tensor cores or on lanes, as its estimate is the least; None where it can be neither."""
    made = [choose(kernel, hardware) for choose in (choose_gated, choose_gated_lanes)]
    return min((f for f in made if not isinstance(f, str)), key=estimate_of, default=None)


def joined_gates(
    calls: Sequence[Op], readers: Mapping[Value, Sequence[Op]], kernels: dict[str, Func], name: str
) -> tuple[Func, list[Value], list[Value]] | None:
    """The kernel that does what calls do, its arguments and results in @main; None where there is none."""
    if reshapes_filled(calls, kernels):
        return None
    outputs = {r for c in calls for r in c.results if {*readers.get(r, ())} - {*calls}}
    return merged(calls, kernels, outputs, name)


def steps_s(
    calls: Sequence[Op],
    readers: Mapping[Value, Sequence[Op]],
    kernels: dict[str, Func],
    ctx: PassContext,
    hardware: Hardware,
) -> float:
    """Estimated seconds of calls one after the other, with kernels of gates where `join-gates` takes them."""
    seconds = {c: alone_s(kernels[callee_of(c)], ctx, hardware) for c in calls}
    for op in calls:
        if not has_product(kernel_of(op, kernels)):
            continue
        maps = maps_behind(op, readers, kernels, ())
        if maps not in seconds or not seconds[maps]:
            continue
        made = joined_gates((op, maps), readers, kernels, "gates")
        chosen = None if made is None else chosen_gates(made[0], hardware)
        if chosen is not None and estimate_of(chosen) < CLEARLY * (seconds[op] + seconds[maps]):
            seconds |= {op: estimate_of(chosen), maps: 0.0}
    return sum(seconds.values())
